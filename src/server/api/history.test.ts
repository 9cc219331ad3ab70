/** Points for charts: what they say of what processes report, and that this agrees with what was done. */
import { describe, expect, it } from 'vitest'
import { useApi } from '../../../test/support/api.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { add, recording, useRelays, write } from '../../../test/support/running-relay.ts'
import { collect } from '../../../test/support/running-worker.ts'
import { openDatabase } from '../../postgres/index.ts'
import { dead, Events, listWorkers, retry, sumCounters, type WorkerRow } from '../../worker/index.ts'
import { History, type HistoryOptions, type HistoryPoints } from './history.ts'
import { readOverview } from './overview.ts'
import { ROUTES } from './resources/index.ts'

useQuietProcess()
const { url, db, send } = useApi()
const startRelay = useRelays(url)

const TABLE = 'leasehold.outbox'

function newHistory(options: Partial<HistoryOptions> = {}): History {
  return new History({
    db,
    schema: 'leasehold',
    tables: [],
    prefix: async () => Promise.resolve('leasehold'),
    statementTimeoutMs: 5_000,
    onError: (error) => {
      throw error
    },
    onPoint: () => undefined,
    ...options,
  })
}

interface Reported {
  readonly id?: string
  readonly startedAt?: number
  readonly uptimeMs: number
  readonly done?: number
  readonly recovered?: number
  readonly latency?: readonly number[]
  readonly state?: WorkerRow['state']
}

function rowOf({ id = 'one', startedAt = 0, uptimeMs, state = 'alive', ...counts }: Reported): WorkerRow {
  return {
    id,
    host: 'host',
    pid: 1,
    version: '0',
    roles: ['outbox'],
    reaps: [],
    serves: { outbox: { table: TABLE, role: 'outbox' } },
    state,
    startedAt: new Date(startedAt),
    lastSeenAt: new Date(startedAt + uptimeMs),
    inFlight: 0,
    paused: [],
    counters: { uptimeMs, tables: { [TABLE]: { ...sumCounters([]), ...counts } } },
    stoppedAt: null,
    diedAt: null,
    sessionVisible: true,
  }
}

/** One sample after the other, each of what the processes have reported by then. */
function pointsOf(samples: readonly (readonly Reported[])[], everyMs = 5_000): HistoryPoints {
  const history = newHistory()
  for (const [number, reported] of samples.entries())
    history.add(
      reported.map((each) => rowOf(each)),
      new Date(number * everyMs),
    )
  return history.points()
}

describe('a point of the history', () => {
  it('has the rates, counts and latencies since the sample before, summed over processes', () => {
    const { times, tables } = pointsOf([
      [
        { uptimeMs: 5_000, done: 100, latency: [100] },
        { id: 'two', uptimeMs: 7_000, done: 50, recovered: 1, latency: [50] },
      ],
      [
        { uptimeMs: 10_000, done: 150, latency: [100, 50] },
        { id: 'two', uptimeMs: 12_000, done: 60, recovered: 3, latency: [50, 0, 10] },
      ],
    ])
    expect(times).toEqual([new Date(5_000)])
    expect(tables).toMatchObject([
      {
        table: TABLE,
        workers: ['outbox'],
        donePerSecond: [12],
        retriedPerSecond: [0],
        recovered: [2],
        // 50 rows took 1 to 2 ms, 10 took 2 to 5 ms.
        latencyP50Ms: [1.6],
        latencyP99Ms: [4.82],
        pending: [null],
      },
    ])
  })

  it('is never negative: a process that started anew under its id counts from 0', () => {
    const { tables } = pointsOf([
      [{ uptimeMs: 60_000, done: 1_000, recovered: 9 }],
      [{ startedAt: 1, uptimeMs: 2_000, done: 10, recovered: 1 }],
    ])
    expect(tables).toMatchObject([{ donePerSecond: [5], recovered: [1] }])
  })

  it('counts a process that started since the sample before, and none that has ended', () => {
    const { tables } = pointsOf([
      [{ uptimeMs: 5_000, done: 100 }],
      [
        { uptimeMs: 5_000, done: 100, state: 'stopped' },
        { id: 'new', uptimeMs: 4_000, done: 8 },
      ],
    ])
    expect(tables).toMatchObject([{ donePerSecond: [2] }])
  })

  it('does not show samples that found no new report, or two at once, as a dip and a peak', () => {
    const { tables } = pointsOf([
      [{ uptimeMs: 5_000, done: 50 }],
      [{ uptimeMs: 10_000, done: 100 }],
      [{ uptimeMs: 10_000, done: 100 }],
      [{ uptimeMs: 20_000, done: 200 }],
      [{ uptimeMs: 20_000, done: 200 }],
      [{ uptimeMs: 20_000, done: 200 }],
    ])
    // A process that is silent for longer is not assumed to go on.
    expect(tables).toMatchObject([{ donePerSecond: [10, 10, 10, 10, 0] }])
  })

  it('is forgotten after an hour, and those after a time can be asked for alone', () => {
    const samples = Array.from({ length: 130 }, (_, number) => [{ uptimeMs: number * 60_000, done: number }])
    const { times } = pointsOf(samples, 60_000)
    expect(times).toHaveLength(60)
    const history = newHistory()
    for (const number of [0, 1, 2, 3]) history.add([rowOf({ uptimeMs: number })], new Date(number))
    expect(history.points(new Date(1)).times).toEqual([new Date(2), new Date(3)])
  })

  it('is missing while the database does not answer, which is no error', async () => {
    const away = openDatabase({ url: 'postgresql://nobody@127.0.0.1:1/nothing' })
    const history = newHistory({ db: away })
    await history.sample()
    await history.sample()
    expect(history.points().times).toEqual([])
    await away.close()
  })
})

it('what a relay did is in the points, in the totals of the overview, and in the answer of the route', async () => {
  const told: HistoryPoints[] = []
  const history = newHistory({ onPoint: (point) => void told.push(point) })
  await history.sample()
  expect(history.points().times).toEqual([])
  const before = (await readOverview(db)).totals
  await write(db, null, null, null, null, null, null)
  // The lease of a process that is gone.
  await add(
    db,
    `(event_type, payload, status, claimed_at, claimed_by, locked_until, lock_token)
     values ('test.happened', '{"n": 7}', 'CLAIMED', now() - interval '1 hour', 'gone', now() - interval '1 minute', 1)`,
  )
  // And one that nobody publishes.
  await add(db, `(event_type, payload, available_at) values ('test.waits', '1', now() + interval '1 hour')`)
  const events = new Events()
  const over = collect(events, 'settled', (all) => all.reduce((sum, { ids }) => sum + ids.length, 0) === 7)
  const publisher = recording(({ payload }) => {
    if (Reflect.get(Object(payload), 'n') === 1) return dead(new Error('unreadable'))
    if (Reflect.get(Object(payload), 'n') === 2) return retry({ delayMs: 3_600_000 })
    return undefined
  })
  const { runtime } = await startRelay({ publisher }, { events })
  await over
  await runtime.stop()
  const row = (await listWorkers(db, 'leasehold')).find(({ id }) => id === runtime.id)
  await history.sample()

  const expected = { done: 5, retried: 1, dead: 1, fencedOff: 0, recovered: 1 }
  expect(row?.counters.tables[TABLE]).toMatchObject(expected)
  const point = history.points().tables.find(({ table }) => table === TABLE)
  const seconds = (row?.counters.uptimeMs ?? 0) / 1_000
  expect(point?.donePerSecond).toEqual([expect.closeTo(5 / seconds, 1)])
  expect(point?.deadPerSecond).toEqual([expect.closeTo(1 / seconds, 1)])
  expect(point).toMatchObject({ workers: ['outbox'], recovered: [1], fencedOff: [0] })
  const [p50, p99] = [point?.latencyP50Ms[0], point?.latencyP99Ms[0]]
  expect(p50).toBeGreaterThan(0)
  expect(p99).toBeGreaterThanOrEqual(p50 ?? Infinity)
  // Counted with the first sample, and every half a minute.
  expect(point?.pending).toEqual([0])
  expect(told).toEqual([history.points()])

  const { totals, workers } = await readOverview(db)
  expect(totals).toMatchObject({
    done: before.done + 5,
    recovered: before.recovered + 1,
    dead: before.dead + 1,
  })
  expect(totals.tables).toMatchObject([{ table: TABLE, workers: ['outbox'], ...expected }])
  expect(totals.since).toEqual(row?.startedAt)
  expect(workers).toMatchObject({ stopped: 1, stopping: 0 })

  const route = ROUTES.find(({ path }) => path === '/history')
  const answered = await route?.run(
    { params: {}, query: {}, body: undefined },
    // The route needs nothing else.
    { context: { history } } as never,
  )
  expect(answered).toEqual(history.points())
  await history.stop()
  expect((await send('GET', '/history', { key: 'read' })).status).toBe(200)
  expect((await send('GET', '/history', { key: 'tenantRead' })).status).toBe(403)
})

it('a process that is alive and has given up its roles is stopping', async () => {
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, serves) values
      ('stops', 'h', 1, '0', '{reaper}', '{"outbox": {"table": "leasehold.outbox", "role": "outbox"}}'),
      ('runs', 'h', 2, '0', '{outbox,reaper}', '{"outbox": {"table": "leasehold.outbox", "role": "outbox"}}'),
      ('only reaps', 'h', 3, '0', '{reaper}', '{}')`,
  })
  expect((await readOverview(db)).workers).toMatchObject({ alive: 3, stopping: 1 })
})
