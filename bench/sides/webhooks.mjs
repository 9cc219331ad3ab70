// Webhook deliveries: the dispatcher, as `startRuntime` runs it, and the loop that somebody would write instead: signed
// requests by undici, as many at once, without table, lease, retry, circuit breaker or address check.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const SECRET_KEY = Buffer.alloc(32, 7).toString('base64')
const TYPE = 'bench.happened'
const PAYLOAD = { order: 4711, customer: 'someone@example.com', lines: [{ sku: 'a-1', count: 2 }] }

const load = async (dist) => ({
  ...(await import(new URL('index.js', dist).href)),
  ...(await import(new URL('webhooks/index.js', dist).href)),
})

export function webhooks({ kind, ...options }) {
  return kind === 'bare' ? bareLoop(options) : dispatching(options)
}

/** `settings` are those of the worker. */
function dispatching({ dist, receiver, endpoints: endpointCount, concurrency, settings }) {
  let modules
  return {
    async load() {
      modules = await load(dist)
    },

    async migrate({ url, events: count }) {
      const { endpoints, LOOPBACK, migrate, openDatabase } = modules
      const db = openDatabase({ url, queryTimeoutMs: 600_000 })
      await migrate(db)
      const managed = endpoints(db, { secretKey: SECRET_KEY, network: { allow: LOOPBACK } })
      const endpoint = { url: receiver, concurrency: concurrency / endpointCount }
      for (let i = 0; i < endpointCount; i += 1) await managed.create(endpoint, { principal: 'bench' })
      await db.query({
        text: `select leasehold.send_webhook($1, $2) from generate_series(1, $3::int)`,
        values: [TYPE, PAYLOAD, count / endpointCount],
      })
      await db.close()
    },

    async start({ url, handled }) {
      const { dispatcher, Events, LOOPBACK, startRuntime } = modules
      const events = new Events()
      events.on('settled', ({ ids }) => {
        for (const _ of ids) handled()
      })
      let renewals = 0
      events.on('renewed', () => {
        renewals += 1
      })
      const runtime = await startRuntime({
        databaseUrl: url,
        migrate: false,
        events,
        workers: [dispatcher({ secretKey: SECRET_KEY, network: { allow: LOOPBACK }, settings })],
      })
      return {
        facts: () => ({ renewals }),
        stop: async () => runtime.stop(),
      }
    },

    unsettled: `select exists (select from leasehold.webhook_outbox where delivery_status = 'pending') as unsettled`,

    finished: `select count(*)::int as finished from leasehold.webhook_outbox
      where delivery_status = 'delivered' and attempts = 0 and expiries = 0 and lease_owner is null`,
  }
}

function bareLoop({ dist, receiver, concurrency }) {
  let modules
  return {
    async load() {
      const undici = pathToFileURL(createRequire(new URL('index.js', dist)).resolve('undici'))
      modules = {
        ...(await import(undici.href)),
        ...(await import(new URL('webhooks/signing/secret.js', dist).href)),
        ...(await import(new URL('webhooks/signing/sign.js', dist).href)),
      }
    },

    async migrate() {},

    async start({ events, handled }) {
      const { newSecret, Pool, signer, webhookHeaders } = modules
      const { origin, pathname: path } = new URL(receiver)
      const signers = [signer(newSecret('v1'))]
      const body = JSON.stringify({ type: TYPE, timestamp: new Date().toISOString(), data: PAYLOAD })
      const pool = new Pool(origin, { connections: concurrency })
      let next = 0
      const send = async () => {
        while (next < events) {
          next += 1
          const timestampSeconds = Math.floor(Date.now() / 1_000)
          const signed = webhookHeaders({
            id: crypto.randomUUID(),
            timestampSeconds,
            body,
            signers,
            attempt: 1,
          })
          const headers = { 'content-type': 'application/json', ...signed }
          const answer = await pool.request({ method: 'POST', path, headers, body })
          await answer.body.dump()
          if (answer.statusCode !== 204) throw new Error(`answered with HTTP ${answer.statusCode}`)
          handled()
        }
      }
      await Promise.all(Array.from({ length: concurrency }, send))
      return { stop: async () => pool.close() }
    },

    unsettled: 'select false as unsettled',
    finished: 'select $1::int as finished',
  }
}
