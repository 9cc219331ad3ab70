// PgQue, installed from the SQL file that PGQUE_SQL names: a log that is read in batches, in the order of commits. A tick
// ends a batch, one consumer reads it and acknowledges all of it. The process of the consumer is also the ticker.
import { readFile } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { withClient } from '../client.mjs'
import { clientProducer, prepared } from '../producer.mjs'

const QUEUE = 'event'
const CONSUMER = 'bench'
/** A batch of the drain, as the ticker would make them by default. */
const EVENTS_PER_TICK = 500
const WHOLE_BATCH = 2_147_483_647
const DEFAULT_TICK_MS = 10

/** `tickMs`: how often the ticker looks for new events. */
export function pgque({ tickMs = DEFAULT_TICK_MS }) {
  return {
    schema: 'pgque',
    table: 'pgque.event_1_0',

    insert: ({ type, payload }) => `perform pgque.send('${QUEUE}', '${type}', (${payload})::text);
    if n % ${EVENTS_PER_TICK} = 0 then
      commit;
      perform pgque.ticker('${QUEUE}');
    end if`,

    insertMany: ({ payload }) =>
      `select cardinality(pgque.send_batch('${QUEUE}', 'event', array(
        select (${payload})::text from generate_series(1, $1::int) as n)))`,

    async migrate({ url }) {
      const install = await readFile(process.env.PGQUE_SQL, 'utf8')
      await withClient(url, async (client) => {
        await client.query(install)
        await client.query('select pgque.create_queue($1)', [QUEUE])
        // A tick whenever there is an event that no tick covers.
        await client.query(`select pgque.set_queue_config($1, 'ticker_max_count', '1')`, [QUEUE])
        await client.query(`select pgque.set_queue_config($1, 'ticker_max_lag', '1 microsecond')`, [QUEUE])
        await client.query('select pgque.subscribe($1, $2)', [QUEUE, CONSUMER])
      })
    },

    openProducer: async ({ url }) =>
      clientProducer(url, {
        write: prepared('select pgque.send($1, $2, $3::text)', ({ payload }) => [
          QUEUE,
          'event',
          JSON.stringify(payload),
        ]),
      }),

    async start({ url, handled, probed }) {
      const [ticker, consumer] = [new pg.Client(url), new pg.Client(url)]
      await Promise.all([ticker.connect(), consumer.connect()])
      const stopping = new AbortController()
      const { signal } = stopping
      let wake = () => {}
      const ticking = (async () => {
        while (!signal.aborted) {
          const { rows } = await ticker.query({
            name: 'tick',
            text: 'select pgque.ticker($1) as tick',
            values: [QUEUE],
          })
          if (rows[0].tick !== null) wake()
          await delay(tickMs)
        }
      })()
      const consuming = (async () => {
        while (!signal.aborted) {
          const woken = new Promise((resolve) => {
            wake = resolve
          })
          const { rows } = await consumer.query({
            name: 'receive',
            text: 'select batch_id, type, payload, created_at from pgque.receive($1, $2, $3)',
            values: [QUEUE, CONSUMER, WHOLE_BATCH],
          })
          if (rows.length === 0) {
            if (!signal.aborted) await Promise.race([woken, delay(tickMs)])
            continue
          }
          for (const { type, payload, created_at: createdAt } of rows) {
            if (type === 'probe') probed()
            else handled(createdAt, JSON.parse(payload))
          }
          await consumer.query({ name: 'ack', text: 'select pgque.ack($1)', values: [rows[0].batch_id] })
        }
      })()
      const failed = (error) => {
        throw error
      }
      ticking.catch(failed)
      consuming.catch(failed)
      return {
        async stop() {
          stopping.abort()
          wake()
          await Promise.all([ticking, consuming])
          await Promise.all([ticker.end(), consumer.end()])
        },
      }
    },

    unsettled: 'select exists (select from pgque.subscription where sub_batch is not null) as unsettled',

    finished: `select $1::int - coalesce(sum(pending_events), 0)::int as finished
      from pgque.get_consumer_info('${QUEUE}', '${CONSUMER}')`,
  }
}
