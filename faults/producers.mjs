// Producers: transactions that overlap on a few ordering keys, commit late, or roll back, and go on whatever happens.
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { enqueue } from '../dist/outbox/index.js'
import { randomFor } from './random.mjs'

const PRODUCERS = 3
const KEYS = 12
const RETRY_MS = 50

/**
 * Starts producers that write until they are stopped. What is acknowledged is recorded after the acknowledgement; if none
 * arrives, the outcome is unknown. `skew`: 1 uses all keys alike; the higher it is, the more events the first ones get.
 */
export function startProducers({ url, history, seed, options = {} }) {
  const {
    producers = PRODUCERS,
    keys = KEYS,
    skew = 1,
    lateMs = 400,
    pauseMs = 20,
    rollbacks = 0.15,
  } = options
  const stop = new AbortController()
  let transactions = 0

  async function produce(name) {
    const random = randomFor(seed, name)
    let client
    while (!stop.signal.aborted) {
      transactions += 1
      const tx = transactions
      let hasCommitted = false
      try {
        client ??= await connected(url)
        history.write({ type: 'begun', tx })
        await client.query('begin')
        for (let n = random.between(1, 4); n > 0; n -= 1) {
          const key = random.chance(0.2) ? undefined : `key-${1 + Math.floor(keys * random.next() ** skew)}`
          const event = {
            type: 'fault.event',
            payload: { tx },
            ...(key === undefined ? {} : { orderingKey: key }),
          }
          const { id, eventId } = await enqueue(client, event)
          history.write({ type: 'written', tx, row: id, eventId, key })
          await delay(random.between(0, 5))
        }
        if (random.chance(0.1)) await delay(random.between(0, lateMs))
        if (random.chance(rollbacks)) {
          await client.query('rollback')
          history.write({ type: 'rolledBack', tx })
        } else {
          hasCommitted = true
          await client.query('commit')
          history.write({ type: 'committed', tx })
        }
      } catch (error) {
        if (client !== undefined) {
          // An error of the COMMIT itself may be that of the connection. Before it, nothing can have been committed.
          history.write({ type: hasCommitted ? 'unknown' : 'rolledBack', tx, error })
          client.end().catch(() => {})
          client = undefined
        }
        await delay(RETRY_MS)
      }
      await delay(random.between(0, pauseMs))
    }
    await client?.end().catch(() => {})
  }

  const running = Promise.all(Array.from({ length: producers }, async (_, i) => produce(`producer-${i + 1}`)))
  return {
    async stop() {
      stop.abort()
      await running
    },
  }
}

async function connected(connectionString) {
  const client = new pg.Client({
    connectionString,
    application_name: 'producer',
    connectionTimeoutMillis: 5_000,
    query_timeout: 8_000,
  })
  client.on('error', () => {})
  await client.connect()
  return client
}
