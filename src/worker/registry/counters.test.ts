import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { settled, useWorkers } from '../../../test/support/running-worker.ts'
import { insertJobs, WORK_DDL } from '../../../test/support/work-table.ts'
import { openDatabase } from '../../postgres/database.ts'
import { retry } from '../completion/outcome.ts'
import { Events } from '../events.ts'
import {
  counterDifference,
  LATENCY_BOUNDS_MS,
  latencyQuantile,
  NO_COUNTERS,
  ProcessCounters,
  sumCounters,
  type TableCounters,
} from './counters.ts'
import { listWorkers, presence, stopped, describeWorker } from './registry.ts'

const of = { worker: 'w', table: 'public.jobs' }

function counted(emit: (events: Events) => void): TableCounters {
  const events = new Events()
  const counters = new ProcessCounters(events, 'w')
  emit(events)
  counters.close()
  const [table] = Object.values(counters.read().tables)
  return table ?? sumCounters([])
}

describe('the counters of a process', () => {
  it('count each event by what it says', () => {
    const counts = counted((events) => {
      events.emit('claimed', { ...of, count: 5, full: false, durationMs: 1 })
      events.emit('claimed', { ...of, count: 2, full: false, durationMs: 1 })
      events.emit('settled', {
        ...of,
        outcome: 'done',
        ids: ['1', '2'],
        durationMs: 1,
        latenciesMs: [1, 1.5],
      })
      events.emit('settled', { ...of, outcome: 'retry', ids: ['3'], durationMs: 1 })
      events.emit('settled', { ...of, outcome: 'dead', ids: ['4'], durationMs: 1 })
      events.emit('settled', { ...of, outcome: 'pending->paid', ids: ['5'], durationMs: 1 })
      events.emit('settled', { ...of, outcome: 'open', ids: ['6', '7'], durationMs: 1 })
      events.emit('failed', {
        ...of,
        id: '4',
        token: 1n,
        attempt: 3,
        outcome: 'dead',
        error: new Error('no'),
      })
      events.emit('fencedOff', { ...of, id: '8', token: 1n, outcome: 'done', isUncertain: false })
      events.emit('renewed', { ...of, count: 3, busy: 0, durationMs: 1 })
      events.emit('maintenanceRan', { ...of, done: {}, dead: 2, durationMs: 1 })
      for (const outcome of ['retry', 'dead'] as const)
        events.emit('reaped', { ...of, id: '9', token: 1n, owner: 'o', staleMs: 1, evicted: false, outcome })
    })
    expect(counts).toEqual({
      claims: 2,
      claimed: 7,
      done: 3,
      retried: 1,
      dead: 4,
      failed: 1,
      fencedOff: 1,
      recovered: 2,
      renewed: 3,
      outcomes: { 'pending->paid': 1, open: 2 },
      latency: [1, 1],
      lastError: { at: expect.any(String), error: 'no' },
    })
  })

  it('do not count the events of other processes that share the listeners', () => {
    const counts = counted((events) =>
      events.emit('claimed', { ...of, worker: 'another', count: 5, full: false, durationMs: 1 }),
    )
    expect(counts).toEqual(sumCounters([]))
  })

  it('have a bounded size, whatever outcomes and latencies there are', () => {
    const counts = counted((events) => {
      for (let each = 0; each < 200; each += 1)
        events.emit('settled', {
          ...of,
          outcome: `outcome ${each}`,
          ids: ['1'],
          durationMs: 1,
          latenciesMs: [10 ** each],
        })
      const error = new Error(`\0${'x'.repeat(5_000)} postgres://me:secret@host/db`)
      events.emit('failed', { ...of, id: '1', token: 1n, attempt: 1, outcome: 'retry', error })
    })
    expect(Object.keys(counts.outcomes)).toHaveLength(51)
    expect(counts.outcomes['other']).toBe(150)
    expect(counts.latency).toHaveLength(LATENCY_BOUNDS_MS.length + 1)
    expect(counts.latency.reduce((sum, count) => sum + count, 0)).toBe(200)
    expect(counts.lastError?.error).toHaveLength(300)
    expect(counts.lastError?.error).not.toContain('\0')
  })

  it('are summed over processes, and the newest error is that of all', () => {
    const one = { ...sumCounters([]), done: 1, outcomes: { a: 1 }, latency: [1] }
    const two = { ...sumCounters([]), done: 2, outcomes: { b: 3 }, latency: [0, 5] }
    const error = (at: string) => ({ at, error: at })
    expect(
      sumCounters([
        { ...one, lastError: error('2026-01-02') },
        { ...two, lastError: error('2026-01-01') },
      ]),
    ).toMatchObject({ done: 3, outcomes: { a: 1, b: 3 }, latency: [1, 5], lastError: error('2026-01-02') })
  })

  it('of a process that started anew under the same id make no negative difference', () => {
    const before = { ...sumCounters([]), done: 10, latency: [4, 1] }
    expect(counterDifference({ ...before, done: 12, latency: [4, 3, 1] }, before)).toMatchObject({
      done: 2,
      latency: [0, 2, 1],
    })
    expect(counterDifference({ ...before, done: 3, latency: [1] }, before)).toMatchObject({
      done: 3,
      latency: [1, 0],
    })
  })

  it.each([
    ['none', [], 0.5, undefined],
    ['one bucket, evenly', [0, 10], 0.5, 1.5],
    ['the last row of a bucket', [10], 1, 1],
    ['two buckets', [50, 0, 50], 0.75, 3.5],
    ['rows above the last bound', [...LATENCY_BOUNDS_MS.map(() => 0), 7], 0.99, LATENCY_BOUNDS_MS.at(-1)],
  ])('give the quantile of latencies: %s', (_, latency, part, expected) => {
    expect(latencyQuantile(latency, part)).toBe(expected)
  })
})

describe('in the registry', () => {
  useQuietProcess()
  const { url } = useDatabase()
  const run = useWorkers(url)
  const db = openDatabase({ url })
  beforeAll(async () => void (await db.query({ text: WORK_DDL })))
  beforeEach(async () => void (await db.query({ text: 'truncate leasehold.workers' })))
  afterAll(async () => db.close())

  const report = { uptimeMs: 5_000, tables: { 'public.jobs': { ...sumCounters([]), done: 7 } } }

  it('a presence reports them, and a stop reports the last ones', async () => {
    const worker = describeWorker(['jobs'], { id: 'one' })
    const reported = async () => (await listWorkers(db, 'leasehold'))[0]?.counters
    await db.query(presence('leasehold', worker, 0, undefined))
    expect(await reported()).toEqual(NO_COUNTERS)
    await db.query(presence('leasehold', worker, 0, undefined, [], report))
    expect(await reported()).toEqual(report)
    await db.query(stopped('leasehold', 'one'))
    expect(await reported()).toEqual(report)
    await db.query(stopped('leasehold', 'one', { ...report, uptimeMs: 6_000 }))
    expect(await reported()).toEqual({ ...report, uptimeMs: 6_000 })
  })

  it.each(['inline', 'thread'] as const)(
    'a process that has stopped shows exactly what it did (heartbeat: %s)',
    async (heartbeat) => {
      const events = new Events()
      await db.query({ text: 'truncate public.jobs restart identity' })
      const over = settled(events, 5)
      await insertJobs(db, 5)
      const { runtime } = await run(
        {
          handle: async ({ id }) =>
            Promise.resolve(
              id === '1' ? retry({ error: new Error('not yet'), delayMs: 3_600_000 }) : undefined,
            ),
        },
        { events, heartbeat },
      )
      await over
      await runtime.stop()
      const [row] = await listWorkers(db, 'leasehold')
      expect(row).toMatchObject({
        state: 'stopped',
        counters: {
          uptimeMs: expect.any(Number),
          tables: {
            'public.jobs': {
              claimed: 5,
              done: 4,
              retried: 1,
              dead: 0,
              failed: 1,
              fencedOff: 0,
              recovered: 0,
              lastError: { error: 'Error: not yet' },
            },
          },
        },
      })
    },
  )
})
