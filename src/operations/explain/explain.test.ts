import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { backendOf, blocked, openSession, useDatabase } from '../../../test/support/database.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { door, settled, useWorkers } from '../../../test/support/running-worker.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { insertJobs, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { codesOf, expectAllStaged, remembering, whenGiven } from '../../../test/support/staged-reasons.ts'
import { startWorker } from '../../../test/support/worker-process.ts'
import { hasCode } from '../../errors.ts'
import { leaseTable, openLeaseStore } from '../../lease/index.ts'
import { type Database, openDatabase } from '../../postgres/database.ts'
import { SaturatedError } from '../../worker/completion/outcome.ts'
import { changeSettings } from '../../worker/index.ts'
import { findDeadWorkers } from '../../worker/reaper/dead-workers.ts'
import { explainRow, type ExplainOptions, workedBy } from './explain.ts'
import type { Explanation, Reason } from './reasons.ts'
import type { WorkedTable } from './workers.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const run = useWorkers(url)
const start = useRuntimes(url)
const processes = useProcesses()
const BOUND = { timeout: 120_000, interval: 20 }
const remembered = remembering(explainRow)
const JOBS = { table: leaseTable(WORK_TABLE), workers: ['jobs'] }

beforeAll(async () => {
  await db.query({
    text: `${WORK_DDL};
create table public.child (job bigint references public.jobs (id))`,
  })
})
beforeEach(async () => {
  await db.query({
    text: 'truncate public.jobs, public.runs, public.child, leasehold.workers, leasehold.settings restart identity',
  })
})
afterAll(async () => db.close())

async function explain(
  id: string,
  options: ExplainOptions = {},
  explained: WorkedTable = JOBS,
): Promise<Explanation> {
  return remembered(db, explained, id, options)
}

async function codes(id: string, options?: ExplainOptions): Promise<string[]> {
  return codesOf(await explain(id, options))
}

async function reasonOf(
  id: string,
  code: Reason['code'],
  options?: ExplainOptions,
  worked?: WorkedTable,
): Promise<Reason> {
  return whenGiven(async () => explain(id, options, worked), code)
}

/** One job that a worker of this process holds until the test ends it. */
async function holdOne(settings = {}, more: Parameters<typeof run>[1] = {}) {
  const [begun, held] = [door(), door()]
  const running = await run(
    {
      handle: async () => {
        begun.open()
        await held.opened
      },
      settings: { concurrency: 1, prefetch: 0, ...settings },
    },
    { presenceMs: 50, ...more },
  )
  await begun.opened
  return { ...running, held }
}

describe('a row that nothing keeps from running', () => {
  it('is claimable, and the answer names the processes that will claim it, with what they have in flight', async () => {
    const [first = '', second = ''] = await insertJobs(db, 2)
    const { runtime, held } = await holdOne()
    await expect
      .poll(async () => (await explain(second)).reasons[0]?.text, BOUND)
      .toMatch(
        new RegExp(
          `^Nothing keeps it from running: it has been due for \\d+ s, and the worker process \\(${runtime.id} with 1 in flight\\) will claim it when there is room\\.$`,
        ),
      )
    expect(await explain(second)).toMatchObject({ table: 'public.jobs', id: second, state: 'claimable' })
    expect(await codes(first)).toEqual(['leased'])
    held.open()
  })

  it('that has been due for long is explained with the command that tries to claim it', async () => {
    const [, id = ''] = await insertJobs(db, 2)
    const { held } = await holdOne()
    await db.query({
      text: `update public.jobs set available_at = now() - interval '1 minute' where id = ${id}`,
    })
    const { command } = await reasonOf(id, 'claimable')
    expect(command).toBe(`leasehold lease explain --table public.jobs ${id} --try`)
    expect((await reasonOf(id, 'claimable', { tryClaim: true })).text).toContain(
      'A claim that was rolled back succeeded.',
    )
    expect(
      (await db.query({ text: `select lock_token, claimed_by from public.jobs where id = ${id}` })).rows,
    ).toEqual([{ lock_token: '0', claimed_by: null }])
    held.open()
  })
})

describe('the row itself', () => {
  it('notClaimable: the condition of the table is not true of it', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const { events } = await run({ handle: async () => undefined })
    await settled(events, 1)
    expect(await explain(id)).toEqual({
      table: 'public.jobs',
      id,
      state: 'finished',
      reasons: [
        {
          code: 'notClaimable',
          text: 'The condition under which rows of this table are claimed is not true of it: available_at is not null.',
        },
      ],
    })
  })

  it('scheduled: it is not due until a time, and the statement that is shown makes it due', async () => {
    const [id = ''] = await insertJobs(db, 1)
    await db.query({ text: `update public.jobs set available_at = now() + interval '1 hour'` })
    const { text, until, command = '' } = await reasonOf(id, 'scheduled')
    expect(text).toMatch(/^It is not due until \d{4}-.*Z \(in 60 min\)\.$/)
    expect(until).toBeInstanceOf(Date)
    await db.query({ text: command })
    expect(await codes(id)).not.toContain('scheduled')
  })

  it('retryWait: attempts have failed, and the next one is due at a time', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const { events } = await run({
      handle: async () => Promise.reject(new Error('the printer is on fire')),
      retry: { firstMs: 60_000, jitter: 0 },
    })
    await settled(events, 1)
    const { text, until, command } = await reasonOf(id, 'retryWait')
    expect(text).toMatch(
      /^1 of 5 attempts has failed, and the next one is due at .*Z \(in \d+ s\): .*the printer is on fire.*\.$/,
    )
    expect(until?.getTime()).toBeGreaterThan(Date.now())
    expect(command).toBe(`update public.jobs set available_at = now() where id = '${id}'`)
  })

  it('resting: its worker has put it aside until a time', async () => {
    await db.query({
      text: `create table public.resting (id int primary key, lease_owner text, lease_until timestamptz, lease_token bigint);
create index on public.resting (id) where lease_owner is not null;
insert into public.resting values (1)`,
    })
    const table = leaseTable({
      table: 'public.resting',
      claimable: 'true',
      outcomes: { later: { set: {}, rest: "interval '1 hour'" } },
    })
    const store = await openLeaseStore(db, table, { owner: 'somebody' })
    const { leases } = await claimOne(store)
    await store.settle('later', leases)
    const explained = { table, workers: ['resting'] }
    const { text, command = '' } = await reasonOf('1', 'resting', {}, explained)
    expect(text).toMatch(/^It rests until .*Z \(in 60 min\)\.$/)
    await db.query({ text: command })
    expect((await explain('1', {}, explained)).state).toBe('claimable')
  })

  it('suspect: two processes died with it, and no process runs it while it runs another suspect', async () => {
    const ids = await insertJobs(db, 2, 'hold')
    const reaper = await run(
      {
        handle: async () => undefined,
        retry: { firstMs: 1 },
        settings: { paused: true, reaperIntervalMs: 200 },
      },
      { presenceMs: 50 },
    )
    for (const name of ['first', 'second']) {
      const child = startWorker(processes, {
        databaseUrl: url,
        settings: { ...SHORT_LEASE, concurrency: 2, prefetch: 0 },
        runtime: { id: name, reaper: false, presenceMs: 50 },
      })
      for (const id of ids) await child.heard('holding', (line) => String(line['id']) === id)
      const taken = new Set<string>()
      const reaped = reaper.events.next('reaped', (event) => taken.add(event.id).size === 2)
      await child.kill('SIGKILL')
      await reaped
    }
    await reaper.runtime.stop()
    const { runtime, held } = await holdOne({ concurrency: 5 })
    const { rows } = await db.query<{ id: string }>({
      text: `select id from public.jobs where status = 'CLAIMED'`,
    })
    const running = rows[0]?.id ?? ''
    const waiting = ids.find((id) => id !== running) ?? ''
    const { text, by } = await reasonOf(waiting, 'suspect')
    expect(text).toBe(
      `2 leases of it expired, so it may be what ended its processes, and a process begins with one such row at a time: at this moment ${runtime.id} runs ${running}.`,
    )
    expect(by).toBe(running)
    await expect.poll(async () => codes(waiting), BOUND).toEqual(['suspect'])
    held.open()
  })
})

/** For processes that are killed: their leases are over soon. */
const SHORT_LEASE = { leaseMs: 1_500, heartbeatMs: 400, reaperIntervalMs: 400, shutdownTimeoutMs: 500 }

async function claimOne(store: Awaited<ReturnType<typeof openLeaseStore>>) {
  const { claimed } = await store.claim({ limit: 1, leaseMs: 60_000 })
  return { leases: claimed.map(({ lease }) => lease) }
}

describe('leases', () => {
  it('leased: by which worker, with which token, until when, and whether it is alive', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const { runtime, held } = await holdOne({ leaseMs: 60_000 })
    const { text, by, until } = await reasonOf(id, 'leased')
    expect(text).toMatch(
      new RegExp(
        `^The worker process ${runtime.id} holds it, with token \\d+, and its lease runs until .*Z \\(in (59|60) s\\); it is alive, last seen \\d s ago, with leases of 60 s, and claimed or renewed it \\d+ s ago\\.$`,
      ),
    )
    expect(by).toBe(runtime.id)
    expect(until).toBeInstanceOf(Date)
    expect((await explain(id)).state).toBe('leased')
    held.open()
  })

  it('without a token column, the time of the claim is known, and whether the lease was renewed since', async () => {
    await db.query({
      text: `create table public.tokenless (id int primary key, state text not null default 'new', owner text, until timestamptz, attempts int not null default 0);
create index on public.tokenless (id) where state = 'new';
create index on public.tokenless (id) where owner is not null;
insert into public.tokenless (id) values (1)`,
    })
    const table = leaseTable({
      table: 'public.tokenless',
      claimable: "state = 'new'",
      lease: { owner: 'owner', until: 'until' },
      attempts: { expiries: false, error: false },
      outcomes: { done: { state: "'done'" }, dead: { state: "'dead'" } },
    })
    const [begun, held] = [door(), door()]
    const { runtime, events } = await start(
      [
        {
          name: 'tokenless',
          table,
          handle: async () => {
            begun.open()
            await held.opened
          },
          settings: { leaseMs: 3_000, heartbeatMs: 200, reaperIntervalMs: 200 },
        },
      ],
      { presenceMs: 50 },
    )
    const renewed = events.next('renewed')
    await begun.opened
    const explained = { table, workers: ['tokenless'] }
    await renewed
    await expect
      .poll(async () => (await explain('1', {}, explained)).reasons[0]?.text, BOUND)
      .toMatch(
        new RegExp(
          `^The worker process ${runtime.id} has held it for \\d s, with token \\d{16}, .*with leases of 3 s, and renewed it about (once|\\d+ times), last \\d s ago\\.$`,
        ),
      )
    held.open()
  })

  it('of a process that was killed: its death is told, and that no reaper is alive', async () => {
    const [id = ''] = await insertJobs(db, 1, 'hold')
    const child = startWorker(processes, {
      databaseUrl: url,
      tell: ['claimed'],
      settings: { leaseMs: 600_000 },
      runtime: { id: 'doomed', reaper: false, presenceMs: 50 },
    })
    await child.heard('holding')
    expect((await reasonOf(id, 'leased')).text).toContain('it is alive')
    expect(await codes(id)).toEqual(['leased'])
    await child.kill('SIGKILL')
    const check = { self: 'test', graceMs: 0, declare: false, spared: [], evicted: [] }
    await expect
      .poll(async () => (await findDeadWorkers(db, 'leasehold', check)).missing, BOUND)
      .toEqual(['doomed'])
    expect((await reasonOf(id, 'leased')).text).toMatch(
      /; it has been missing since .*, and its leases are taken back unless it returns\.$/,
    )
    await findDeadWorkers(db, 'leasehold', { ...check, declare: true })
    expect((await reasonOf(id, 'leased')).text).toMatch(
      /; it has been dead since .*, and a reaper takes its leases back\.$/,
    )
    expect(await codes(id)).toEqual(['leased', 'noReaper'])
    expect(await reasonOf(id, 'noReaper')).toEqual({
      code: 'noReaper',
      text: 'No worker process that is alive takes back the expired leases of public.jobs.',
      command: 'leasehold work --only reaper',
    })
    const { events } = await run({ handle: async () => undefined }, { presenceMs: 50 })
    await settled(events, 1)
  })

  it('leaseExpired: its process was killed and the lease is over, until a reaper takes it back', async () => {
    const [id = ''] = await insertJobs(db, 1, 'hold')
    const child = startWorker(processes, {
      databaseUrl: url,
      settings: SHORT_LEASE,
      runtime: { id: 'doomed', reaper: false, presenceMs: 50 },
    })
    await child.heard('holding')
    await child.kill('SIGKILL')
    const { text, since, by } = await reasonOf(id, 'leaseExpired')
    expect(text).toMatch(
      /^The lease of the worker process doomed with token \d+ expired at .*Z \(\d s ago\), and it waits for the reaper; it .*last seen \d+ s ago/,
    )
    expect({ isMoment: since instanceof Date, by }).toEqual({ isMoment: true, by: 'doomed' })
    expect(await explain(id)).toMatchObject({
      state: 'expired',
      reasons: [{}, { code: 'noReaper', command: 'leasehold work --only reaper' }],
    })
    const { events } = await run(
      { handle: async () => undefined, settings: { paused: true, reaperIntervalMs: 200 } },
      { presenceMs: 50 },
    )
    await events.next('reaped')
    await expect.poll(async () => codes(id), BOUND).toEqual(['workersPaused'])
  })

  it('leaseExpired: the next claim takes it where the table permits that, and a worker will', async () => {
    await db.query({
      text: `create table public.direct (id int primary key, lease_owner text, lease_until timestamptz, lease_token bigint, attempts int not null default 0, expiries int not null default 0, last_error text);
create index on public.direct (id) where expiries >= 2;
create index on public.direct (id) where lease_owner is not null;
insert into public.direct (id) values (1)`,
    })
    const table = leaseTable({ table: 'public.direct', claimable: 'true', attempts: {} })
    const explained = { table, workers: ['direct'] }
    const store = await openLeaseStore(db, table, { owner: 'gone' })
    await store.claim({ limit: 1, leaseMs: 1 })
    await reasonOf('1', 'leaseExpired', {}, explained)
    const found = await explain('1', {}, explained)
    expect(found).toMatchObject({
      state: 'expired',
      reasons: [
        { text: expect.stringContaining('and the next claim takes it') as string },
        { code: 'noWorker' },
      ],
    })
    expect(codesOf(await explain('1', { tryClaim: true }, explained))).toEqual(codesOf(found))
    await db.query({
      text: `create function public.keep() returns trigger language plpgsql as $$ begin raise exception 'kept as it is'; end $$;
create trigger keep before update on public.direct for each row execute function public.keep()`,
    })
    const refused = await explain('1', { tryClaim: true }, explained)
    expect(codesOf(refused)).toEqual(['refused', 'leaseExpired', 'noWorker'])
    expect(refused.reasons[0]?.text).toMatch(/SQLSTATE P0001.*kept as it is/)
  })
})

describe('locks', () => {
  /** Another session in a transaction. */
  async function locking(
    ...statements: readonly string[]
  ): Promise<{ pid: number; end: () => Promise<void> }> {
    const session = await openSession(url)
    await session.query('begin')
    for (const statement of statements) await session.query(statement)
    return { pid: await backendOf(session), end: async () => void (await session.query('rollback')) }
  }

  /** Whether a statement ended because somebody cancelled it. */
  function hasBeenCancelled(error: unknown): boolean {
    return hasCode(error, '57014')
  }

  it.each([
    ['for update', ['select from public.jobs for update']],
    ['by an UPDATE', ["update public.jobs set kind = 'x'"]],
    ['in a savepoint', ['savepoint a', 'select from public.jobs for update']],
    ['by a foreign key', ['insert into public.child select id from public.jobs']],
  ])('rowLocked: another session has locked it %s', async (_, statements) => {
    const [id = ''] = await insertJobs(db, 1)
    const { pid, end } = await locking(...statements)
    const { text, by, since, command = '' } = await reasonOf(id, 'rowLocked')
    expect(text).toMatch(
      new RegExp(
        `^The session ${pid} \\(idle in transaction, its last statement began \\d s ago\\) has locked it in a transaction that has been open for \\d s, and claims skip it\\.$`,
      ),
    )
    expect({ by, command, isMoment: since instanceof Date }).toEqual({
      by: String(pid),
      command: `select pg_terminate_backend(${pid})`,
      isMoment: true,
    })
    await end()
    expect(await codes(id)).toEqual(['noWorker'])
  })

  it('rowLocked and tableLocked: a row whose lease has expired, which the reaper cannot take back', async () => {
    const [id = ''] = await insertJobs(db, 1)
    await claimOne(await openLeaseStore(db, JOBS.table, { owner: 'nobody' }))
    await db.query({ text: `update public.jobs set locked_until = now() - interval '5 seconds'` })
    const row = await locking('select from public.jobs for update')
    expect((await reasonOf(id, 'rowLocked')).text).toMatch(
      new RegExp(`^The session ${row.pid} .*, and reapers skip it\\.$`),
    )
    expect(await codes(id)).toEqual(['leaseExpired', 'rowLocked', 'noReaper'])
    await row.end()
    const table = await locking('lock table public.jobs in share mode')
    expect(await codes(id)).toEqual(['leaseExpired', 'tableLocked', 'noReaper'])
    await table.end()
  })

  it('rowLocked: by several sessions together, of which the oldest is named', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const first = await locking('select from public.jobs for key share')
    const second = await locking('select from public.jobs for share')
    expect((await reasonOf(id, 'rowLocked')).by).toBe(String(first.pid))
    await first.end()
    expect((await reasonOf(id, 'rowLocked')).by).toBe(String(second.pid))
    await second.end()
    expect(await codes(id)).toEqual(['noWorker'])
  })

  it('rowLocked: a savepoint that was released still locks it', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const { end } = await locking('savepoint a', 'select from public.jobs for update', 'release savepoint a')
    expect((await reasonOf(id, 'rowLocked')).text).toMatch(
      /^A transaction that is still open \(\d+\) has locked it, and claims skip it\.$/,
    )
    await end()
    expect(await codes(id)).toEqual(['noWorker'])
  })

  it('an explanation locks nothing and writes nothing', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const before = await db.query({ text: 'select xmin, xmax, ctid from public.jobs' })
    await explain(id)
    expect((await db.query({ text: 'select xmin, xmax, ctid from public.jobs' })).rows).toEqual(before.rows)
  })

  it('tableLocked: every claim waits, and with an exclusive lock not even the row can be read', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const share = await locking('lock table public.jobs in share mode')
    expect((await reasonOf(id, 'tableLocked')).text).toMatch(
      new RegExp(
        `^The session ${share.pid} .* has locked the whole table \\(ShareLock\\) .*, and every claim and every reaper waits for it\\.$`,
      ),
    )
    await share.end()
    const exclusive = await locking('lock table public.jobs in access exclusive mode')
    expect(await explain(id)).toMatchObject({
      state: 'unknown',
      reasons: [{ code: 'tableLocked', by: String(exclusive.pid) }],
    })
    await exclusive.end()
    expect(await codes(id)).toEqual(['noWorker'])
  })

  it('tableLocked: a session that waits for its lock on the table is in the way as well', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const reading = await locking('select from public.jobs')
    const migration = await openSession(url)
    const pid = await backendOf(migration)
    const cancelled = migration.query('alter table public.jobs add column extra text').catch(hasBeenCancelled)
    await blocked(db, pid)
    const { state, reasons } = await explain(id)
    expect({ state, codes: reasons.map(({ code }) => code) }).toEqual({
      state: 'unknown',
      codes: ['tableLocked'],
    })
    expect(reasons[0]?.text).toMatch(
      new RegExp(
        `^The session ${pid} .* waits to lock the whole table \\(AccessExclusiveLock\\), and every claim and every reaper waits behind it: the session ${reading.pid} \\(idle in transaction, .*\\) is in its way, in a transaction that has been open for \\d s\\.$`,
      ),
    )
    await db.query({ text: reasons[0]?.command ?? '' })
    expect(await cancelled).toBe(true)
    expect(await codes(id)).toEqual(['noWorker'])
    await reading.end()
  })

  it('tableLocked: a table that is locked while it is read is not waited for', async () => {
    const [id = ''] = await insertJobs(db, 1)
    let exclusive: Awaited<ReturnType<typeof locking>> | undefined
    const lockedMeanwhile: Database = {
      ...db,
      transaction: async (work, options) =>
        db.transaction(async (tx) => {
          const query: typeof tx.query = async (statement) => {
            const result = await tx.query(statement)
            if (statement.text.includes('explain table locks'))
              exclusive ??= await locking('lock table public.jobs in access exclusive mode')
            return result as never
          }
          return work({ query })
        }, options),
    }
    expect(await explainRow(lockedMeanwhile, JOBS, id)).toMatchObject({
      state: 'unknown',
      reasons: [{ code: 'tableLocked', by: String(exclusive?.pid) }],
    })
    await exclusive?.end()
  })

  it('oldSnapshot: who holds it, for how long, and over how many transactions', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const session = await openSession(url)
    await session.query('begin isolation level repeatable read')
    await session.query('select from public.jobs')
    const pid = await backendOf(session)
    await db.query({ text: "update public.jobs set kind = 'changed'" })
    const { text, by, command } = await reasonOf(id, 'oldSnapshot', { oldSnapshotMs: 0 })
    expect(text).toMatch(
      new RegExp(
        `^The session ${pid} .* has held a snapshot for \\d s, over [1-9]\\d* transactions?; row versions that died since then cannot be removed, so claims may have to skip them\\.$`,
      ),
    )
    expect({ by, command }).toEqual({ by: String(pid), command: `select pg_terminate_backend(${pid})` })
    expect(await codes(id, { oldSnapshotMs: 3_600_000 })).toEqual(['noWorker'])
    await session.query('rollback')
    expect(await codes(id, { oldSnapshotMs: 0 })).toEqual(['noWorker'])
  })
})

describe('oldSnapshot: who does not hold one, and who does', () => {
  it('a VACUUM is in the way of nobody', async () => {
    const [id = ''] = await insertJobs(db, 1)
    await db.query({
      text: `create table public.vacuumed with (autovacuum_enabled = false) as select n, repeat('x', 2000) from generate_series(1, 4000) as n`,
    })
    const session = await openSession(url)
    const pid = await backendOf(session)
    // A pause of 0.1 s for each of a thousand pages.
    await session.query('set vacuum_cost_limit = 1')
    await session.query('set vacuum_cost_delay = 100')
    const cancelled = session
      .query('vacuum public.vacuumed')
      .catch((error: unknown) => hasCode(error, '57014'))
    await expect
      .poll(async () => {
        const { rows } = await db.query({
          text: `select true as runs from pg_stat_progress_vacuum join pg_stat_activity using (pid)
where pid = $1 and backend_xmin is not null`,
          values: [pid],
        })
        return rows
      }, BOUND)
      .toEqual([{ runs: true }])
    expect(await codes(id, { oldSnapshotMs: 0 })).toEqual(['noWorker'])
    await db.query({ text: `select pg_cancel_backend(${pid})` })
    expect(await cancelled).toBe(true)
  })

  it('a transaction that has written holds one while it is idle', async () => {
    const [id = ''] = await insertJobs(db, 1)
    const session = await openSession(url)
    await session.query('begin')
    await session.query('insert into public.runs values (1, 1, $1)', ['somebody'])
    expect((await reasonOf(id, 'oldSnapshot', { oldSnapshotMs: 0 })).by).toBe(
      String(await backendOf(session)),
    )
    await session.query('rollback')
  })
})

describe('refused: the database refuses the claim', () => {
  it.each([
    [
      'a constraint',
      "alter table public.jobs add constraint no_saints check (claimed_by is null or kind <> 'saint') not valid",
      /SQLSTATE 23514.*violates check constraint "no_saints"/,
      'no_saints',
    ],
    [
      'a trigger',
      `create function public.refuse() returns trigger language plpgsql as $$ begin if new.kind = 'saint' then raise exception 'saints rest on Sundays'; end if; return new; end $$;
create trigger refuse before update on public.jobs for each row execute function public.refuse()`,
      /SQLSTATE P0001.*saints rest on Sundays/,
      undefined,
    ],
  ])('%s', async (_, ddl, message, by) => {
    await db.query({ text: ddl })
    try {
      const [id = ''] = await insertJobs(db, 1, 'saint')
      const { events } = await run({ handle: async () => undefined }, { presenceMs: 50 })
      expect(await events.next('dataError')).toMatchObject({ id, verb: 'claim' })
      await reasonOf(id, 'claimable')
      const refused = await reasonOf(id, 'refused', { tryClaim: true })
      expect(refused.text).toMatch(message)
      expect(refused.by).toBe(by)
      expect(await codes(id, { tryClaim: true })).toEqual(['refused'])
    } finally {
      await db.query({
        text: `alter table public.jobs drop constraint if exists no_saints; drop function if exists public.refuse() cascade`,
      })
    }
  })
})

describe('worker processes', () => {
  it('noWorker: none that is alive runs the worker of the table, and when the last one stopped', async () => {
    const [id = ''] = await insertJobs(db, 1)
    expect(await reasonOf(id, 'noWorker')).toEqual({
      code: 'noWorker',
      text: 'No worker process that is alive runs the worker jobs.',
      command: 'leasehold work --only jobs',
    })
    await db.query({ text: `update public.jobs set available_at = now() + interval '1 hour'` })
    const { runtime } = await run({ handle: async () => undefined })
    expect(await codes(id)).toEqual(['scheduled'])
    await runtime.stop()
    const { text, by, since } = await reasonOf(id, 'noWorker')
    expect(text).toMatch(
      new RegExp(`; the last one, ${runtime.id}, has been stopped since .*Z \\(\\d s ago\\)\\.$`),
    )
    expect({ by, isMoment: since instanceof Date }).toEqual({ by: runtime.id, isMoment: true })
    expect((await explain(id, { schema: 'leasehold' })).state).toBe('waiting')
  })

  it('a process that only reaps the table does not serve it', async () => {
    const [id = ''] = await insertJobs(db, 1)
    await start([], { reapTables: [{ name: 'jobs', table: JOBS.table }], presenceMs: 50 })
    await expect.poll(async () => codes(id), BOUND).toEqual(['noWorker'])
  })

  it('workersStopping: those that are alive are stopping', async () => {
    const [, id = ''] = await insertJobs(db, 2)
    const { runtime, held } = await holdOne({ shutdownTimeoutMs: 30_000 })
    // It has reported its row in flight.
    await expect.poll(async () => (await reasonOf(id, 'claimable')).text, BOUND).toContain('with 1 in flight')
    const stopped = runtime.stop()
    expect(await reasonOf(id, 'workersStopping')).toEqual({
      code: 'workersStopping',
      text: `Every worker process that ran the worker jobs is stopping: ${runtime.id} with 1 in flight.`,
      by: runtime.id,
      command: 'leasehold work --only jobs',
    })
    held.open()
    await stopped
  })

  it('workersPaused: by the settings, with the command that ends the pause', async () => {
    const { events } = await run({ handle: async () => undefined }, { presenceMs: 50 })
    const paused = events.next('paused')
    await changeSettings(db, 'leasehold', 'jobs', { paused: true }, 'alice')
    await paused
    const [id = ''] = await insertJobs(db, 1)
    const { text, by, command } = await reasonOf(id, 'workersPaused')
    expect(text).toMatch(/^The settings pause the worker jobs; alice changed them at .*Z \(\d s ago\)\.$/)
    expect({ by, command }).toEqual({ by: 'alice', command: 'leasehold settings resume jobs' })
  })

  it('workersPaused: by themselves, with the error', async () => {
    const [, id = ''] = await insertJobs(db, 2)
    const { runtime } = await run(
      {
        handle: async () => Promise.reject(new SaturatedError(600_000, '429 from the printer')),
        settings: { concurrency: 1, prefetch: 0 },
      },
      { presenceMs: 50 },
    )
    const { text, by } = await reasonOf(id, 'workersPaused')
    expect(text).toMatch(
      new RegExp(
        `^The worker jobs is paused in every process that runs it: in ${runtime.id} since .*Z \\(\\d s ago\\), because its target accepts nothing at the moment: 429 from the printer\\.$`,
      ),
    )
    expect(by).toBe(runtime.id)
  })

  it('workersPaused: as long as the probe of the target fails, and not while another process claims', async () => {
    const { events } = await run(
      {
        handle: async () => undefined,
        probe: { everyMs: 50, check: async () => Promise.reject(new Error('no route to the printer')) },
      },
      { presenceMs: 50 },
    )
    await events.next('paused')
    const [id = ''] = await insertJobs(db, 1)
    expect((await reasonOf(id, 'workersPaused')).text).toMatch(
      /, because the probe of its target fails: no route to the printer\.$/,
    )
    await db.query({ text: `update public.jobs set available_at = now() + interval '1 hour'` })
    await run({ handle: async () => undefined }, { presenceMs: 50 })
    await expect.poll(async () => codes(id), BOUND).toEqual(['scheduled'])
  })

  it('bucketNotServed: the worker serves other buckets, and with all of them the row is processed', async () => {
    await db.query({
      text: `create table public.spread (id int, bucket smallint not null, state text not null default 'new', attempts int not null default 0, lease_owner text, lease_until timestamptz, lease_token bigint, primary key (bucket, id));
create index on public.spread (bucket, id) where state = 'new';
create index on public.spread (bucket, id) where lease_owner is not null;
insert into public.spread (id, bucket) values (1, 0), (2, 3)`,
    })
    const table = leaseTable({
      table: 'public.spread',
      bucket: 'bucket',
      claimable: "state = 'new'",
      attempts: { expiries: false, error: false },
      outcomes: { done: { state: "'done'" }, dead: { state: "'dead'" } },
    })
    const spread = { name: 'spread', table, handle: async () => undefined }
    const one = await start([{ ...spread, bucket: 0 }], { presenceMs: 50 })
    await settled(one.events, ['1'])
    const explained = workedBy(table, [{ ...spread, bucket: 0 }])
    await expect
      .poll(async () => (await explain('2', {}, explained)).reasons, BOUND)
      .toEqual([
        {
          code: 'bucketNotServed',
          text: "It is in bucket 3 of public.spread, and the worker spread serves only bucket 0: declare the worker with `bucket: 'all'`.",
        },
      ])
    await one.runtime.stop()
    const all = { ...spread, bucket: 'all' } as const
    const { reasons } = await explain('2', {}, workedBy(table, [all]))
    expect(reasons.map(({ code }) => code)).toEqual(['noWorker'])
    const { events } = await start([all], { presenceMs: 50 })
    await settled(events, ['2'])
  })
})

describe('what is refused', () => {
  it('a row that does not exist', async () => {
    await expect(explain('4711')).rejects.toMatchObject({
      code: 'ROW_NOT_FOUND',
      message: 'No row of public.jobs has the id 4711. Give the id of a row that is there.',
    })
  })

  it.each(['', 'abc', '99999999999999999999', "1' or true --"])('the id %j', async (id) => {
    await expect(explain(id)).rejects.toMatchObject({
      code: 'REQUEST_INVALID',
      message: expect.stringContaining('id is ') as string,
    })
  })

  it('a table that does not exist', async () => {
    const table = leaseTable({ table: 'public.nowhere', claimable: 'true' })
    await expect(explain('1', {}, { table, workers: [] })).rejects.toMatchObject({
      code: 'LEASE_TABLE_MISMATCH',
    })
  })
})

expectAllStaged('admin')
