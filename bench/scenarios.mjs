// What is written into the outbox before or during a drain, and in which state of the database.

/**
 * - `keys`: `none`; `many` (random choice among `--keys`); `hot` (all events share one key)
 * - `written`: `one by one` (a transaction for each event), `bulk` (one INSERT), or `live` (one by one at
 *   `--live-rate` while the relay drains)
 * - `stuck`: as many events again, written first, wait for the head of their key, which always fails
 * - `heldSnapshot`: another session holds a snapshot from before the first event, so nothing can be vacuumed
 * - `relativeTo`: the scenario whose rate this one is compared with, within the same side and round
 */
export const SCENARIOS = {
  unkeyed: { title: 'no key', keys: 'none', written: 'one by one' },
  keyed: { title: 'many keys', keys: 'many', written: 'one by one', relativeTo: 'unkeyed' },
  stuck: {
    title: 'many keys beside a stuck key',
    keys: 'many',
    written: 'one by one',
    stuck: true,
    relativeTo: 'keyed',
  },
  hot: { title: 'one hot key', keys: 'hot', written: 'one by one', relativeTo: 'unkeyed' },
  bulk: { title: 'no key, bulk INSERT', keys: 'none', written: 'bulk', relativeTo: 'unkeyed' },
  held: { title: 'held snapshot, no key', keys: 'none', written: 'one by one', heldSnapshot: true },
  'held-keyed': {
    title: 'held snapshot, many keys',
    keys: 'many',
    written: 'one by one',
    heldSnapshot: true,
  },
  'held-hot': { title: 'held snapshot, one hot key', keys: 'hot', written: 'one by one', heldSnapshot: true },
  'held-live': {
    title: 'held snapshot, no key, written during the drain',
    keys: 'none',
    written: 'live',
    heldSnapshot: true,
  },
  'held-live-keyed': {
    title: 'held snapshot, many keys, written during the drain',
    keys: 'many',
    written: 'live',
    heldSnapshot: true,
  },
}

/** The scenarios under a held snapshot take long and are run by name. */
export const DEFAULT_SCENARIOS = ['unkeyed', 'keyed', 'stuck', 'hot', 'bulk']

export const STUCK_KEY = 'stuck'
export const HOT_KEY = 'hot'

/** The SQL expression of an event's key, from its number `n`. Keys are UUIDs, as the ids of aggregates are. */
export function keyExpression(kind, keyCount) {
  switch (kind) {
    case 'none':
      return 'null::text'
    case 'many':
      return `md5((abs(hashint4(n)::bigint) % ${keyCount})::text)::uuid::text`
    case 'hot':
      return `'${HOT_KEY}'`
    case 'stuck':
      return `'${STUCK_KEY}'`
    default:
      throw new Error(`there are no keys of the kind ${kind}`)
  }
}

const ITEM_BYTES = 55
const EMPTY_ORDER_BYTES = 50

/**
 * The SQL expression of a payload of about so many bytes of JSON, from the event's number `n`: an order with items, about
 * as compressible as such documents are. A repeated letter would compress to nothing wherever payloads are compressed.
 */
export function payloadExpression(bytes) {
  const items = Math.max(0, Math.floor((bytes - EMPTY_ORDER_BYTES) / ITEM_BYTES))
  const remark = Math.max(0, bytes - EMPTY_ORDER_BYTES - items * ITEM_BYTES)
  return `jsonb_build_object('order', n, 'remark', left(md5(n::text) || md5((n + 1)::text), ${remark}), 'items',
    coalesce((select jsonb_agg(jsonb_build_object('sku', left(md5(n || '/' || i), 12), 'price', 1000 + n % 9000, 'quantity', i % 10))
      from generate_series(1, ${items}) as i), '[]'))`
}
