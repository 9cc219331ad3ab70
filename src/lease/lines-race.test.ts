/**
 * The two races that could leave a line standing still, staged: a claim is stopped in the middle of its look, after
 * it has seen the table and before it has locked the rows in question.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { lines, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
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
  await settler.settle(
    'done',
    first.claimed.map(({ lease }) => lease),
  )
  await open(1)
  expect(ids(await looking)).toEqual(['2'])
  expect(ids(await settler.claim(LEASE))).toEqual(['3'])
})

it('LIFE-13: a settlement waits for a follower that a claim happens to have locked', async () => {
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
  const settling = settler.settle(
    'done',
    first.claimed.map(({ lease }) => lease),
  )
  await until(
    'the settlement waits',
    "select from pg_locks where locktype in ('transactionid', 'tuple') and not granted",
  )
  await open(2)
  expect((await settling).advanced).toBe(true)
  await looking
  expect(ids(await settler.claim(LEASE))).toEqual(['3'])
})
