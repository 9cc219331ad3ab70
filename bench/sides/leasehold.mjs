// Leasehold through its public API: a relay with in-process handlers, as `startRuntime` runs it.
import { loadFrom } from '../builds.mjs'
import { clientProducer, prepared } from '../producer.mjs'
import { STUCK_KEY } from '../scenarios.mjs'

const TYPES = { event: 'bench.happened', probe: 'bench.probe' }
const COLUMNS = '(event_type, payload, ordering_key)'

/**
 * `build`: the root of a checkout; `maxBatch`: of the publisher; `settings`: of the relay, its defaults unless given;
 * `buckets`: of the tables, one unless given. Producers call `outbox.enqueue`, or send a plain INSERT with `plainSql`.
 */
export function leasehold({ build, maxBatch, settings, buckets, plainSql = false, inTransaction }) {
  let modules
  return {
    schema: 'leasehold',
    table: 'leasehold.outbox',

    insert: ({ type, key, payload }) =>
      `insert into leasehold.outbox ${COLUMNS} values ('${TYPES[type]}', ${payload}, ${key})`,

    insertMany: ({ key, payload }) =>
      `insert into leasehold.outbox ${COLUMNS}
       select '${TYPES.event}', ${payload}, ${key} from generate_series(1, $1::int) as n order by n`,

    async openProducer({ url }) {
      const outbox = modules.createOutbox()
      const write = plainSql
        ? prepared(`insert into leasehold.outbox ${COLUMNS} values ($1, $2, $3)`, ({ key, payload }) => [
            TYPES.event,
            JSON.stringify(payload),
            key,
          ])
        : async (client, { key, payload }) =>
            outbox.enqueue(client, { type: TYPES.event, payload, orderingKey: key })
      return clientProducer(url, { inTransaction, write })
    },

    async load() {
      modules = {
        ...(await loadFrom(build, '.')),
        ...(await loadFrom(build, './outbox')),
        ...(await loadFrom(build, './publishers/handlers')),
      }
    },

    async migrate({ url }) {
      const { migrate, openDatabase } = modules
      const db = openDatabase({ url })
      await migrate(db, buckets === undefined ? {} : { buckets })
      await db.close()
    },

    async start({ url, handled, probed, claimed, wantsTimes, checksOrder = true }) {
      const { Events, handlers, relay, startRuntime } = modules
      const order = createOrderCheck()
      const publisher = handlers(
        {
          [TYPES.event]: async ({ id, orderingKey, createdAt, payload }) => {
            if (orderingKey === STUCK_KEY) throw new Error('the head of the stuck key always fails')
            if (checksOrder && orderingKey !== undefined) order.check(orderingKey, id)
            handled(createdAt, payload)
          },
          [TYPES.probe]: async () => probed(),
        },
        { maxBatch },
      )
      const events = new Events()
      if (wantsTimes) events.on('claimed', ({ durationMs }) => claimed(durationMs))
      const runtime = await startRuntime({
        databaseUrl: url,
        migrate: false,
        events,
        workers: [relay({ publisher, settings })],
      })
      return {
        async stop() {
          await runtime.stop()
          if (order.violations > 0) throw new Error(`${order.violations} events were published out of order`)
        },
      }
    },

    unsettled: `select exists (select from leasehold.outbox
      where status in ('PENDING', 'CLAIMED') and ordering_key is distinct from '${STUCK_KEY}') as unsettled`,

    /** Published without a failure and without an expired lease. */
    finished: `select count(*)::int as finished from leasehold.outbox
      where event_type = '${TYPES.event}' and status = 'PUBLISHED' and published_at is not null
        and attempts = 0 and expiries = 0`,
  }
}

/** Events of a key have to come in the order of their ids, where their transactions did not overlap. */
function createOrderCheck() {
  const lastIds = new Map()
  const check = {
    violations: 0,
    check(key, id) {
      const number = Number(id)
      if (number <= (lastIds.get(key) ?? 0)) check.violations += 1
      lastIds.set(key, number)
    },
  }
  return check
}
