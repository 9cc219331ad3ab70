import { afterAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { recordingApi } from '../../test/support/recording-meter.ts'
import { collect } from '../../test/support/running-worker.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { outboxTable } from '../outbox/table.ts'
import { openDatabase } from '../postgres/database.ts'
import { Events } from '../worker/events.ts'
import { observeWithOpenTelemetry } from './opentelemetry.ts'
import { createMetrics } from './prometheus.ts'

const { url } = useDatabase()
const start = useRuntimes(url)
const db = openDatabase({ url })
afterAll(async () => db.close())

/** Events whose leases ended this long ago, after so many failed attempts of the 25 that are the default. */
async function addExpired(count: number, ago: string, attempts: number): Promise<void> {
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload, status, attempts, claimed_at, claimed_by, locked_until, lock_token)
select 'late', '1', 'CLAIMED', $3, now() - $2::interval, 'vanished', now() - $2::interval, 1 from generate_series(1, $1::int)`,
    values: [count, ago, attempts],
  })
}

it('RULE-020-023, D14: what the three metrics of the reaper say, in Prometheus and in OpenTelemetry, is what it did in the table', async () => {
  await addExpired(30, '1000 seconds', 0)
  await addExpired(4, '1000 seconds', 24)
  await addExpired(6, '2 hours', 3)
  // Still leased: no reaper may take or count it.
  await addExpired(1, '-1 hour', 0)
  const events = new Events()
  const metrics = createMetrics(events)
  const { api, written } = recordingApi()
  observeWithOpenTelemetry(events, api)
  let runs = 0
  let rowsOfRuns = 0
  events.on('reaperRan', ({ reaped }) => {
    runs += 1
    rowsOfRuns += reaped
  })
  // The last run finds nothing, and is counted too.
  const allRan = collect(
    events,
    'reaperRan',
    (all) => all.at(-1)?.reaped === 0 && all.some(({ reaped }) => reaped > 0),
  )
  const { runtime } = await start([], {
    events,
    id: 'w1',
    reapTables: [{ table: outboxTable() }],
    settings: { reaperIntervalMs: 25 },
  })
  await allRan
  await runtime.stop()

  const { rows } = await db.query({
    text: `select status, count(*)::int from leasehold.outbox group by status order by status`,
  })
  expect(rows).toEqual([
    { status: 'CLAIMED', count: 1 },
    { status: 'DEAD', count: 4 },
    { status: 'PENDING', count: 36 },
  ])
  expect(rowsOfRuns).toBe(40)

  const text = await metrics.render()
  const of = 'table="leasehold.outbox"'
  expect(text).toContain(`reaper_recovered_count_total{${of},outcome="retry",worker="w1"} 36\n`)
  expect(text).toContain(`reaper_recovered_count_total{${of},outcome="dead",worker="w1"} 4\n`)
  expect(text).toContain(`leasehold_dead_rows_total{${of},worker="w1"} 4\n`)
  expect(text).toContain(`reaper_stale_duration_seconds_bucket{${of},worker="w1",le="900"} 0\n`)
  expect(text).toContain(`reaper_stale_duration_seconds_bucket{${of},worker="w1",le="3600"} 34\n`)
  expect(text).toContain(`reaper_stale_duration_seconds_count{${of},worker="w1"} 40\n`)
  expect(text).toContain(`reaper_runs_total{worker="w1"} ${runs}\n`)
  const sum = Number(/stale_duration_seconds_sum\S* (\S+)/.exec(text)?.[1])
  expect(sum).toBeGreaterThanOrEqual(34 * 1_000 + 6 * 7_200)

  const measured = (instrument: string): number[] =>
    written.flatMap((line) => {
      const [name, value, labels = ''] = line.split(' ')
      return name === instrument && labels.includes('"worker":"w1"') ? [Number(value)] : []
    })
  const total = (values: readonly number[]): number => values.reduce((all, value) => all + value, 0)
  expect(total(measured('reaper.recovered.count'))).toBe(40)
  expect(measured('reaper.stale.duration')).toHaveLength(40)
  expect(total(measured('reaper.stale.duration'))).toBeCloseTo(sum, 6)
  expect(total(measured('reaper.runs.total'))).toBe(runs)
})
