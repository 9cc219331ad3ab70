// Handles the events of committed orders. Any number of these processes may run.
import { once } from 'node:events'
import { openDatabase, startRuntime } from 'leasehold'
import { relay } from 'leasehold/outbox'
import { handlers } from 'leasehold/publishers/handlers'

const { DATABASE_URL } = process.env
const db = openDatabase({ url: DATABASE_URL })

// An event can arrive twice, so what its handler does must be repeatable.
const publisher = handlers({
  'order.placed': async ({ payload: { order } }) => {
    await db.query({
      text: 'update orders set confirmed_at = coalesce(confirmed_at, now()) where id = $1',
      values: [order],
    })
    console.log(`order ${order} is confirmed`)
  },
})
const runtime = await startRuntime({
  databaseUrl: DATABASE_URL,
  migrate: true,
  workers: [relay({ publisher })],
})

await Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])
await runtime.stop()
await db.close()
