import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { specimens, subjectOf } from '../../test/support/lease-tables.ts'
import { leaseTable, openLeaseStore } from '../lease/index.ts'
import { openDatabase } from '../postgres/index.ts'
import { pendingAge } from './pending-age.ts'

const db = openDatabase({ url: useDatabase().url })
afterAll(async () => db.close())

/** Of `public.letters`, which is due by `available_at` and not by its order. */
const letters = leaseTable({
  table: 'public.letters',
  id: 'id',
  lease: { owner: 'owner', until: 'until', token: 'token' },
  claimable: 'not sent',
  availableAt: 'available_at',
  order: ['id'],
  onExpiry: 'claimable',
  attempts: 'attempts',
  exhausted: 'attempts >= 2',
  outcomes: { sent: { set: { sent: 'true' } } },
})

async function ageAfter(change: string): Promise<number | undefined> {
  await db.query({ text: 'delete from public.letters' })
  await db.query({ text: change })
  return pendingAge(letters)(db)
}

beforeAll(async () => {
  await db.query({
    text: `create table public.letters (
      id int generated always as identity primary key, sent boolean not null default false,
      available_at timestamptz, owner text, until timestamptz, token bigint not null default 0,
      attempts int not null default 0);`,
  })
})

describe('the age of the oldest pending row', () => {
  it('is since it was available, of the one that has waited longest', async () => {
    const age = await ageAfter(`insert into public.letters (available_at)
      values (now() - interval '10 s'), (now() - interval '500 s'), (now() + interval '900 s')`)
    expect(age).toBeGreaterThanOrEqual(500)
    expect(age).toBeLessThan(600)
  })

  it('is 0 when nothing waits: settled, leased, not yet due, or exhausted rows do not', async () => {
    const age = await ageAfter(`insert into public.letters (available_at, sent, until, attempts) values
      (now() - interval '500 s', true, null, 0),
      (now() - interval '500 s', false, now() + interval '500 s', 0),
      (now() + interval '500 s', false, null, 0),
      (now() - interval '500 s', false, now() - interval '100 s', 2)`)
    expect(age).toBe(0)
  })

  it('counts a row whose lease is over, where such a row can be claimed', async () => {
    const age = await ageAfter(`insert into public.letters (available_at, until)
      values (now() - interval '500 s', now() - interval '1 s')`)
    expect(age).toBeGreaterThanOrEqual(500)
  })
})

describe.each(specimens)('on $name', (specimen) => {
  const subject = subjectOf(db, specimen)
  const { table } = specimen
  beforeAll(async () => subject.create())

  it('a moment has an age, which is gone with the claim; without one there is none', async () => {
    const age = pendingAge(table)
    await subject.insert(3)
    const waiting = await age(db)
    const hasMoment = table.availableAt !== undefined || table.order[0]?.column === 'created_at'
    expect(typeof waiting).toBe(hasMoment ? 'number' : 'undefined')
    const bucket = specimen.bucket === undefined ? {} : { bucket: specimen.bucket }
    const store = await openLeaseStore(db, table, { owner: 'w1', ...bucket })
    expect(
      (
        await store.claim({
          limit: 10,
          leaseMs: 60_000,
          lanes: specimen.lanes?.map((key) => ({ key, room: 10 })),
        })
      ).claimed,
    ).toHaveLength(3)
    expect(await age(db)).toBe(hasMoment ? 0 : undefined)
  })
})

it('a table that is not there is an error, not an age', async () => {
  const nowhere = leaseTable({ ...letterless, table: 'public.nowhere' })
  await expect(pendingAge(nowhere)(db)).rejects.toThrow('public.nowhere')
})

const letterless = {
  id: 'id',
  lease: { owner: 'owner', until: 'until' },
  claimable: 'true',
  order: ['created_at'],
  onExpiry: 'reap',
  outcomes: { done: { set: {} } },
} as const
