// The kernel alone, without a worker, on a table of your own (emails.sql). A test runs this file.
import { leaseTable, openDatabase, openLeaseStore } from 'leasehold'

interface Email {
  readonly id: string
  readonly recipient: string
}

const emails = leaseTable({
  table: 'public.emails',
  claimable: 'sent_at is null and failed_at is null',
  availableAt: 'due_at',
  outcomes: { sent: { sent_at: 'now()' } },
})

/** Sends a batch of what is waiting. Any number of processes may do this at the same time. */
export async function sendSomeEmails(url: string, worker: string, send: (email: Email) => Promise<void>) {
  const db = openDatabase({ url })
  try {
    const store = await openLeaseStore<Email, 'sent'>(db, emails, { owner: worker })
    const { claimed } = await store.claim({ limit: 10, leaseMs: 30_000 })
    for (const { row } of claimed) await send(row)
    // Fenced off: the lease was over before we settled, the row is unchanged, and it is somebody else's now.
    const leases = claimed.map(({ lease }) => lease)
    const { ended, fencedOff } = await store.settle('sent', leases)
    return { sent: ended.length, fencedOff: fencedOff.length }
  } finally {
    await db.close()
  }
}
