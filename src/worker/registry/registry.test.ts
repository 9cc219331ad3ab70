import { hostname } from 'node:os'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openDatabase, type Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { sumCounters } from './counters.ts'
import {
  describeWorker,
  forgetAudit,
  forgetWorkers,
  listWorkers,
  presence,
  unreapedTables,
  type PresenceRow,
  type WorkerInfo,
  stopped,
} from './registry.ts'

useQuietProcess()
const database = useDatabase()
let db: Database

beforeAll(() => {
  db = openDatabase({ url: database.url })
})

afterAll(async () => {
  await db.close()
})

beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.workers' })
})

async function backendOf(on: Queryable): Promise<number> {
  const { rows } = await on.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' })
  return rows[0]?.pid ?? 0
}

async function appear(worker: WorkerInfo, inFlight = 0, backendPid?: number): Promise<boolean | undefined> {
  const { rows } = await db.query<PresenceRow>(presence('leasehold', worker, inFlight, backendPid))
  return rows[0]?.had_died
}

async function change(set: string, id: string): Promise<void> {
  await db.query({ text: `update leasehold.workers set ${set} where id = $1`, values: [id] })
}

describe('the description of a worker', () => {
  it('RULE-020-032: has a unique id, which says where the process runs', () => {
    const ids = Array.from({ length: 1_000 }, () => describeWorker(['outbox']).id)
    expect(new Set(ids).size).toBe(1_000)
    for (const id of ids) expect(id).toMatch(/^.+-\d+-[0-9a-f]{12}$/)
    expect(ids[0]?.startsWith(`${hostname()}-${process.pid}-`)).toBe(true)
  })

  it('has host, pid, version, roles and the tables it reaps, and a given id', () => {
    const reaps = ['leasehold.outbox']
    expect(describeWorker(['outbox', 'reaper'], { id: 'relay 1', reaps })).toEqual({
      id: 'relay 1',
      host: hostname(),
      pid: process.pid,
      version: expect.stringMatching(/^\d+\.\d+\.\d+/),
      roles: ['outbox', 'reaper'],
      reaps,
    })
  })

  it.each(['', '  ', 'relay#1'])('is refused for the id %j, with the value', (id) => {
    expect(() => describeWorker([], { id })).toThrow(
      expect.objectContaining({
        code: 'SETTING_INVALID',
        message: expect.stringContaining(JSON.stringify(id)),
      }),
    )
  })
})

describe('presence', () => {
  const worker = describeWorker(['outbox', 'reaper'])

  it('registers the process the first time, and updates it from then on', async () => {
    expect(await appear(worker, 3)).toBe(false)
    const [first] = await listWorkers(db, 'leasehold')
    expect(first).toMatchObject({ ...worker, state: 'alive', inFlight: 3, stoppedAt: null, diedAt: null })
    expect(await appear({ ...worker, roles: ['outbox'] }, 7)).toBe(false)
    const [second, ...others] = await listWorkers(db, 'leasehold')
    expect(others).toEqual([])
    expect(second).toMatchObject({ inFlight: 7, roles: ['outbox'], startedAt: first?.startedAt })
    expect(second?.lastSeenAt.getTime()).toBeGreaterThan(first?.lastSeenAt.getTime() ?? Infinity)
  })

  it('stores which table each of its workers processes, and the role of the worker', async () => {
    const serves = { payments: { table: 'app.payments', role: 'reconcile' } }
    await appear(describeWorker(['payments'], { id: 'one', serves }))
    expect((await listWorkers(db, 'leasehold')).map((row) => row.serves)).toEqual([serves])
    await appear(describeWorker(['reaper'], { id: 'one' }))
    expect((await listWorkers(db, 'leasehold')).map((row) => row.serves)).toEqual([{}])
  })

  it('stores which workers do not claim, and why, until the process reports otherwise or stops', async () => {
    const paused = [
      {
        worker: 'outbox',
        table: 'leasehold.outbox',
        reason: 'unhealthy' as const,
        since: '2026-11-16T06:00:00.000Z',
        error: 'no answer',
      },
    ]
    const shown = async (): Promise<unknown> => (await listWorkers(db, 'leasehold'))[0]?.paused
    await db.query(presence('leasehold', worker, 0, undefined, paused))
    expect(await shown()).toEqual(paused)
    await appear(worker)
    expect(await shown()).toEqual([])
    await db.query(presence('leasehold', worker, 0, undefined, paused))
    await db.query(stopped('leasehold', worker.id))
    expect(await shown()).toEqual([])
  })

  it('stores the session and its start where the server confirms it', async () => {
    await db.transaction(async (tx) => {
      const pid = await backendOf(tx)
      await tx.query(presence('leasehold', worker, 0, pid))
      const { rows } = await tx.query({
        text: `select session_pid = pg_backend_pid() as pid, session_start = backend_start as start
               from leasehold.workers, pg_stat_activity where pg_stat_activity.pid = pg_backend_pid()`,
      })
      expect(rows).toEqual([{ pid: true, start: true }])
    })
    expect(await listWorkers(db, 'leasehold')).toMatchObject([{ sessionVisible: true }])
  })

  it('stores no session through a pooler, which names another backend than the one that answers', async () => {
    await db.transaction(async (tx) => {
      await tx.query(presence('leasehold', worker, 0, await backendOf(tx)))
      await tx.query(presence('leasehold', worker, 0, 2_000_000_000))
    })
    expect(await listWorkers(db, 'leasehold')).toMatchObject([{ state: 'alive', sessionVisible: false }])
    await appear(worker)
    expect(await listWorkers(db, 'leasehold')).toMatchObject([{ state: 'alive', sessionVisible: false }])
  })

  it('stores its own session for a role that may not see the sessions of others', async () => {
    const role = `${database.name.slice(0, 40)}_modest`
    await db.query({ text: `create role ${role} login password 'modest'` })
    await db.query({ text: `grant usage on schema leasehold to ${role}` })
    await db.query({ text: `grant select, insert, update on leasehold.workers to ${role}` })
    const url = new URL(database.url)
    url.username = role
    url.password = 'modest'
    const modest = openDatabase({ url: url.href, maxConnections: 1 })
    const pid = await backendOf(modest)
    await modest.query(presence('leasehold', worker, 0, pid))
    await modest.close()
    const { rows } = await db.query({ text: 'select session_pid, session_start from leasehold.workers' })
    expect(rows).toEqual([{ session_pid: pid, session_start: expect.any(Date) }])
    await db.query({ text: `drop owned by ${role}` })
    await db.query({ text: `drop role ${role}` })
  })

  it('RULE-020-052: tells a process once that it had been declared dead', async () => {
    await appear(worker)
    await change('missing_since = now(), died_at = now()', worker.id)
    expect(await listWorkers(db, 'leasehold')).toMatchObject([{ state: 'dead' }])
    expect(await appear(worker)).toBe(true)
    expect(await listWorkers(db, 'leasehold')).toMatchObject([{ state: 'alive', diedAt: null }])
    expect(await appear(worker)).toBe(false)
  })

  it('answers with the number of living processes of each role', async () => {
    const others = [['outbox', 'reaper'], ['outbox'], ['outbox', 'webhooks'], ['outbox'], ['outbox']]
    const [stops, dies, vanishes] = others.map((roles) => describeWorker(roles))
    for (const roles of others) await appear(describeWorker(roles))
    for (const ended of [stops, dies, vanishes]) if (ended !== undefined) await appear(ended)
    await db.query(stopped('leasehold', stops?.id ?? ''))
    await change('died_at = now()', dies?.id ?? '')
    await change(`last_seen_at = now() - interval '1 minute'`, vanishes?.id ?? '')
    const asked = async (): Promise<unknown> =>
      (await db.query<PresenceRow>(presence('leasehold', worker, 0, undefined))).rows[0]?.processes
    expect(await asked()).toEqual({ outbox: 5, reaper: 1, webhooks: 1 })
    // From its second presence on it counts itself.
    expect(await asked()).toEqual({ outbox: 6, reaper: 2, webhooks: 1 })
  })

  it('does not overlook a death that is declared at the same moment', async () => {
    await appear(worker)
    let answer: Promise<boolean | undefined> | undefined
    await db.transaction(async (tx) => {
      const declare = { text: 'update leasehold.workers set died_at = now()' }
      await tx.query(declare)
      const reaper = await backendOf(tx)
      answer = appear(worker)
      await blockedBy(reaper)
    })
    expect(await answer).toBe(true)
  })

  it('of another process with the id of a dead one registers a new process', async () => {
    await appear(worker)
    await change(`died_at = now(), started_at = now() - interval '1 hour'`, worker.id)
    expect(await appear({ ...worker, pid: worker.pid + 1 })).toBe(false)
    const [row] = await listWorkers(db, 'leasehold')
    expect(row).toMatchObject({ state: 'alive', pid: worker.pid + 1, startedAt: row?.lastSeenAt })
  })

  it('is a HOT update, and so are the counters that it reports', async () => {
    const count = {
      text: `select pg_stat_get_xact_tuples_updated('leasehold.workers'::regclass)::int as updates,
        pg_stat_get_xact_tuples_hot_updated('leasehold.workers'::regclass)::int as hot`,
    }
    await appear(worker)
    await db.transaction(async (tx) => {
      const before = (await tx.query<{ updates: number; hot: number }>(count)).rows[0]
      const pid = await backendOf(tx)
      for (let beat = 1; beat <= 10; beat += 1) {
        const counters = { ...sumCounters([]), done: 1_000_000 + beat, latency: Array(20).fill(beat) }
        const tables = Object.fromEntries(['a', 'b', 'c', 'd'].map((name) => [`leasehold.${name}`, counters]))
        await tx.query(presence('leasehold', worker, beat, pid, [], { uptimeMs: beat, tables }))
      }
      const after = (await tx.query<{ updates: number; hot: number }>(count)).rows[0]
      expect(after).toEqual({ updates: (before?.updates ?? 0) + 10, hot: (before?.hot ?? 0) + 10 })
    })
  })
})

/** Nothing tells when a statement begins to wait for a lock, so this looks again. */
async function blockedBy(pid: number): Promise<void> {
  const text = 'select from pg_stat_activity where $1 = any (pg_blocking_pids(pid))'
  while ((await db.query({ text, values: [pid] })).rowCount === 0);
}

describe('states', () => {
  it.each([
    ['alive', 'in_flight = 1'],
    ['missing', 'missing_since = now()'],
    ['missing', `last_seen_at = now() - interval '31 seconds'`],
    ['dead', 'missing_since = now(), died_at = now()'],
    ['stopped', 'stopped_at = now()'],
    ['stopped', 'stopped_at = now(), died_at = now()'],
  ])('a worker is %s when %s', async (state, set) => {
    const worker = describeWorker(['sync'])
    await appear(worker)
    await change(set, worker.id)
    expect(await listWorkers(db, 'leasehold')).toMatchObject([{ id: worker.id, state }])
  })

  it.each([
    ['dead', 'missing_since = now(), died_at = now()'],
    ['stopped', 'stopped_at = now()'],
  ])('a process that is %s has nothing in flight, whatever it last said', async (state, set) => {
    const worker = describeWorker(['sync'])
    await appear(worker, 3)
    await change(set, worker.id)
    expect(await listWorkers(db, 'leasehold')).toMatchObject([{ id: worker.id, state, inFlight: 0 }])
  })

  it('a process that stops is shown as stopped, and has no session that could be found missing', async () => {
    const [stopping, other] = [describeWorker(['sync']), describeWorker(['sync'])]
    await db.transaction(async (tx) => {
      for (const worker of [stopping, other])
        await tx.query(presence('leasehold', worker, 4, await backendOf(tx)))
    })
    await db.query(stopped('leasehold', stopping.id))
    const rows = await listWorkers(db, 'leasehold')
    expect(rows.find(({ id }) => id === stopping.id)).toMatchObject({
      state: 'stopped',
      inFlight: 0,
      sessionVisible: false,
    })
    expect(rows.find(({ id }) => id === other.id)).toMatchObject({ state: 'alive', inFlight: 4 })
  })

  it('processes that ended, or were not heard of, are forgotten after a day, and no others', async () => {
    const kept = ['now', 'yesterday but seen', 'stopped today']
    for (const id of [...kept, 'stopped', 'died', 'silent']) await appear(describeWorker([], { id }))
    const long = `now() - interval '25 hours'`
    await change(`started_at = ${long}`, 'yesterday but seen')
    await change(`stopped_at = now() - interval '23 hours', last_seen_at = ${long}`, 'stopped today')
    await change(`stopped_at = ${long}`, 'stopped')
    await change(`died_at = ${long}`, 'died')
    await change(`last_seen_at = ${long}`, 'silent')
    expect(await forgetWorkers(db, 'leasehold')).toBe(3)
    expect((await listWorkers(db, 'leasehold')).map(({ id }) => id).toSorted()).toEqual(kept.toSorted())
  })
})

describe('RULE-020-020: tables without a reaper', () => {
  const tables = ['leasehold.outbox', 'leasehold.webhook_outbox']

  it('without any process no table has a reaper', async () => {
    expect(await unreapedTables(db, 'leasehold', tables)).toEqual(tables)
  })

  it.each([
    ['a reaper that was just seen', ['leasehold.webhook_outbox'], ['leasehold.outbox'], 'in_flight = 0'],
    ['a reaper of both', [], tables, 'in_flight = 0'],
    ['a worker that is no reaper', tables, [], 'in_flight = 0'],
    ['a reaper that stopped', tables, tables, 'stopped_at = now()'],
    ['a reaper that died', tables, tables, 'died_at = now()'],
    ['one not seen within the time', tables, tables, `last_seen_at = now() - interval '61 seconds'`],
  ])('with %s, these have none: %j', async (_, unreaped, reaps, set) => {
    const worker = describeWorker(['reaper'], { reaps })
    await appear(worker)
    await change(set, worker.id)
    expect(await unreapedTables(db, 'leasehold', tables)).toEqual(unreaped)
  })
})

it('entries of the audit that are older than the retention are deleted, and the others stay', async () => {
  const add = `insert into leasehold.audit (principal, action, at) values ('p', $1, now() - $2::interval)`
  for (const [action, age] of [
    ['old', '366 days'],
    ['young', '364 days'],
  ])
    await db.query({ text: add, values: [action, age] })
  expect(await forgetAudit(db, 'leasehold', 365 * 86_400_000)).toBe(1)
  const { rows } = await db.query({ text: 'select action from leasehold.audit' })
  expect(rows).toEqual([{ action: 'young' }])
  await db.query({ text: 'truncate leasehold.audit' })
})

it('every statement works in a schema with an unusual name', async () => {
  const schema = 'Lease "hold"'
  await db.query({ text: `create schema "Lease ""hold"""` })
  await db.query({ text: `create table "Lease ""hold""".workers (like leasehold.workers including all)` })
  await db.query({
    text: 'create function "Lease ""hold""".bucket_count() returns int language sql return 1',
  })
  const worker = describeWorker(['reaper'], { reaps: ['a.b'] })
  await db.query(presence(schema, worker, 0, undefined))
  expect(await unreapedTables(db, schema, ['a.b'])).toEqual([])
  await db.query(stopped(schema, worker.id))
  expect(await listWorkers(db, schema)).toMatchObject([{ state: 'stopped' }])
  expect(await forgetWorkers(db, schema)).toBe(0)
})
