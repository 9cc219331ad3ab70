import { setImmediate as turn } from 'node:timers/promises'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { collect, door, settled, useWorkers } from '../../test/support/running-worker.ts'
import { insertJobs, jobs, jobStates, WORK_DDL } from '../../test/support/work-table.ts'
import { createLog, logEvents } from '../observe/log.ts'
import { openDatabase } from '../postgres/database.ts'
import { type AnyEvent, Events } from './events.ts'
import { dead, SaturatedError } from './completion/outcome.ts'

useQuietProcess()
const { url } = useDatabase()
const run = useWorkers(url)
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs restart identity' })
})
afterAll(async () => db.close())

/** The types of these events, in the order in which they are emitted. */
function eventTypes(events: Events, types: readonly AnyEvent['type'][]): AnyEvent['type'][] {
  const emitted: AnyEvent['type'][] = []
  for (const type of types) events.on(type, () => emitted.push(type))
  return emitted
}

describe('backpressure', () => {
  it('RULE-020-042: a SaturatedError pauses claiming for its time; its row is released without counting an attempt, and work resumes', async () => {
    const events = new Events()
    const emitted = eventTypes(events, ['started', 'paused', 'resumed'])
    const [paused, resumed, released] = [
      events.next('paused'),
      events.next('resumed'),
      events.next('released'),
    ]
    const attempts: number[] = []
    const [first] = await insertJobs(db, 20)
    const over = settled(events, 20)
    let saturated = true
    await run(
      {
        handle: async ({ id, attempt }) => {
          if (id === first) attempts.push(attempt)
          if (saturated) {
            saturated = false
            throw new SaturatedError(300)
          }
          return Promise.resolve()
        },
        settings: { concurrency: 1, prefetch: 10 },
      },
      { events },
    )
    expect(await paused).toMatchObject({ reason: 'saturated', forMs: 300 })
    expect((await released).ids.length).toBeGreaterThan(0)
    expect(await resumed).toMatchObject({ reason: 'saturated' })
    await over
    expect(emitted.slice(0, 4)).toEqual(['started', 'paused', 'resumed', 'started'])
    expect(attempts).toEqual([1, 1])
    expect(
      (await jobs(db)).every(({ status, attempts: counted }) => status === 'DONE' && counted === 0),
    ).toBe(true)
  })

  it('RULE-020-042: a pause by an operator releases the rows that were not started, lets the others finish, and lasts until it is ended', async () => {
    const events = new Events()
    const hold = door()
    const count = { claimed: 0, released: 0, started: 0 }
    events.on('claimed', (event) => (count.claimed += event.count))
    events.on('released', ({ ids }) => (count.released += ids.length))
    events.on('started', () => (count.started += 1))
    await insertJobs(db, 10)
    const several = events.next('claimed', () => count.claimed >= 2)
    const { runtime } = await run(
      { handle: async () => hold.opened, settings: { concurrency: 1, prefetch: 20 } },
      { events },
    )
    await several
    const given = events.next('released', () => count.released === count.claimed - 1)
    const paused = events.next('paused')
    runtime.worker('jobs').pause()
    expect(await paused).toMatchObject({ reason: 'operator', forMs: undefined })
    await given
    const finished = settled(events, 1)
    hold.open()
    await finished
    expect(await jobStates(db)).toEqual({ DONE: 1, PENDING: 9 })
    expect((await jobs(db)).every(({ attempts }) => attempts === 0)).toBe(true)
    // A change of something else does not end it.
    const over = settled(events, 9)
    let resumes = 0
    const resumed = events.next('resumed', () => (resumes += 1) > 0)
    runtime.change('jobs', { concurrency: 4 })
    expect(resumes).toBe(0)
    expect(count.started).toBe(1)
    runtime.worker('jobs').resume()
    expect(await resumed).toMatchObject({ reason: 'operator' })
    await over
    expect(await jobStates(db)).toEqual({ DONE: 10 })
  })

  it('RULE-020-042: claiming pauses while the probe of a sink fails, and resumes when it succeeds', async () => {
    const events = new Events()
    const emitted = eventTypes(events, ['started', 'resumed'])
    const paused = events.next('paused')
    const probes = { until: Number.POSITIVE_INFINITY, count: 0 }
    await run(
      {
        handle: async () => undefined,
        settings: { pollMs: 10 },
        probe: {
          everyMs: 10,
          check: async () => {
            probes.count += 1
            if (probes.count < probes.until) throw new Error('no room')
            return Promise.resolve()
          },
        },
      },
      { events },
    )
    expect(await paused).toMatchObject({ reason: 'unhealthy' })
    await insertJobs(db, 5)
    const over = settled(events, 5)
    const resumed = events.next('resumed')
    // Long enough for a worker that does not pause to poll several times.
    probes.until = probes.count + 20
    expect(await resumed).toMatchObject({ reason: 'unhealthy' })
    await over
    expect(emitted[0]).toBe('resumed')
  })

  it('of two reasons to pause, the end of the first is no resumption: the log says so only when none is left', async () => {
    const events = new Events()
    const logged: Record<string, unknown>[] = []
    const write = (line: string): void => void logged.push(JSON.parse(line) as Record<string, unknown>)
    const off = logEvents(events, createLog({ level: 'info', format: 'json', write }))
    let isWell = false
    const unhealthy = events.next('paused', ({ reason }) => reason === 'unhealthy')
    const check = async (): Promise<void> =>
      isWell ? Promise.resolve() : Promise.reject(new Error('no room'))
    const { runtime } = await run(
      { handle: async () => undefined, probe: { everyMs: 10, check } },
      { events },
    )
    await unhealthy
    runtime.worker('jobs').pause()
    const [first, last] = [
      events.next('resumed', ({ reason }) => reason === 'unhealthy'),
      events.next('resumed', ({ reason }) => reason === 'operator'),
    ]
    isWell = true
    expect(await first).toMatchObject({ stillPausedFor: ['operator'] })
    runtime.worker('jobs').resume()
    expect(await last).not.toHaveProperty('stillPausedFor')
    off()
    const resumptions = logged.filter(({ event }) => event === 'resumed')
    expect(resumptions).toEqual([
      expect.objectContaining({ level: 'info', msg: 'claiming has resumed', reason: 'operator' }),
    ])
  })
})

describe('limits per key', () => {
  it('rows of one key never overlap with a concurrency of one, and all are done', async () => {
    const events = new Events()
    for (const kind of ['a', 'b', 'c']) await insertJobs(db, 15, kind)
    const over = settled(events, 45)
    const running = new Map<string, number>()
    let most = 0
    let together = 0
    await run(
      {
        handle: async ({ row: { kind } }) => {
          running.set(kind, (running.get(kind) ?? 0) + 1)
          most = Math.max(most, ...running.values())
          together = Math.max(
            together,
            [...running.values()].reduce((sum, n) => sum + n, 0),
          )
          for (let i = 0; i < 20; i += 1) await turn()
          running.set(kind, (running.get(kind) ?? 0) - 1)
        },
        limits: { key: ({ kind }) => kind, concurrency: 1 },
      },
      { events },
    )
    await over
    expect(most).toBe(1)
    expect(together).toBeGreaterThan(1)
    expect(await jobStates(db)).toEqual({ DONE: 45 })
  })

  it.each([0, 5, 500])(
    'RULE-020-042: a key without room does not delay other keys, however many of its rows come first (prefetch %d)',
    async (prefetch) => {
      const events = new Events()
      const hold = door()
      await insertJobs(db, 60, 'slow')
      const others = await insertJobs(db, 60, 'other')
      const over = settled(events, others)
      await run(
        {
          handle: async ({ row: { kind } }) => (kind === 'slow' ? hold.opened : undefined),
          settings: { prefetch },
          limits: { key: ({ kind }) => (kind === 'slow' ? kind : undefined), concurrency: 1 },
        },
        { events },
      )
      await over
      const rows = await jobs(db)
      hold.open()
      expect(rows.filter(({ status }) => status === 'DONE').map(({ id }) => id)).toEqual(others)
      expect(rows.every(({ attempts }) => attempts === 0)).toBe(true)
    },
  )

  it('a rate limits how many rows have started at any time, and does not slow down rows without a key', async () => {
    const events = new Events()
    const [perSecond, burst] = [20, 2]
    await insertJobs(db, 22, 'slow')
    const quick = await insertJobs(db, 100, 'quick')
    const startedAt: number[] = []
    const beganAt = performance.now()
    let lastSlow = false
    const quickOver = settled(events, quick).then(() => lastSlow)
    const over = settled(events, 122)
    await run(
      {
        handle: async ({ row: { kind } }) => {
          if (kind === 'slow') startedAt.push(performance.now())
          lastSlow = startedAt.length === 22
          return Promise.resolve()
        },
        limits: { key: ({ kind }) => (kind === 'slow' ? kind : undefined), rate: { perSecond, burst } },
      },
      { events },
    )
    expect(await quickOver).toBe(false)
    await over
    // That this holds for any span of time is shown with a clock of its own in slots/limits.test.ts.
    startedAt.forEach((at, i) =>
      expect(i + 1).toBeLessThanOrEqual(burst + ((at - beganAt) * perSecond) / 1_000 + 0.1),
    )
  })
})

describe('a backlog of 5,000 rows', () => {
  const [concurrency, prefetch, batch, claimLoops] = [8, 40, 15, 2]

  beforeAll(async () => {
    // The table itself records, after every statement, how many rows are leased.
    await db.query({
      text: `
        create table public.peaks (claimed int not null);
        create function public.record_peak() returns trigger language plpgsql as $$ begin
          insert into public.peaks select count(*) from public.jobs where status = 'CLAIMED'; return null; end $$;
        create trigger record_peak after update on public.jobs for each statement execute function public.record_peak()`,
    })
  })
  afterAll(async () => db.query({ text: 'drop trigger record_peak on public.jobs' }))

  it('RULE-020-041: with a backlog of 5,000 there are never more rows in flight than slots and prefetch, nor more handlers than slots', async () => {
    await insertJobs(db, 5_000)
    const events = new Events()
    const over = settled(events, 5_000)
    const handlers = { now: 0, most: 0 }
    const claims: number[] = []
    events.on('claimed', ({ count }) => claims.push(count))
    // The most frequent renewals: some lock rows that are being settled, and those stay in flight.
    const lease = { leaseMs: 60_000, heartbeatMs: 25 }
    await run(
      {
        handle: async ({ id }) => {
          handlers.now += 1
          handlers.most = Math.max(handlers.most, handlers.now)
          await turn()
          handlers.now -= 1
          // Outcomes of two kinds, which no one statement settles.
          return Number(id) % 3 === 0 ? dead('every third') : undefined
        },
        settings: { concurrency, prefetch, batch, claimLoops, ...lease },
      },
      { events },
    )
    await over
    expect(await jobStates(db)).toEqual({ DONE: 3_334, DEAD: 1_666 })
    const { rows } = await db.query<{ leased: number }>({
      text: 'select max(claimed) as leased from public.peaks',
    })
    expect(rows[0]?.leased).toBeLessThanOrEqual(concurrency + prefetch)
    expect(rows[0]?.leased).toBeGreaterThan(concurrency)
    expect(handlers.most).toBe(concurrency)
    expect(Math.max(...claims)).toBeLessThanOrEqual(batch)
  })
})

it('a worker drains a backlog without waiting for polls, and then claims new rows', async () => {
  const events = new Events()
  await insertJobs(db, 1_000)
  const over = settled(events, 1_000)
  const claims = collect(events, 'claimed', (all) => all.reduce((sum, { count }) => sum + count, 0) >= 1_000)
  await run({ handle: async () => undefined, settings: { pollMs: 3_600_000 } }, { events })
  await over
  expect((await claims).length).toBeGreaterThan(1)
})
