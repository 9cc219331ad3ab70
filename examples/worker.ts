// A worker over a table of your own (emails.sql). docs/worker.md shows what is between the marks; a test compares the
// two and runs this file.

// begin
import { leaseTable, PermanentError, startRuntime, type Events, type WorkDeclaration } from 'leasehold'

interface Email {
  readonly id: string
  readonly recipient: string
}

const emails = leaseTable({
  table: 'public.emails',
  id: 'id',
  lease: { owner: 'lease_owner', until: 'lease_until', token: 'lease_token' },
  claimable: 'sent_at is null and failed_at is null',
  availableAt: 'due_at',
  order: ['due_at', 'id'],
  onExpiry: 'claimable',
  // The fifth failed attempt is the last one, whether the handler threw or the process died.
  attempts: { column: 'attempts', max: 5, expiries: 'expiries' },
  retry: { firstMs: 1_000, factor: 3, longestMs: 3_600_000 },
  outcomes: {
    done: { set: { sent_at: 'now()' } },
    retry: {
      set: {
        due_at: "now() + $delay_ms * interval '1 millisecond'",
        attempts: 'attempts + 1',
        last_error: '$error',
      },
      args: { delay_ms: 'float8', error: 'text' },
    },
    dead: {
      set: { failed_at: 'now()', attempts: 'attempts + 1', last_error: '$error' },
      args: { error: 'text' },
    },
  },
})

type Send = (recipient: string, signal: AbortSignal) => Promise<void>

/** Returning settles the row as done; throwing settles it as retry or, after the last attempt, as dead. */
export function emailWork(send: Send): WorkDeclaration<Email> {
  return {
    name: 'emails',
    table: emails,
    async handle({ row, signal }) {
      if (!row.recipient.includes('@')) throw new PermanentError('not an address')
      await send(row.recipient, signal)
    },
  }
}

/** Works until it is stopped. Any number of processes may do this at the same time. */
export async function sendEmails(databaseUrl: string, send: Send, events: Events) {
  return startRuntime({ databaseUrl, workers: [emailWork(send)], events })
}
// end
