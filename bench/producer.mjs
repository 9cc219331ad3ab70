// A producer on one connection: each event is sent as an application would, and the call returns once it is stored.
import { createHash } from 'node:crypto'
import pg from 'pg'

/**
 * `write(client, event)` writes an event. With `inTransaction` it is called between BEGIN and COMMIT, as in the transaction
 * of a user; otherwise what it sends is a transaction of its own.
 */
export async function clientProducer(url, { inTransaction = true, write }) {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  return {
    async send(event) {
      if (inTransaction) await client.query('begin')
      await write(client, event)
      if (inTransaction) await client.query('commit')
    },
    async close() {
      await client.end()
    },
  }
}

/** Writes an event by one prepared statement. `values` takes its key and payload. */
export const prepared = (text, values) => async (client, event) =>
  client.query({ name: 'bench_send', text, values: values(event) })

const md5 = (text) => createHash('md5').update(text).digest('hex')

/** The same UUIDs as `keyExpression` makes for `many`. */
export function keysFor(kind, keyCount) {
  if (kind === 'none') return () => undefined
  if (kind === 'hot') return () => 'hot'
  const keys = Array.from({ length: keyCount }, (_, i) =>
    md5(String(i)).replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-'),
  )
  return () => keys[Math.floor(Math.random() * keys.length)]
}

const ITEM_BYTES = 55
const FIXED_BYTES = 70
const TEMPLATES = 500

/** Payloads of about so many bytes of JSON, of the same shape as those of `payloadExpression`. */
export function payloadsOf(bytes) {
  const items = Math.max(0, Math.floor((bytes - FIXED_BYTES) / ITEM_BYTES))
  const remark = Math.max(0, bytes - FIXED_BYTES - items * ITEM_BYTES)
  const templates = Array.from({ length: TEMPLATES }, (_, n) => ({
    remark: (md5(`${n}`) + md5(`${n + 1}`)).slice(0, remark),
    items: Array.from({ length: items }, (__, i) => ({
      sku: md5(`${n}/${i}`).slice(0, 12),
      price: 1_000 + ((n * 97) % 9_000),
      quantity: i % 10,
    })),
  }))
  let order = 0
  return () => {
    order += 1
    return { order, sentAt: epochMs(), ...templates[order % TEMPLATES] }
  }
}

/** Milliseconds since 1970 with fractions: processes of one machine compare it. */
export const epochMs = () => performance.timeOrigin + performance.now()
