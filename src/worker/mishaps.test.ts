/** What users, networks and databases do wrong, each of which once cost a row or a worker. */
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { collect, door, settled, useWorkers } from '../../test/support/running-worker.ts'
import { insertJobs, jobs, jobStates, WORK_DDL } from '../../test/support/work-table.ts'
import { openDatabase } from '../postgres/database.ts'
import { Events } from './events.ts'
import { retry, SaturatedError, type Outcome } from './completion/outcome.ts'
import { workerSettings } from './settings.ts'

useQuietProcess()
const { url } = useDatabase()
const run = useWorkers(url)
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
beforeEach(async () => {
  await db.query({
    text: 'truncate public.jobs, public.runs restart identity; delete from leasehold.settings',
  })
})
afterAll(async () => db.close())

it('RULE-020-030: the rows of a claim that is on its way when the worker stops are not started and not left leased', async () => {
  const started: string[] = []
  const { runtime } = await run({ handle: async ({ id }) => void started.push(id) })
  const stopping = db.transaction(async (tx) => {
    // The claim waits for the lock, with the rows before its eyes.
    await tx.query({ text: 'lock table public.jobs in access exclusive mode' })
    await tx.query({ text: "insert into public.jobs (kind) select 'plain' from generate_series(1, 15)" })
    runtime.worker('jobs').wake()
    for (;;) {
      const text =
        "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
      if ((await db.query({ text })).rowCount !== 0) break
    }
    return { stopped: runtime.stop() }
  })
  const { stopped } = await stopping
  expect(await stopped).toEqual({ clean: true })
  expect(started).toEqual([])
  expect(await jobStates(db)).toEqual({ PENDING: 15 })
})

it('a handler that returns something that is no outcome fails its row, and its slot is used for other rows', async () => {
  await insertJobs(db, 20)
  const events = new Events()
  const failures = collect(events, 'failed', (all) => all.length === 20)
  // What a handler written without types may do.
  const handle = async (): Promise<Outcome> => Promise.resolve({ ok: true } as unknown as Outcome)
  await run({ handle, settings: { concurrency: 4 } }, { events })
  expect(String((await failures)[0]?.error)).toContain('no outcome')
})

it('a row for which the key of a limit throws fails, and no other row does', async () => {
  const ids = await insertJobs(db, 30)
  const events = new Events()
  const over = settled(events, ids)
  await run(
    {
      handle: async () => Promise.resolve(),
      limits: {
        concurrency: 2,
        key: ({ id }) => {
          if (id === ids[7]) throw new Error('no key for this one')
          return 'key'
        },
      },
      settings: { concurrency: 4 },
    },
    { events },
  )
  await over
  const failed = (await jobs(db)).filter(({ last_error }) => last_error !== null)
  expect(failed.map(({ id, last_error }) => [id, last_error])).toEqual([
    [ids[7], 'Error: no key for this one'],
  ])
})

it('handlers that hang on lost rows do not cost the rows that wait for a slot an attempt', async () => {
  const ids = await insertJobs(db, 30)
  const events = new Events()
  const exit = door()
  const clogged = events.next('trouble', ({ what }) => what.includes('pauses until handlers return'))
  const hung = new Set(ids.slice(0, 5))
  const { runtime } = await run(
    {
      handle: async ({ id }) => {
        if (hung.has(id)) await exit.opened
      },
      settings: { concurrency: 2, prefetch: 50, leaseMs: 600, reaperIntervalMs: 200 },
    },
    { events },
  )
  await clogged
  const others = (await jobs(db)).filter(({ id }) => !hung.has(id))
  expect(others.map(({ attempts }) => attempts)).toEqual(others.map(() => 0))
  exit.open()
  await settled(events, 1)
  expect(runtime.inFlight).toBeLessThan(60)
})

it('RULE-020-042: a SaturatedError whose time is not a number still pauses claiming, and costs no attempt', async () => {
  await insertJobs(db, 3)
  const events = new Events()
  const released = events.next('released')
  const paused = events.next('paused')
  let calls = 0
  await run(
    {
      handle: async () => {
        calls += 1
        return calls === 1 ? Promise.reject(new SaturatedError(Number.NaN)) : Promise.resolve()
      },
      settings: { concurrency: 1, prefetch: 0 },
    },
    { events },
  )
  expect((await paused).forMs).toBe(1_000)
  await released
  await settled(events, 3)
  expect((await jobs(db)).map(({ attempts }) => attempts)).toEqual([0, 0, 0])
})

it('a retry whose delay is not a number gets the delay of the policy', () => {
  expect(retry({ delayMs: Number.NaN }).args).toEqual({ error: null })
})

it.each([{ leaseMs: 30 }, { leaseMs: 1e300 }, { leaseMs: 1e10, reaperIntervalMs: 5e9 }, { foo: 1 }])(
  'RULE-020-002: settings such as %o are refused, and if stored by hand they do not keep a worker from starting',
  async (stored) => {
    expect(() => workerSettings(stored)).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
    await db.query({
      text: "insert into leasehold.settings (name, value, changed_by) values ('jobs', $1, 'a hand')",
      values: [JSON.stringify(stored)],
    })
    const events = new Events()
    const refused = events.next('settingsRefused')
    const { runtime } = await run({ handle: async () => Promise.resolve() }, { events })
    await refused
    expect(runtime.worker('jobs').settings.leaseMs).toBe(30_000)
  },
)

it('an outcome that a handler returns after its own settlement was rolled back is written', async () => {
  await insertJobs(db, 1)
  const events = new Events()
  const over = settled(events, 1)
  await run(
    {
      handle: async (context) => {
        const rolledBack = db.transaction(async (tx) => {
          await context.settleIn(tx)
          throw new Error('rolled back')
        })
        await rolledBack.catch(() => undefined)
        return retry({ delayMs: 60_000 })
      },
    },
    { events },
  )
  await over
  expect(await jobs(db)).toMatchObject([{ status: 'PENDING', attempts: 1, claimed_by: null }])
})

it('a probe that never answers counts as failed and does not hold up a stop', async () => {
  const events = new Events()
  const paused = events.next('paused', ({ reason }) => reason === 'unhealthy')
  const { runtime } = await run(
    {
      handle: async () => Promise.resolve(),
      probe: { everyMs: 100, check: async () => new Promise(() => undefined) },
    },
    { events },
  )
  await paused
  expect(await runtime.stop()).toEqual({ clean: true })
})

it('a process that starts with the id of a dead one takes back the leases of that one', async () => {
  const [id] = await insertJobs(db, 1)
  await db.query({
    text: "update public.jobs set status = 'CLAIMED', available_at = null, claimed_by = 'fixed', lock_token = 1, locked_until = now() + interval '1 hour'",
  })
  const events = new Events()
  const reaped = events.next('reaped')
  const over = settled(events, 1)
  await run({ handle: async () => Promise.resolve() }, { events, id: 'fixed' })
  expect(await reaped).toMatchObject({ id, owner: 'fixed', evicted: true })
  await over
  expect(await jobs(db)).toMatchObject([{ status: 'DONE', attempts: 1 }])
})

it('RULE-020-051: maxLeases says for how many leases a row may be held, and the row says that its handler did not return', async () => {
  const events = new Events()
  const [lost, reaped] = [events.next('lost'), events.next('reaped')]
  const hold = door()
  const [id] = await insertJobs(db, 1)
  await run(
    { handle: async () => hold.opened, settings: { leaseMs: 1_000, maxLeases: 1 } },
    { events, reaper: false },
  )
  expect(await lost).toMatchObject({ id, reason: 'tooLong' })
  expect(await reaped).toMatchObject({ id, evicted: false, outcome: 'retry' })
  const { rows } = await db.query({ text: 'select last_error from public.jobs where id = $1', values: [id] })
  expect(rows).toEqual([{ last_error: 'the handler did not return within 1 lease of 1000 ms (maxLeases)' }])
  hold.open()
})

it('a row whose handler hangs says so although the reaper of the same process runs far more often than its leases end', async () => {
  const events = new Events()
  const hold = door()
  const ids = await insertJobs(db, 3)
  const reaped = collect(events, 'reaped', (all) => ids.every((id) => all.some((row) => row.id === id)))
  await run(
    { handle: async () => hold.opened, settings: { leaseMs: 1_000, maxLeases: 1, reaperIntervalMs: 25 } },
    { events },
  )
  await reaped
  const errors = (await jobs(db)).map(({ last_error }) => last_error)
  expect(errors).toEqual(ids.map(() => 'the handler did not return within 1 lease of 1000 ms (maxLeases)'))
  hold.open()
})
