import { afterAll, expect, it, onTestFinished } from 'vitest'
import { openSession, useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { outboxTable } from '../outbox/table.ts'
import { openDatabase } from '../postgres/database.ts'
import { oldestSnapshotAge } from '../postgres/snapshots.ts'
import { webhookTable } from '../webhooks/table.ts'
import type { GaugeName, Sample } from './metrics.ts'
import { workerGauges } from './worker-gauges.ts'

const { url } = useDatabase()
const start = useRuntimes(url)
const db = openDatabase({ url })
afterAll(async () => db.close())

async function samplesOf(metric: GaugeName): Promise<readonly Sample[]> {
  const gauges = workerGauges({ db, tables: [outboxTable(), webhookTable()], runtimes: () => [] })
  const sources = gauges.filter((source) => source.metric === metric)
  return (await Promise.all(sources.map(async (source) => source.read()))).flat()
}

it('RULE-020-020: leasehold_reaper_alive is 1 for the tables that a process reaps which is alive, and 0 for the others', async () => {
  const reaped = async (): Promise<unknown> =>
    (await samplesOf('reaperAlive')).map(({ labels, value }) => [labels['table'], value])
  expect(await reaped()).toEqual([
    ['leasehold.outbox', 0],
    ['leasehold.webhook_outbox', 0],
  ])
  const { runtime } = await start([], { reapTables: [{ table: outboxTable() }] })
  // The reaper counts once it has run.
  await expect.poll(reaped).toEqual([
    ['leasehold.outbox', 1],
    ['leasehold.webhook_outbox', 0],
  ])
  await runtime.stop()
  expect(await reaped()).toEqual([
    ['leasehold.outbox', 0],
    ['leasehold.webhook_outbox', 0],
  ])
})

it('RULE-020-032: worker processes that died leave a count and no series of their own', async () => {
  await db.query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, died_at)
      select 'dead ' || n, 'h', n, '0', '{outbox}', now() from generate_series(1, 500) as n`,
  })
  onTestFinished(async () => void (await db.query({ text: 'delete from leasehold.workers' })))
  expect(await samplesOf('workerProcesses')).toContainEqual({ labels: { state: 'dead' }, value: 500 })
  expect(await samplesOf('workerProcesses')).toHaveLength(3)
})

it('the oldest snapshot is that of the oldest transaction in this database that has one, or has written', async () => {
  expect(await oldestSnapshotAge(db)).toBe(0)
  const older = await openSession(url)
  await older.query('begin isolation level repeatable read')
  const { rows } = await older.query<{ began: Date }>('select now() as began')
  const began = rows[0]?.began ?? new Date(Number.NaN)
  const newer = await openSession(url)
  await newer.query('begin')
  await newer.query('create temporary table written on commit drop as select 1')
  const ageOf = async (since: Date): Promise<number> => {
    const answer = await db.query<{ age: number }>({
      text: 'select extract(epoch from clock_timestamp() - $1::timestamptz)::float8 as age',
      values: [since],
    })
    return answer.rows[0]?.age ?? Number.NaN
  }
  const before = await ageOf(began)
  const age = await oldestSnapshotAge(db)
  // The date has milliseconds.
  expect(age).toBeGreaterThan(before - 0.002)
  expect(age).toBeLessThan(await ageOf(began))
  expect(await samplesOf('oldestSnapshotAge')).toEqual([{ labels: {}, value: expect.any(Number) }])
  await older.query('rollback')
  const ofNewer = await oldestSnapshotAge(db)
  expect(ofNewer).toBeGreaterThan(0)
  expect(ofNewer).toBeLessThan(await ageOf(began))
  await newer.query('rollback')
  expect(await oldestSnapshotAge(db)).toBe(0)
})

it('a role that may not see the transactions of others has no oldest snapshot, instead of a wrong one', async () => {
  const age = await db.transaction(async (tx) => {
    await tx.query({ text: 'set local role leasehold_worker' })
    return oldestSnapshotAge(tx)
  })
  expect(age).toBeUndefined()
})
