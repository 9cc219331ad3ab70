/** The promises of the kernel, kept by the outbox. table.test.ts has what PostgreSQL itself refuses and allows. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { records, write } from '../../test/support/running-relay.ts'
import { openLeaseStore } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { leaseConformance } from '../testing/index.ts'
import { outboxTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox restart identity' }))
afterAll(async () => db.close())

async function change(set: string): Promise<void> {
  await db.query({ text: `update leasehold.outbox set ${set}` })
}

describe('LIFE-16: the outbox is a lease table like any other', () => {
  const cases = leaseConformance({
    db,
    table: outboxTable(),
    empty: async () => {
      await db.query({ text: 'truncate leasehold.outbox' })
    },
    insert: async (count) => {
      const { rows } = await db.query<{ id: string }>({
        text: `insert into leasehold.outbox (event_type, payload, ordering_key)
          select 'test', '{}', case when n % 2 = 0 then n::text end from generate_series(1, $1::int) as n returning id`,
        values: [count],
      })
      return rows.map(({ id }) => id)
    },
    final: { outcome: 'done' },
    bucket: 0,
  })
  it.each(cases.map(({ name, run }) => [name, run] as const))('%s', async (_, run) => {
    await expect(run()).resolves.toBeUndefined()
  })
})

it.each([
  ['block', '2', 'PENDING', false],
  ['skip', '2', 'PENDING', false],
  ['park', '2', 'PENDING', false],
  ['park', 'null', 'PENDING', false],
  ['block', '1', 'DEAD', false],
  ['skip', '1', 'DEAD', false],
  ['park', '1', 'DEAD', true],
] as const)(
  'LIFE-06 LIFE-08: with %s and max_attempts %s, an event whose relay died is %s',
  async (onFailure, maxAttempts, status, parked) => {
    await write(db, 'a')
    await change(`max_attempts = ${maxAttempts}`)
    const store = await openLeaseStore(db, outboxTable({ onFailure }), { owner: 'r', bucket: 0 })
    await store.claim({ limit: 1, leaseMs: 60_000 })
    await change("locked_until = now() - interval '1 second'")
    expect(await store.reap()).toHaveLength(1)
    expect(await records(db)).toMatchObject([
      {
        status,
        parked,
        attempts: 1,
        last_error:
          'the lease expired: its relay died, lost the database connection, or took longer than maxLeases allows',
      },
    ])
  },
)

it('D10: an event is due at once after its first expired lease; from the second on it waits as the retry policy says', async () => {
  await write(db, 'a')
  const retry = { firstMs: 60_000, factor: 2, longestMs: 240_000, jitter: 0 }
  const store = await openLeaseStore(db, outboxTable({ retry }), { owner: 'r', bucket: 0 })
  const waits: number[] = []
  for (let expiry = 1; expiry <= 5; expiry += 1) {
    await store.claim({ limit: 1, leaseMs: 60_000, suspects: 1 })
    await change("locked_until = now() - interval '1 second'")
    expect(await store.reap()).toHaveLength(1)
    // By whole minutes: time passes between the reap and this statement.
    const text =
      'select round(extract(epoch from available_at - now()) / 60)::int as minutes from leasehold.outbox'
    const { rows } = await db.query<{ minutes: number }>({ text })
    waits.push(...rows.map(({ minutes }) => minutes))
    await change('available_at = now()')
  }
  expect(waits).toEqual([0, 2, 4, 4, 4])
})
