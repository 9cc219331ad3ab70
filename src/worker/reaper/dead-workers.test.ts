import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openDatabase, type Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { describeWorker, listWorkers, presence, stopped, type WorkerInfo } from '../registry/registry.ts'
import {
  type CheckRequest,
  checkStatement,
  createDeathWatch,
  findDeadWorkers,
  RECONNECT_MS,
} from './dead-workers.ts'

useQuietProcess()
const database = useDatabase()
const { spawnNode } = useProcesses()
const SCHEMA = 'leasehold'
let db: Database

beforeAll(() => {
  db = openDatabase({ url: database.url, maxConnections: 20 })
})

afterAll(async () => {
  await db.close()
})

const sessions = new Set<Database>()

afterEach(async () => {
  await Promise.all([...sessions].map(async (session) => session.close()))
  sessions.clear()
  await db.query({ text: 'truncate leasehold.workers' })
})

interface Present {
  readonly worker: WorkerInfo
  readonly session: Database
  readonly pid: number
}

/** A worker with a session of its own. */
async function appear(worker = describeWorker(['outbox']), url = database.url): Promise<Present> {
  const session = openDatabase({ url, maxConnections: 1 })
  sessions.add(session)
  const { rows } = await session.query<{ pid: number }>({ text: 'select pg_backend_pid() as pid' })
  const pid = rows[0]?.pid ?? 0
  await session.query(presence(SCHEMA, worker, 0, pid))
  return { worker, session, pid }
}

/** Ends the session, and waits until it has ended. */
async function cut({ pid }: Pick<Present, 'pid'>): Promise<void> {
  const { rows } = await db.query({
    text: 'select pg_terminate_backend($1, 10000) as ended',
    values: [pid],
  })
  expect(rows).toEqual([{ ended: true }])
}

async function check(request: Partial<CheckRequest> = {}, on: Queryable = db) {
  const all = { self: 'reaper', graceMs: 0, declare: true, spared: [], evicted: [], ...request }
  return findDeadWorkers(on, SCHEMA, all)
}

async function stateOf({ worker }: Pick<Present, 'worker'>): Promise<string | undefined> {
  return (await listWorkers(db, SCHEMA)).find(({ id }) => id === worker.id)?.state
}

const NOBODY = { died: [], missing: [], restarted: [], stillDead: [] }

describe('RULE-020-052: the death of a worker process is noticed by its session', () => {
  it('a process that is killed is missing at the first check, and dead when the grace is over', async () => {
    const child = spawnNode('test/fixtures/session.mjs', [database.url])
    const pid = Number(await child.line(() => true))
    const worker = describeWorker(['outbox'])
    child.send(JSON.stringify(presence(SCHEMA, worker, 10, pid)))
    await child.line((line) => line.includes('had_died'))
    expect(await check()).toEqual(NOBODY)

    await child.kill('SIGKILL')
    // The server notices the end of the connection by itself, and nothing tells when.
    while ((await check({ graceMs: 600_000 })).missing.length === 0);
    expect(await stateOf({ worker })).toBe('missing')
    expect(await check({ graceMs: 600_000 })).toEqual({ ...NOBODY, missing: [worker.id] })

    const { died, missing } = await check()
    expect(missing).toEqual([])
    expect(died).toEqual([
      { id: worker.id, host: worker.host, pid: worker.pid, lastSeenAt: expect.any(Date) },
    ])
    expect(await stateOf({ worker })).toBe('dead')
    expect(await check()).toEqual({ ...NOBODY, stillDead: [worker.id] })
  })

  it('of many reapers that check at once, exactly one declares each death', async () => {
    const dead = await Promise.all(Array.from({ length: 5 }, async () => appear()))
    const alive = await appear()
    for (const each of dead) await cut(each)
    const checks = await Promise.all(
      Array.from({ length: 60 }, async (_, n) => check({ self: `reaper ${n}` })),
    )
    const rest = await check()
    const declared = [...checks, rest].flatMap(({ died }) => died.map(({ id }) => id))
    expect(declared.toSorted()).toEqual(dead.map(({ worker }) => worker.id).toSorted())
    expect(await stateOf(alive)).toBe('alive')
  })

  it('a check is one statement, which writes nothing while nothing changes', async () => {
    const missing = await appear()
    await appear()
    await cut(missing)
    await check({ graceMs: 600_000 })
    const version = { text: 'select xmin, ctid, missing_since from leasehold.workers order by id' }
    const { rows: before } = await db.query(version)
    const sent: unknown[] = []
    const counting: Queryable = {
      async query(statement) {
        sent.push(statement)
        return db.query(statement)
      },
    }
    await check({ graceMs: 600_000 }, counting)
    expect(sent).toHaveLength(1)
    expect((await db.query(version)).rows).toEqual(before)
  })
})

describe('a check does not declare dead', () => {
  it('a process that has returned on a new session, before or after it was found missing', async () => {
    const early = await appear()
    await cut(early)
    await appear(early.worker)
    expect(await check()).toEqual(NOBODY)

    const late = await appear()
    await cut(late)
    expect((await check()).missing).toEqual([late.worker.id])
    await appear(late.worker)
    expect(await check()).toEqual(NOBODY)
    expect(await stateOf(late)).toBe('alive')
  })

  it('a process that returns during the check, after the snapshot in which it was missing', async () => {
    const late = await appear()
    await cut(late)
    expect((await check()).missing).toEqual([late.worker.id])
    const request = { self: 'reaper', graceMs: 0, declare: true, spared: [], evicted: [] }
    const { text, values = [] } = checkStatement(SCHEMA, request)
    // The statement as it is, with a lock to wait for between its snapshot and the rest.
    const gated = text
      .replace('with without', 'with gate as materialized (select pg_advisory_xact_lock(1)), without')
      .replace('where stopped_at', 'where (select count(*) from gate) = 1 and stopped_at')
    let checking: Promise<{ rows: object[] }> | undefined
    await db.transaction(async (tx) => {
      const { rows } = await tx.query<{ pid: number }>({
        text: 'select pg_advisory_xact_lock(1), pg_backend_pid() as pid',
      })
      checking = db.query({ text: gated, values })
      const blocked = 'select from pg_stat_activity where $1 = any (pg_blocking_pids(pid))'
      // Nothing tells when a statement begins to wait for a lock.
      while ((await db.query({ text: blocked, values: [rows[0]?.pid] })).rowCount === 0);
      await appear(late.worker)
    })
    expect((await checking)?.rows).toMatchObject([{ id: late.worker.id, state: 'missing' }])
    expect(await stateOf(late)).toBe('alive')
  })

  it('a process whose row is locked: the next check decides', async () => {
    const late = await appear()
    await cut(late)
    await check()
    await db.transaction(async (tx) => {
      await tx.query({ text: 'select from leasehold.workers for no key update' })
      expect(await check()).toEqual({ ...NOBODY, missing: [late.worker.id] })
    })
    expect((await check()).died).toMatchObject([{ id: late.worker.id }])
  })

  it('a process that has stopped', async () => {
    const ended = await appear()
    await db.query(stopped(SCHEMA, ended.worker.id))
    await cut(ended)
    expect([await check(), await check()]).toEqual([NOBODY, NOBODY])
  })

  it('a process whose session a pooler hides', async () => {
    const hidden = describeWorker(['outbox'])
    await db.query(presence(SCHEMA, hidden, 0, 2_000_000_000))
    expect([await check(), await check()]).toEqual([NOBODY, NOBODY])
  })

  it('the process that checks', async () => {
    const self = await appear()
    await cut(self)
    const request = { self: self.worker.id }
    expect([await check(request), await check(request)]).toEqual([NOBODY, NOBODY])
  })

  it('a process that is spared, nor any when none is to be declared', async () => {
    const missingOne = await appear()
    await cut(missingOne)
    const missing = { ...NOBODY, missing: [missingOne.worker.id] }
    for (const request of [{ declare: false }, { spared: [missingOne.worker.id] }]) {
      expect([await check(request), await check(request)]).toEqual([missing, missing])
    }
  })
})

describe('the session of a process', () => {
  it('is another one if a backend with the same pid started at another time', async () => {
    const missingOne = await appear()
    await db.query({ text: `update leasehold.workers set session_start = session_start - interval '1 hour'` })
    expect((await check()).missing).toEqual([missingOne.worker.id])
    expect((await check()).died).toMatchObject([{ id: missingOne.worker.id }])
  })

  it('is found by its pid alone where the role may not see when sessions of others started', async () => {
    const role = `${database.name.slice(0, 40)}_blind`
    await db.query({ text: `create role ${role} login password 'blind'` })
    await db.query({ text: `grant usage on schema leasehold to ${role}` })
    await db.query({ text: `grant select, update on leasehold.workers to ${role}` })
    const url = new URL(database.url)
    url.username = role
    url.password = 'blind'
    const blind = openDatabase({ url: url.href, maxConnections: 1 })
    const [alive, missingOne] = [await appear(), await appear()]
    await cut(missingOne)
    expect((await check({}, blind)).missing).toEqual([missingOne.worker.id])
    expect((await check({}, blind)).died).toMatchObject([{ id: missingOne.worker.id }])
    expect(await stateOf(alive)).toBe('alive')
    await blind.close()
    await db.query({ text: `drop owned by ${role}` })
    await db.query({ text: `drop role ${role}` })
  })

  it('ends with its death until it returns, and a check says which of the dead have not', async () => {
    const [dead, returned] = [await appear(), await appear()]
    for (const each of [dead, returned]) await cut(each)
    await check()
    expect((await check()).died).toHaveLength(2)
    await appear(returned.worker)
    const evicted = [dead.worker.id, returned.worker.id, 'unheard of']
    expect(await check({ evicted })).toEqual({ ...NOBODY, stillDead: [dead.worker.id] })
    // One that has stopped has not returned either.
    await db.query(stopped(SCHEMA, returned.worker.id))
    const { stillDead } = await check({ evicted })
    expect(stillDead.toSorted()).toEqual([dead.worker.id, returned.worker.id].toSorted())
  })
})

describe('a restart of the database is no sign of death', () => {
  let now = 0

  function watch(on: Queryable = db) {
    now = 0
    const clock = { monotonicNow: () => now }
    return createDeathWatch({ db: on, schema: SCHEMA, self: 'reaper', checkMs: 1_000, graceMs: 0, clock })
  }

  it('a process that goes missing between two checks is dead after the grace', async () => {
    const missingOne = await appear()
    const watching = watch()
    expect(await watching.check([])).toEqual(NOBODY)
    await cut(missingOne)
    now += 1_000
    expect((await watching.check([])).missing).toEqual([missingOne.worker.id])
    now += 1_000
    expect((await watching.check([])).died).toMatchObject([{ id: missingOne.worker.id }])
  })

  it('a process whose session ended with a restart before the first check has time to reconnect', async () => {
    const missingOne = await appear()
    await cut(missingOne)
    await db.query({
      text: `update leasehold.workers set session_start = pg_postmaster_start_time() - interval '1 hour'`,
    })
    const watching = watch()
    for (; now < RECONNECT_MS; now += 1_000) {
      expect(await watching.check([])).toEqual({
        ...NOBODY,
        missing: [missingOne.worker.id],
        restarted: [missingOne.worker.id],
      })
    }
    expect((await watching.check([])).died).toMatchObject([{ id: missingOne.worker.id }])
  })

  it('a session that began before the server took writes belonged to another server, or ended with a crash', async () => {
    const missingOne = await appear()
    await cut(missingOne)
    // A standby runs long before it is promoted.
    await db.query({
      text: `update leasehold.workers set session_start = pg_postmaster_start_time() + interval '1 microsecond'`,
    })
    expect((await watch().check([])).restarted).toEqual([missingOne.worker.id])
  })

  it('a process that died before the first check, on a server that did not restart, is dead after the grace', async () => {
    const missingOne = await appear()
    await cut(missingOne)
    const watching = watch()
    expect((await watching.check([])).missing).toEqual([missingOne.worker.id])
    now += 1_000
    expect((await watching.check([])).died).toMatchObject([{ id: missingOne.worker.id }])
  })

  it('after a check that failed or came late, every missing process has time to reconnect', async () => {
    const missingOne = await appear()
    let away = false
    const watching = watch({
      async query(statement) {
        if (away) throw new Error('the database is away')
        return db.query(statement)
      },
    })
    const missing = { ...NOBODY, missing: [missingOne.worker.id] }
    expect(await watching.check([])).toEqual(NOBODY)
    await cut(missingOne)
    away = true
    await expect(watching.check([])).rejects.toThrow('the database is away')
    away = false
    expect([await watching.check([]), await watching.check([])]).toEqual([missing, missing])
    now += RECONNECT_MS
    expect([await watching.check([]), await watching.check([])]).toEqual([missing, missing])
    const anewAt = now
    for (now += 1_000; now < anewAt + RECONNECT_MS; now += 1_000)
      expect(await watching.check([])).toEqual(missing)
    expect((await watching.check([])).died).toMatchObject([{ id: missingOne.worker.id }])
  })
})
