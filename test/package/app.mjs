import * as core from 'leasehold'
import * as embedded from 'leasehold/embedded'
import * as outbox from 'leasehold/outbox'
import * as handlers from 'leasehold/publishers/handlers'
import * as server from 'leasehold/server'
import { run } from './scenario.cjs'

await run({ core, embedded, outbox, handlers, server })
