/** The reference example as a deployment: a dedicated reconciler process and an API. */
import { hostname } from 'node:os'
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import {
  addRequests,
  logOf,
  openRequests,
  paymentExample,
  shown,
  statuses,
} from '../../test/support/payment-example.ts'
import { type TestProcess, useProcesses } from '../../test/support/processes.ts'
import { openDatabase } from '../postgres/database.ts'

const { url } = useDatabase()
const example = paymentExample(useProcesses(), url)
const db = openDatabase({ url })
/** Bounds a hang only. */
const POLL = { timeout: 280_000, interval: 50 }

beforeAll(async () => example.migrate())
beforeEach(async () =>
  db.query({ text: 'truncate app.payment_requests, leasehold.outbox, leasehold.workers' }),
)
afterAll(async () => db.close())

/** Only after a failure there is one left, which would work on the rows of the next test. */
function untilEnd(process: TestProcess): TestProcess {
  onTestFinished(async () => void (await process.kill('SIGKILL')))
  return process
}

async function decided(): Promise<void> {
  await vi.waitFor(async () => expect(await openRequests(db)).toBe(0), POLL)
}

/** It can have worked before it says that it is up; told to end then, it never says so. */
async function end(process: TestProcess): Promise<void> {
  await process.line((line) => line.startsWith('  HTTP'))
  expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
}

/** The heartbeat registers a process; its workers do not wait for that. */
async function registered(worker: { readonly id: string; readonly roles: readonly string[] }): Promise<void> {
  const text = 'select id, roles from leasehold.workers'
  await vi.waitFor(async () => expect((await db.query({ text })).rows).toEqual([worker]), POLL)
}

interface Request {
  readonly id: string
  readonly status: string
}

async function post(http: string, path: string, body: object = {}): Promise<Response> {
  return fetch(`${http}${path}`, { method: 'POST', body: JSON.stringify(body) })
}

async function created(http: string, expiresInMs = 900_000): Promise<Request> {
  const answer = await post(http, '/payment-requests', { amount: 5, expiresInMs })
  expect(answer.status).toBe(201)
  // It is the example's own answer.
  return (await answer.json()) as Request
}

async function fetched(http: string, id: string): Promise<Request> {
  return (await (await fetch(`${http}/payment-requests/${id}`)).json()) as Request
}

describe('leasehold work --only reconcile', () => {
  it('REC-01 REC-11 REC-16: reconciles as a process of its own, and logs its worker id, which is the host, the process id and a random part, its poll interval and lease duration', async () => {
    await addRequests(db, 50)
    const reconciler = untilEnd(example.work('reconcile', {}, ['--lease-ms', '20000']))
    await decided()
    await end(reconciler)
    const { confirmed = 0, expired = 0 } = await statuses(db)
    expect(confirmed + expired).toBe(50)
    const worker = await shown(reconciler, 'Worker id')
    const process = `${hostname()}-${reconciler.pid}-`
    expect(worker.startsWith(process)).toBe(true)
    expect(worker.slice(process.length)).toMatch(/^[0-9a-f]{12}$/)
    const of = {
      worker,
      role: 'reconcile',
      table: 'app.payment_requests',
      pollMs: 50,
      leaseMs: 20_000,
    }
    expect(logOf(reconciler).filter(({ role }) => role !== undefined)).toMatchObject([
      { ...of, msg: 'started' },
      { ...of, msg: 'stopped' },
    ])
  })

  it('REC-16: the worker id is set by a flag, before the environment: leases, the registry and the log have it', async () => {
    const id = 'payments.1@fra:a'
    await addRequests(db, 5)
    // They are observed until the chain has an answer, which it has not for an hour.
    const patient = { CHAIN_LATENCY_MS: '3600000', RECONCILE_TIMEOUT_MS: '3600000' }
    const env = { LEASEHOLD_WORKER_ID: 'from-environment', ...patient }
    const reconciler = untilEnd(example.work('reconcile', env, ['--worker-id', id]))
    const owners = `select distinct split_part(reconcile_lease_owner, '#', 1) as owner from app.payment_requests`
    await vi.waitFor(
      async () => expect((await db.query({ text: owners })).rows).toEqual([{ owner: id }]),
      POLL,
    )
    expect(await shown(reconciler, 'Worker id')).toBe(id)
    await registered({ id, roles: ['reconcile'] })
    await vi.waitFor(
      () => expect(logOf(reconciler).find(({ msg }) => msg === 'started')).toMatchObject({ worker: id }),
      POLL,
    )
    await reconciler.kill('SIGKILL')
  })

  it('REC-16, REC-13: a worker id that cannot be an owner ends the process at its start with the setting and the rule', async () => {
    const reconciler = untilEnd(example.work('reconcile', { LEASEHOLD_WORKER_ID: 'a#1' }))
    expect(await reconciler.exited).toMatchObject({ code: 1 })
    expect(reconciler.output().stderr).toContain(
      "workerId (LEASEHOLD_WORKER_ID) is 'a#1', but must be at most 64 letters, digits and the characters . _ : @ -",
    )
  })

  it('REC-12: logs summaries with counts of claimed, scanned, each status, skipped and errors', async () => {
    await addRequests(db, 200)
    // Nine in ten are paid. The chain fails for some of them at first.
    const reconciler = untilEnd(example.work('reconcile', { CHAIN_FAILURES: '0.2', CHAIN_NONSENSE: '0.2' }))
    await decided()
    await end(reconciler)
    const cycles = logOf(reconciler).filter(({ msg }) => msg === 'reconcile summary')
    const names = ['claimed', 'scanned', 'detected', 'expired', 'confirmed', 'skipped', 'errors']
    for (const cycle of cycles)
      expect(cycle).toMatchObject(
        Object.fromEntries(names.map((name) => [name, expect.any(Number) as number])),
      )
    const sum = (name: string): number => cycles.reduce((total, cycle) => total + Number(cycle[name]), 0)
    const { confirmed = 0, expired = 0 } = await statuses(db)
    expect([sum('confirmed'), sum('expired'), sum('detected'), sum('skipped')]).toEqual([
      confirmed,
      expired,
      confirmed,
      0,
    ])
    expect(sum('errors')).toBeGreaterThan(0)
    // Every observation ended with a transition or an error.
    expect(sum('scanned')).toBe(confirmed + expired + confirmed + sum('errors'))
    expect(sum('claimed')).toBeGreaterThanOrEqual(sum('scanned'))
  })

  it('REC-15: the lease columns hold only a worker id with its token, a time and a count', async () => {
    await addRequests(db, 1)
    const secret = Buffer.alloc(32, 7).toString('base64')
    const slow = { CHAIN_LATENCY_MS: '600000', LEASEHOLD_SECRET_KEY: secret }
    const reconciler = untilEnd(example.work('reconcile', slow, ['--shutdown-timeout-ms', '100']))
    const worker = await shown(reconciler, 'Worker id')
    const lease = async (): Promise<unknown> =>
      (
        await db.query({
          text: `select regexp_replace(reconcile_lease_owner, '#[0-9]+$', '') as owner,
              reconcile_lease_owner ~ '#[0-9]+$' as token, reconcile_lease_until > now() as until
            from app.payment_requests`,
        })
      ).rows[0]
    await vi.waitFor(
      async () => expect(await lease()).toEqual({ owner: worker, token: true, until: true }),
      POLL,
    )
    const added = await db.query<{ name: string; type: string }>({
      text: `select attname::text as name, format_type(atttypid, atttypmod) as type from pg_attribute
        where attrelid = 'app.payment_requests'::regclass and starts_with(attname::text, 'reconcile_lease') and not attisdropped`,
    })
    expect(added.rows).toEqual([
      { name: 'reconcile_lease_owner', type: 'text' },
      { name: 'reconcile_lease_until', type: 'timestamp with time zone' },
      { name: 'reconcile_lease_expiries', type: 'integer' },
    ])
    expect(worker).not.toContain(secret)
    expect(worker).not.toContain(new URL(url).password || 'no password')
    await end(reconciler)
    expect(await lease()).toEqual({ owner: null, token: null, until: null })
  })

  it.each([
    ['RECONCILE_POLL_MS is no number', { RECONCILE_POLL_MS: 'soon' }, [], 'RECONCILE_POLL_MS is "soon"'],
    ['pollMs is too small', { RECONCILE_POLL_MS: '1' }, [], /'reconcile'.*pollMs is 1/],
    ['RECONCILE_EVERY_MS is none', { RECONCILE_EVERY_MS: '0' }, [], 'RECONCILE_EVERY_MS is "0"'],
    [
      'heartbeatMs is no less than a third',
      {},
      ['--lease-ms', '9000', '--heartbeat-ms', '3000'],
      'heartbeatMs',
    ],
  ])('REC-13: does not start when %s, and says so', async (_, env, args, message) => {
    const reconciler = untilEnd(example.work('reconcile', env, args))
    expect(await reconciler.exited).toEqual({ code: 1, signal: null })
    expect(reconciler.output().stderr).toMatch(message)
    expect(reconciler.output().stdout).toBe('')
  })

  it('REC-13: does not start on a table without its lease, and says what to run', async () => {
    await db.query({ text: 'alter table app.payment_requests rename column reconcile_lease_until to old' })
    onTestFinished(
      async () =>
        void (await db.query({
          text: 'alter table app.payment_requests rename column old to reconcile_lease_until',
        })),
    )
    const reconciler = untilEnd(example.work('reconcile'))
    expect(await reconciler.exited).toEqual({ code: 1, signal: null })
    expect(reconciler.output().stderr).toContain(
      'Run: ALTER TABLE app.payment_requests ADD COLUMN reconcile_lease_until timestamp with time zone;',
    )
  })
})

describe('the API', () => {
  it('REC-10: works with the reconciler off, and its rows are reconciled once one is started', async () => {
    const api = untilEnd(example.api())
    const http = await shown(api, 'HTTP')
    expect((await fetch(`${http}/readyz`)).status).toBe(200)
    const [kept, cancelled] = [await created(http, 0), await created(http)]
    expect(kept.status).toBe('pending')
    expect((await post(http, `/payment-requests/${cancelled.id}/cancel`)).status).toBe(200)
    expect((await post(http, `/payment-requests/${cancelled.id}/cancel`)).status).toBe(409)
    expect(await fetched(http, cancelled.id)).toMatchObject({ status: 'expired' })
    expect((await fetch(`${http}/payment-requests/${kept.id.replace(/^../, 'zz')}`)).status).toBe(404)
    expect(await fetched(http, kept.id)).toMatchObject({ status: 'pending' })
    expect((await post(http, '/payment-requests', { amount: -1 })).status).toBe(400)

    const reconciler = untilEnd(example.work('reconcile'))
    await decided()
    await end(reconciler)
    expect(['confirmed', 'expired']).toContain((await fetched(http, kept.id)).status)
    await end(api)
  })

  it('REC-02: reconciles in its own process when it is configured to', async () => {
    const api = untilEnd(example.api({ RECONCILER: 'embedded' }))
    const http = await shown(api, 'HTTP')
    const worker = await shown(api, 'Worker id')
    await registered({ id: worker, roles: ['reconcile', 'reaper'] })
    const { id } = await created(http, 0)
    await decided()
    expect(['confirmed', 'expired']).toContain((await fetched(http, id)).status)
    await end(api)
  })

  it('REC-04: a status that it changes during an observation is never overwritten, and counts as skipped', async () => {
    await addRequests(db, 1)
    const api = untilEnd(example.api())
    const http = await shown(api, 'HTTP')
    const reconciler = untilEnd(example.work('reconcile', { CHAIN_LATENCY_MS: '3000' }))
    const { rows } = await db.query<Request>({ text: 'select id from app.payment_requests' })
    const id = rows[0]?.id ?? ''
    const held = 'select from app.payment_requests where reconcile_lease_owner is not null'
    await vi.waitFor(async () => expect((await db.query({ text: held })).rows).toHaveLength(1), POLL)
    expect((await post(http, `/payment-requests/${id}/cancel`)).status).toBe(200)
    const skipped = (): number =>
      logOf(reconciler).reduce(
        (sum, { msg, skipped: count }) => sum + (msg === 'reconcile summary' ? Number(count) : 0),
        0,
      )
    await vi.waitFor(() => expect(skipped()).toBe(1), POLL)
    expect((await db.query({ text: held })).rows).toEqual([])
    expect(await fetched(http, id)).toMatchObject({ status: 'expired', tx_hash: null })
    expect((await db.query({ text: 'select from leasehold.outbox' })).rows).toEqual([])
    await end(reconciler)
    await end(api)
  })
})
