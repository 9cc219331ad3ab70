import { relay } from 'leasehold/outbox'
import { webhooksPublisher } from 'leasehold/publishers/webhooks'
import { dispatcher } from 'leasehold/webhooks'

const publisher = webhooksPublisher({
  connectionString: process.env.DATABASE_URL,
  types: ['order.*', 'invoice.*'],
  tenant: ({ headers }) => headers.tenant ?? '',
})

export default {
  workers: [
    relay({ publisher }),
    dispatcher({ circuitBreaker: { failureThreshold: 10 }, settings: { concurrency: 512 } }),
  ],
}
