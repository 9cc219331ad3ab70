/**
 * The races that could leave a line standing still, staged: a statement is stopped in its middle, after it has seen the
 * table and before it has locked the rows in question.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { lines, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
import type { Lease } from './lease.ts'
import { type Claim, type LeaseStore, openLeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
/** Holds the gates; a lock of a session needs one session. */
const gates = openDatabase({ url, maxConnections: 1 })
const LEASE = { limit: 100, leaseMs: 60_000 }

interface Job {
  readonly id: string
}

/** A look that comes to a row with a gate waits until the gate is open. */
const gated = { ...lines.table, claimable: 'available_at is not null and public.pass(gate)' }

beforeAll(async () => {
  await subjectOf(db, lines).create()
  await db.query({ text: 'alter table public.line_jobs add column gate int' })
  await db.query({
    text: `create function public.pass(gate int) returns boolean language plpgsql as $$
      begin
        if gate is not null then perform pg_advisory_xact_lock_shared(gate); end if;
        return true;
      end $$`,
  })
})
beforeEach(async () => db.query({ text: 'truncate public.line_jobs restart identity' }))
afterAll(async () => {
  await gates.close()
  await db.close()
})

async function insert(
  ...rows: readonly (readonly [customer: string | null, gate: number | null])[]
): Promise<void> {
  for (const values of rows)
    await db.query({ text: 'insert into public.line_jobs (customer, gate) values ($1, $2)', values })
}

async function shut(gate: number): Promise<void> {
  await gates.query({ text: 'select pg_advisory_lock($1)', values: [gate] })
}

async function open(gate: number): Promise<void> {
  await gates.query({ text: 'select pg_advisory_unlock($1)', values: [gate] })
}

/** Resolves once somebody waits: nothing tells, so it looks again. */
async function until(what: string, holds: string): Promise<void> {
  const deadline = performance.now() + 30_000
  for (;;) {
    const { rows } = await db.query<{ holds: boolean }>({ text: `select exists (${holds}) as holds` })
    if (rows[0]?.holds === true) return
    if (performance.now() > deadline) throw new Error(`waited in vain until ${what}`)
    await delay(5)
  }
}

async function someoneWaitsAt(gate: number): Promise<void> {
  await until(
    `somebody waits at gate ${gate}`,
    `select from pg_locks where locktype = 'advisory' and objid = ${gate} and not granted`,
  )
}

function ids(claim: Claim<Job>): string[] {
  return claim.claimed.map(({ row }) => row.id)
}

function leasesOf(claim: Claim<Job>): Lease[] {
  return claim.claimed.map(({ lease }) => lease)
}

async function store(owner: string, table = lines.table): Promise<LeaseStore<Job>> {
  return openLeaseStore<Job>(db, table, { owner })
}

it('LIFE-13: a claim that saw the line before it went on does not mark who has become first', async () => {
  await insert(['a', null])
  const [settler, late] = [await store('settler'), await store('late', gated)]
  const first = await settler.claim(LEASE)
  await insert([null, 1], ['a', null])
  await shut(1)
  const looking = late.claim(LEASE)
  await someoneWaitsAt(1)
  // The late one has seen row 1 in flight, and row 3 behind it.
  await settler.settle('done', leasesOf(first))
  await open(1)
  expect(ids(await looking)).toEqual(['2'])
  expect(ids(await settler.claim(LEASE))).toEqual(['3'])
})

it('LIFE-13: a settlement does not wait for a follower that somebody has locked, and comes back for it', async () => {
  await insert(['a', null])
  const [settler, marker, late] = [await store('settler'), await store('marker'), await store('late', gated)]
  const first = await settler.claim(LEASE)
  await insert([null, 1], ['a', null], [null, 2])
  await shut(1)
  await shut(2)
  const looking = late.claim(LEASE)
  await someoneWaitsAt(1)
  // The late one has seen row 3 unmarked. Now it is marked, and stays locked by the late one, which cannot have it.
  expect(ids(await marker.claim({ ...LEASE, limit: 2 }))).toEqual(['2'])
  await open(1)
  await someoneWaitsAt(2)
  const { advanced } = await settler.settle('done', leasesOf(first))
  expect(advanced).toBe(true)
  await open(2)
  await looking
  expect(ids(await settler.claim(LEASE))).toEqual(['3'])
})

it('LIFE-13: a follower that was written and marked while the settlement waited for its lock is not left behind', async () => {
  await insert(['a', null])
  const [settler, marker] = [await store('settler'), await store('marker')]
  const first = await settler.claim(LEASE)
  await db.transaction(async (tx) => {
    // What holds up the settlement after it has seen the table.
    await tx.query({ text: 'select from public.line_jobs where id = 1 for key share' })
    await tx.query({ text: 'select from public.line_jobs where id = 1 for share' })
    const settling = settler.settle('done', leasesOf(first))
    await until('the settlement waits', 'select from pg_locks where not granted')
    await insert(['a', null])
    expect(ids(await marker.claim(LEASE))).toEqual([])
    await tx.query({ text: 'commit' })
    await settling
  })
  expect(ids(await settler.claim(LEASE))).toEqual(['2'])
})

it.each(['retry', 'release', 'reap'] as const)(
  'LIFE-13: a line goes on that an earlier row joined late, when the one in flight is given back by %s',
  async (how) => {
    const worker = await store('worker')
    const overtaking = await db.transaction(async (tx) => {
      await tx.query({ text: "insert into public.line_jobs (customer) values ('a')" })
      await insert(['a', null])
      return worker.claim(LEASE)
    })
    expect(ids(overtaking)).toEqual(['2'])
    // The first comes late, and waits for the second, which is in flight.
    expect(ids(await worker.claim(LEASE))).toEqual([])
    if (how === 'retry') await worker.settle('retry', leasesOf(overtaking), { args: [{ delay_ms: 0 }] })
    else if (how === 'release') await worker.release(leasesOf(overtaking))
    else {
      await db.query({ text: "update public.line_jobs set until = now() - interval '1 second' where id = 2" })
      await worker.reap()
    }
    const order: string[] = []
    for (let look = 0; look < 6 && order.length < 2; look += 1) {
      const claim = await worker.claim(LEASE)
      order.push(...ids(claim))
      await worker.settle('done', leasesOf(claim))
    }
    expect(order).toEqual(['1', '2'])
  },
)
