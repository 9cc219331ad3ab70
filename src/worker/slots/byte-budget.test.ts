import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { collect, door, settled, useWorkers } from '../../../test/support/running-worker.ts'
import { insertJobs, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { leaseTable } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events } from '../events.ts'

useQuietProcess()
const { url } = useDatabase()
const run = useWorkers(url)
const db = openDatabase({ url, maxConnections: 20 })
const sized = leaseTable({ ...WORK_TABLE, bytes: 'octet_length(payload)' })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
  await db.query({ text: `alter table public.jobs add payload text not null default ''` })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs restart identity' })
})
afterAll(async () => db.close())

async function insertSized(count: number, bytes: number): Promise<void> {
  await db.query({
    text: `insert into public.jobs (payload) select repeat('x', $2) from generate_series(1, $1::int)`,
    values: [count, bytes],
  })
}

async function bytesInFlight(): Promise<number> {
  const { rows } = await db.query<{ bytes: number }>({
    text: `select coalesce(sum(octet_length(payload)), 0)::int as bytes from public.jobs where status = 'CLAIMED'`,
  })
  return rows[0]?.bytes ?? 0
}

it.each([1, 2])(
  'RULE-020-042: the bytes in flight are never more than prefetchBytes and one row for each claim on its way (claimLoops %i)',
  async (claimLoops) => {
    const [rows, rowBytes, prefetchBytes] = [200, 10_000, 95_000]
    await insertSized(rows, rowBytes)
    const events = new Events()
    const over = settled(events, rows)
    const seen: number[] = []
    await run(
      {
        table: sized,
        handle: async () => {
          seen.push(await bytesInFlight())
        },
        settings: { concurrency: 10, prefetch: 100, prefetchBytes, claimLoops },
      },
      { events },
    )
    await over
    expect(Math.max(...seen)).toBeLessThanOrEqual(prefetchBytes + claimLoops * rowBytes)
    // The budget is used: the ten slots alone would hold that much, and more rows wait for a slot.
    expect(Math.max(...seen)).toBeGreaterThan(prefetchBytes / 2)
  },
)

it('RULE-020-042: a row larger than the whole budget is processed, alone', async () => {
  await insertSized(5, 100_000)
  const events = new Events()
  const over = settled(events, 5)
  const seen: number[] = []
  await run(
    {
      table: sized,
      handle: async () => {
        seen.push(await bytesInFlight())
      },
      settings: { prefetchBytes: 1_000, claimLoops: 1 },
    },
    { events },
  )
  await over
  expect(seen).toEqual([100_000, 100_000, 100_000, 100_000, 100_000])
})

it('a table that does not declare how large a row is has no byte budget', async () => {
  await insertJobs(db, 10)
  const events = new Events()
  const started = collect(events, 'started', (all) => all.length === 10)
  const over = settled(events, 10)
  const hold = door()
  await run({ handle: async () => hold.opened, settings: { concurrency: 10, prefetchBytes: 1 } }, { events })
  expect(await started).toHaveLength(10)
  hold.open()
  await over
})
