// What an operator of webhooks does, from a program. docs/guides/webhooks.md shows what is between the marks; a test compares
// the two and runs this file.
import type { Database } from 'leasehold'
import { cancel, listDeliveries, replay, showDelivery } from 'leasehold/webhooks'

export async function bringBack(db: Database, endpoint: string, since: Date, principal: string) {
  // begin
  const { deliveries } = await listDeliveries(db, { status: 'failed', endpoint, error: 'timeout' })
  const reason = 'the receiver is back'
  const first = await replay(db, { ids: deliveries.slice(0, 1).map(({ id }) => id), principal, reason })
  const filter = { failedSince: since, endpoint }
  const { matched } = await replay(db, { filter, dryRun: true })
  const rest = await replay(db, { filter, rate: 50, principal, reason })
  // end
  return { first, matched, rest }
}

export async function giveUp(db: Database, endpoint: string, principal: string) {
  // begin
  const { changed, counts } = await cancel(db, {
    filter: { endpoint, type: 'order.test' },
    principal,
    reason: 'sent by mistake',
  })
  // end
  return { changed, counts }
}

export async function whatHappened(db: Database, id: string) {
  const { history } = await showDelivery(db, id)
  return history.map(({ errorCode }) => errorCode)
}
