import { relay } from 'leasehold/outbox'
import { webhooksPublisher } from 'leasehold/publishers/webhooks'
import { syncBlocks } from './blocks.mjs'
import { reconcilePayments } from './payments.mjs'
import { databaseUrlOf } from './settings.mjs'

const databaseUrl = databaseUrlOf()

/** `leasehold work --only reconcile` runs one of these; the dispatcher is there where there is a LEASEHOLD_SECRET_KEY. */
export default {
  workers: [
    relay({ publisher: webhooksPublisher({ connectionString: databaseUrl, types: ['payment.*'] }) }),
    ...syncBlocks(databaseUrl),
    reconcilePayments(),
  ],
}
