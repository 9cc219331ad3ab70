/** The reference example over 10,000 rows: three replicas, as processes of their own, one of which is killed on the way. */
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it, onTestFinished, vi } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import {
  type Observation,
  overlaps,
  readObservations,
  addRequests,
  logOf,
  openRequests,
  paymentExample,
  shown,
  statuses,
} from '../../test/support/payment-example.ts'
import { type TestProcess, useProcesses } from '../../test/support/processes.ts'
import { openDatabase } from '../postgres/database.ts'

const { url } = useDatabase()
const processes = useProcesses()
const example = paymentExample(processes, url)
const db = openDatabase({ url })
const ROWS = 2_000
const LEASE_MS = 6_000
const LONG = { timeout: 580_000, interval: 250 }

beforeAll(async () => example.migrate())
afterAll(async () => db.close())

function start(file: string): TestProcess {
  const env = {
    OBSERVATIONS_FILE: file,
    CHAIN_LATENCY_MS: '4',
    CHAIN_FAILURES: '0.03',
    CHAIN_NONSENSE: '0.02',
    RECONCILE_EVERY_MS: '200',
    RECONCILE_POLL_MS: '200',
  }
  const timing = ['--lease-ms', String(LEASE_MS), '--shutdown-timeout-ms', '2000']
  const replica = example.work('reconcile', env, timing)
  onTestFinished(async () => void (await replica.kill('SIGKILL')))
  return replica
}

it('the test detects overlapping observations of a row, including one that ended with its process', () => {
  const observation = (by: string, begin: bigint, end?: bigint): Observation => ({ row: 'r', by, begin, end })
  expect(overlaps([observation('a', 1n, 5n), observation('b', 5n, 7n)])).toEqual([])
  expect(overlaps([observation('b', 4n, 7n), observation('a', 1n, 5n)])).toEqual(['r: by a and b at once'])
  expect(overlaps([observation('a', 1n), observation('b', 6n, 7n)], new Map([['a', 5n]]))).toEqual([])
  expect(overlaps([observation('a', 1n), observation('b', 4n, 7n)], new Map([['a', 5n]]))).toEqual([
    'r: by a and b at once',
  ])
  expect(overlaps([observation('a', 1n)])).toEqual(['r: a never ended its observation, and nobody killed it'])
})

/** The sums of what a process said its cycles came to. */
function summed(replicas: readonly TestProcess[]): Record<string, number> {
  const sums: Record<string, number> = {}
  for (const cycle of replicas.flatMap(logOf).filter(({ msg }) => msg === 'reconcile summary'))
    for (const [name, count] of Object.entries(cycle))
      if (typeof count === 'number') sums[name] = (sums[name] ?? 0) + count
  return sums
}

it('REC-03 REC-06 REC-14: no row is observed by two replicas at once, and killing one loses nothing', async () => {
  const directory = await temporaryDirectory()
  onTestFinished(async () => removeDirectory(directory))
  const file = join(directory, 'observations')
  await addRequests(db, ROWS)
  await db.query({ text: 'analyze app.payment_requests' })
  const replicas = [start(file), start(file), start(file)]
  const [victim, ...survivors] = replicas
  if (victim === undefined) throw new Error('nobody was started')
  const victimId = await shown(victim, 'Worker id')
  for (const survivor of survivors) await shown(survivor, 'Worker id')

  await vi.waitFor(async () => expect(await openRequests(db)).toBeLessThan((ROWS * 2) / 3), LONG)
  await victim.kill('SIGKILL')
  const death = process.hrtime.bigint()
  const held = await leasedBy(victimId)
  // Nobody reaps here: what it held is free when its leases are over, and not before.
  await vi.waitFor(async () => expect(await openRequests(db)).toBe(0), LONG)
  for (const survivor of survivors) expect(await survivor.kill('SIGTERM')).toEqual({ code: 0, signal: null })

  const { confirmed = 0, expired = 0, ...others } = await statuses(db)
  expect([confirmed + expired, others]).toEqual([ROWS, {}])
  expect(await decidedWrongly()).toEqual([])
  expect(await leased()).toBe(0)

  const observations = await readObservations(file)
  expect(overlaps(observations, new Map([[String(victim.pid), death]]))).toEqual([])
  expect(new Set(observations.map(({ row }) => row)).size).toBe(ROWS)
  expect(new Set(observations.map(({ by }) => by)).size).toBe(3)
  expectTakenOver(held, observations, victim.pid)

  // Each step was told of once: the event is of the same transaction.
  expect(await events()).toEqual({
    'payment.detected': await paid(),
    'payment.confirmed': confirmed,
    'payment.expired': expired,
  })
  const { scanned = 0, errors = 0, claimed = 0 } = summed(survivors)
  expect(scanned).toBeGreaterThan(0)
  expect(claimed).toBeGreaterThanOrEqual(scanned)
  expect(errors).toBeGreaterThan(0)
}, 600_000)

/** What the victim had in hand was looked at again, by another. */
function expectTakenOver(
  held: readonly string[],
  observations: readonly Observation[],
  victim: number,
): void {
  const unfinished = observations.filter(({ by, end }) => by === String(victim) && end === undefined)
  expect(held.length).toBeGreaterThanOrEqual(unfinished.length)
  const left = held.filter(
    (row) =>
      !observations.some((observation) => observation.row === row && observation.by !== String(victim)),
  )
  expect(left).toEqual([])
}

async function leasedBy(worker: string): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>({
    text: `select id::text as id from app.payment_requests where starts_with(reconcile_lease_owner, $1 || '#')`,
    values: [worker],
  })
  return rows.map(({ id }) => id)
}

async function leased(): Promise<number> {
  const text = 'select count(reconcile_lease_owner)::int as count from app.payment_requests'
  return (await db.query<{ count: number }>({ text })).rows[0]?.count ?? -1
}

/** Confirmed without a payment, or expired with one. */
async function decidedWrongly(): Promise<unknown[]> {
  const text = `select * from app.payment_requests where (status = 'confirmed') <> (tx_hash is not null)`
  return (await db.query({ text })).rows
}

async function paid(): Promise<number> {
  const text = 'select count(tx_hash)::int as count from app.payment_requests'
  return (await db.query<{ count: number }>({ text })).rows[0]?.count ?? -1
}

async function events(): Promise<Record<string, number>> {
  const { rows } = await db.query<{ type: string; count: number }>({
    text: 'select event_type as type, count(*)::int as count from leasehold.outbox group by event_type',
  })
  return Object.fromEntries(rows.map(({ type, count }) => [type, count]))
}
