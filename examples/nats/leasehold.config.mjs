import { relay } from 'leasehold/outbox'
import { natsPublisher } from 'leasehold/publishers/nats'

const publisher = natsPublisher({ connect: { servers: '127.0.0.1:4222' }, prefix: 'shop.' })

export default { workers: [relay({ publisher })] }
