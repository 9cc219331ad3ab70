import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { createWatch, findDead, lookStatement, RETURN_MS, type LookRequest } from './eviction.ts'
import { describeWorker, farewell, listWorkers, presence, type WorkerInfo } from './registry.ts'

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

/** Ends the session, and waits until it is gone. */
async function cut({ pid }: Pick<Present, 'pid'>): Promise<void> {
  const { rows } = await db.query({
    text: 'select pg_terminate_backend($1, 10000) as gone',
    values: [pid],
  })
  expect(rows).toEqual([{ gone: true }])
}

async function look(request: Partial<LookRequest> = {}, on: Queryable = db) {
  const all = { self: 'reaper', graceMs: 0, declare: true, spared: [], evicted: [], ...request }
  return findDead(on, SCHEMA, all)
}

async function stateOf({ worker }: Pick<Present, 'worker'>): Promise<string | undefined> {
  return (await listWorkers(db, SCHEMA)).find(({ id }) => id === worker.id)?.state
}

const NOBODY = { died: [], missing: [], restarted: [], stillDead: [] }

describe('RULE-020-052: no worker dies in silence', () => {
  it('a process that is killed is missing at the first look, and dead when the grace is over', async () => {
    const child = spawnNode('test/fixtures/session.mjs', [database.url])
    const pid = Number(await child.line(() => true))
    const worker = describeWorker(['outbox'])
    child.send(JSON.stringify(presence(SCHEMA, worker, 10, pid)))
    await child.line((line) => line.includes('had_died'))
    expect(await look()).toEqual(NOBODY)

    await child.kill('SIGKILL')
    // The server notices the end of the connection by itself, and nothing tells when.
    while ((await look({ graceMs: 600_000 })).missing.length === 0);
    expect(await stateOf({ worker })).toBe('missing')
    expect(await look({ graceMs: 600_000 })).toEqual({ ...NOBODY, missing: [worker.id] })

    const { died, missing } = await look()
    expect(missing).toEqual([])
    expect(died).toEqual([
      { id: worker.id, host: worker.host, pid: worker.pid, lastSeenAt: expect.any(Date) },
    ])
    expect(await stateOf({ worker })).toBe('dead')
    expect(await look()).toEqual({ ...NOBODY, stillDead: [worker.id] })
  })

  it('of many that look at once, exactly one declares each death', async () => {
    const dead = await Promise.all(Array.from({ length: 5 }, async () => appear()))
    const alive = await appear()
    for (const each of dead) await cut(each)
    const looks = await Promise.all(Array.from({ length: 60 }, async (_, n) => look({ self: `reaper ${n}` })))
    const rest = await look()
    const declared = [...looks, rest].flatMap(({ died }) => died.map(({ id }) => id))
    expect(declared.toSorted()).toEqual(dead.map(({ worker }) => worker.id).toSorted())
    expect(await stateOf(alive)).toBe('alive')
  })

  it('the look is one statement, and without news it writes nothing', async () => {
    const missing = await appear()
    await appear()
    await cut(missing)
    await look({ graceMs: 600_000 })
    const version = { text: 'select xmin, ctid, missing_since from leasehold.workers order by id' }
    const { rows: before } = await db.query(version)
    const sent: unknown[] = []
    const counting: Queryable = {
      async query(statement) {
        sent.push(statement)
        return db.query(statement)
      },
    }
    await look({ graceMs: 600_000 }, counting)
    expect(sent).toHaveLength(1)
    expect((await db.query(version)).rows).toEqual(before)
  })
})

describe('who is not dead', () => {
  it('one that has come back on a new session, before or after it was missed', async () => {
    const early = await appear()
    await cut(early)
    await appear(early.worker)
    expect(await look()).toEqual(NOBODY)

    const late = await appear()
    await cut(late)
    expect((await look()).missing).toEqual([late.worker.id])
    await appear(late.worker)
    expect(await look()).toEqual(NOBODY)
    expect(await stateOf(late)).toBe('alive')
  })

  it('one that comes back while somebody looks: what was true before is not acted upon', async () => {
    const late = await appear()
    await cut(late)
    expect((await look()).missing).toEqual([late.worker.id])
    const request = { self: 'reaper', graceMs: 0, declare: true, spared: [], evicted: [] }
    const { text, values = [] } = lookStatement(SCHEMA, request)
    // The look as it is, with a gate between its snapshot and the rest.
    const gated = text
      .replace('with gone', 'with gate as materialized (select pg_advisory_xact_lock(1)), gone')
      .replace('where stopped_at', 'where (select count(*) from gate) = 1 and stopped_at')
    let looking: Promise<{ rows: object[] }> | undefined
    await db.transaction(async (tx) => {
      const { rows } = await tx.query<{ pid: number }>({
        text: 'select pg_advisory_xact_lock(1), pg_backend_pid() as pid',
      })
      looking = db.query({ text: gated, values })
      const blocked = 'select from pg_stat_activity where $1 = any (pg_blocking_pids(pid))'
      // Nothing tells when a statement begins to wait for a lock.
      while ((await db.query({ text: blocked, values: [rows[0]?.pid] })).rowCount === 0);
      await appear(late.worker)
    })
    expect((await looking)?.rows).toMatchObject([{ id: late.worker.id, state: 'missing' }])
    expect(await stateOf(late)).toBe('alive')
  })

  it('one whose row somebody holds just now: it is left to the next look', async () => {
    const late = await appear()
    await cut(late)
    await look()
    await db.transaction(async (tx) => {
      await tx.query({ text: 'select from leasehold.workers for no key update' })
      expect(await look()).toEqual({ ...NOBODY, missing: [late.worker.id] })
    })
    expect((await look()).died).toMatchObject([{ id: late.worker.id }])
  })

  it('one that said farewell', async () => {
    const stopped = await appear()
    await db.query(farewell(SCHEMA, stopped.worker.id))
    await cut(stopped)
    expect([await look(), await look()]).toEqual([NOBODY, NOBODY])
  })

  it('one whose session a pooler hides', async () => {
    const hidden = describeWorker(['outbox'])
    await db.query(presence(SCHEMA, hidden, 0, 2_000_000_000))
    expect([await look(), await look()]).toEqual([NOBODY, NOBODY])
  })

  it('oneself', async () => {
    const self = await appear()
    await cut(self)
    const request = { self: self.worker.id }
    expect([await look(request), await look(request)]).toEqual([NOBODY, NOBODY])
  })

  it('one that is to be spared, and nobody when none is to be declared', async () => {
    const gone = await appear()
    await cut(gone)
    const missing = { ...NOBODY, missing: [gone.worker.id] }
    for (const request of [{ declare: false }, { spared: [gone.worker.id] }]) {
      expect([await look(request), await look(request)]).toEqual([missing, missing])
    }
  })
})

describe('sessions', () => {
  it('a backend with the same pid that started at another time is another session', async () => {
    const gone = await appear()
    await db.query({ text: `update leasehold.workers set session_start = session_start - interval '1 hour'` })
    expect((await look()).missing).toEqual([gone.worker.id])
    expect((await look()).died).toMatchObject([{ id: gone.worker.id }])
  })

  it('a role that may not see when others’ sessions started goes by the pid', async () => {
    const role = `${database.name.slice(0, 40)}_blind`
    await db.query({ text: `create role ${role} login password 'blind'` })
    await db.query({ text: `grant usage on schema leasehold to ${role}` })
    await db.query({ text: `grant select, update on leasehold.workers to ${role}` })
    const url = new URL(database.url)
    url.username = role
    url.password = 'blind'
    const blind = openDatabase({ url: url.href, maxConnections: 1 })
    const [alive, gone] = [await appear(), await appear()]
    await cut(gone)
    expect((await look({}, blind)).missing).toEqual([gone.worker.id])
    expect((await look({}, blind)).died).toMatchObject([{ id: gone.worker.id }])
    expect(await stateOf(alive)).toBe('alive')
    await blind.close()
    await db.query({ text: `drop owned by ${role}` })
    await db.query({ text: `drop role ${role}` })
  })

  it('says of those declared before whether they still are dead', async () => {
    const [dead, returned] = [await appear(), await appear()]
    for (const each of [dead, returned]) await cut(each)
    await look()
    expect((await look()).died).toHaveLength(2)
    await appear(returned.worker)
    const evicted = [dead.worker.id, returned.worker.id, 'unheard of']
    expect(await look({ evicted })).toEqual({ ...NOBODY, stillDead: [dead.worker.id] })
  })
})

describe('a restart of the database is not the death of everybody', () => {
  let now = 0

  function watch(on: Queryable = db) {
    now = 0
    const clock = { monotonicNow: () => now }
    return createWatch({ db: on, schema: SCHEMA, self: 'reaper', checkMs: 1_000, graceMs: 0, clock })
  }

  it('who goes missing while the watch looks on is dead after the grace', async () => {
    const gone = await appear()
    const { look } = watch()
    expect(await look([])).toEqual(NOBODY)
    await cut(gone)
    now += 1_000
    expect((await look([])).missing).toEqual([gone.worker.id])
    now += 1_000
    expect((await look([])).died).toMatchObject([{ id: gone.worker.id }])
  })

  it('whose session ended with a restart before the watch began has the time to return', async () => {
    const gone = await appear()
    await cut(gone)
    await db.query({
      text: `update leasehold.workers set session_start = pg_postmaster_start_time() - interval '1 hour'`,
    })
    const { look } = watch()
    for (; now < RETURN_MS; now += 1_000) {
      expect(await look([])).toEqual({ ...NOBODY, missing: [gone.worker.id], restarted: [gone.worker.id] })
    }
    expect((await look([])).died).toMatchObject([{ id: gone.worker.id }])
  })

  it('who had died before the watch began, on a server that did not restart, is dead after the grace', async () => {
    const gone = await appear()
    await cut(gone)
    const { look } = watch()
    expect((await look([])).missing).toEqual([gone.worker.id])
    now += 1_000
    expect((await look([])).died).toMatchObject([{ id: gone.worker.id }])
  })

  it('after a look that failed, or came late, it begins anew', async () => {
    const gone = await appear()
    let away = false
    const { look } = watch({
      async query(statement) {
        if (away) throw new Error('the database is away')
        return db.query(statement)
      },
    })
    const missing = { ...NOBODY, missing: [gone.worker.id] }
    expect(await look([])).toEqual(NOBODY)
    await cut(gone)
    away = true
    await expect(look([])).rejects.toThrow('the database is away')
    away = false
    expect([await look([]), await look([])]).toEqual([missing, missing])
    now += RETURN_MS
    expect([await look([]), await look([])]).toEqual([missing, missing])
    const anewAt = now
    for (now += 1_000; now < anewAt + RETURN_MS; now += 1_000) expect(await look([])).toEqual(missing)
    expect((await look([])).died).toMatchObject([{ id: gone.worker.id }])
  })
})
