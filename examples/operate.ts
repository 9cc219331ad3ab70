// What an operator does, from a program. docs/guides/outbox.md shows what is between the marks; a test compares the two and
// runs this file.
import type { Database } from 'leasehold'
import { replay, retryNow, unblock } from 'leasehold/outbox'

export async function replayTimeouts(db: Database, principal: string) {
  // begin
  const filter = { status: 'DEAD', type: 'order.paid', error: 'timeout' } as const
  const { matched } = await replay(db, { filter, dryRun: true })
  const done = await replay(db, { filter, rate: 100, principal, reason: 'the receiver is back' })
  // end
  return { matched, done }
}

export async function publishNow(db: Database, id: string, principal: string) {
  // begin
  const { changed } = await retryNow(db, { ids: [id], principal, reason: 'the broker is back' })
  // end
  return changed
}

export async function goOnWithout(db: Database, orderingKey: string, principal: string) {
  // begin
  const { parked } = await unblock(db, { orderingKey, principal, reason: 'booked by hand' })
  // end
  return parked
}
