// Leasehold through its public API: a relay with in-process handlers, as `startRuntime` runs it, with default settings.
import { readyToCount } from '../clock.mjs'

const TYPE = 'bench.happened'
/** The key whose head never succeeds. */
const STUCK = 'stuck'

const KEYED = "'key-' || n % ($1::int / 20)"

/** What stands in the outbox before the clock starts, by scenario: in this order, so many, with this key. */
const WRITES = {
  drain: [{ by: 'insert', key: 'null::text', share: 1 }],
  /** Twenty events to each key, and those of a key far apart. */
  ordered: [{ by: 'insert', key: KEYED, share: 1 }],
  poisonNone: [{ by: 'insert', key: KEYED, share: 0.5 }],
  /** The stuck ones were written first, as producers do. */
  poisonOne: [
    { by: 'enqueue', key: STUCK, share: 0.5 },
    { by: 'insert', key: KEYED, share: 0.5 },
  ],
  /** The same by plain INSERT: nobody has yet found out that they have to wait, and the relay does it on the clock. */
  poisonInserted: [
    { by: 'insert', key: `'${STUCK}'`, share: 0.5 },
    { by: 'insert', key: KEYED, share: 0.5 },
  ],
}

/** As many as `enqueue` takes in one statement. */
const ENQUEUED_AT_ONCE = 10_000

export function leasehold({ dist, scenario }) {
  const load = async () => ({
    ...(await import(new URL('index.js', dist).href)),
    ...(await import(new URL('outbox/index.js', dist).href)),
    ...(await import(new URL('publishers/handlers.js', dist).href)),
  })
  const measured = (rows) => (scenario.startsWith('poison') ? rows / 2 : rows)

  return {
    measured,

    async prepare({ url, rows }) {
      const { enqueue, migrate, openDatabase } = await load()
      const db = openDatabase({ url, queryTimeoutMs: 600_000 })
      await migrate(db)
      for (const { by, key, share } of WRITES[scenario]) {
        const count = rows * share
        if (by === 'insert') {
          const text = `insert into leasehold.outbox (event_type, payload, ordering_key)
            select '${TYPE}', jsonb_build_object('n', n), ${key} from generate_series(1, $1::int) as n order by n`
          await db.query({ text, values: [count] })
          continue
        }
        for (let from = 0; from < count; from += ENQUEUED_AT_ONCE) {
          const length = Math.min(ENQUEUED_AT_ONCE, count - from)
          const events = Array.from({ length }, (_, i) => ({
            type: TYPE,
            payload: { n: from + i + 1 },
            orderingKey: key,
          }))
          await db.transaction(async (tx) => enqueue(tx, events))
        }
      }
      await db.close()
    },

    async drain({ url, rows, clock }) {
      const { handlers, relay, startRuntime } = await load()
      const counter = await readyToCount(clock, measured(rows), {
        url,
        unsettled: `select exists (select from leasehold.outbox where bucket = 0 and status = 'CLAIMED'
            and id = any (array(select unnest(rows) from leasehold.outbox_claims where bucket = 0))
            and ordering_key is distinct from '${STUCK}')
          or exists (select from leasehold.outbox where bucket = 0 and available_at is not null and not behind
            and id = any (array(select unnest(rows) from leasehold.outbox_bundles where bucket = 0))
            and ordering_key is distinct from '${STUCK}') as unsettled`,
      })
      const publisher = handlers({
        [TYPE]: async ({ orderingKey }) => {
          if (orderingKey === STUCK) throw new Error('it never succeeds')
          counter.handled()
        },
      })
      clock.start()
      const runtime = await startRuntime({
        databaseUrl: url,
        migrate: false,
        workers: [relay({ publisher })],
      })
      await counter.settled
      clock.stop()
      await runtime.stop()
    },

    /** How many rows are where they belong: published, under their first token, in their history. */
    finished: `select count(*)::int as finished from leasehold.outbox
      where status = 'PUBLISHED' and published_at is not null and lock_token = 1 and attempts = 0`,
  }
}
