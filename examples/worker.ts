// A worker over a table of your own (emails.sql). docs/guides/own-table.md shows what is between the marks; a test compares the
// two and runs this file.

// begin
import { leaseTable, PermanentError, startRuntime, type Events, type WorkDeclaration } from 'leasehold'

interface Email {
  readonly id: string
  readonly recipient: string
}

const emails = leaseTable({
  table: 'public.emails',
  claimable: 'sent_at is null and failed_at is null',
  availableAt: 'due_at',
  // The fifth failed attempt is the last one, whether the handler threw or the process died.
  attempts: { max: 5 },
  retry: { firstMs: 1_000, factor: 3, longestMs: 3_600_000 },
  outcomes: {
    done: { sent_at: 'now()' },
    dead: { failed_at: 'now()' },
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

/** Runs until it is stopped. Any number of processes may do this at the same time. */
export async function sendEmails(databaseUrl: string, send: Send, events: Events) {
  return startRuntime({ databaseUrl, migrate: true, workers: [emailWork(send)], events })
}
// end
