import { expect, it } from 'vitest'
import { BucketTurns } from './bucket-turns.ts'
import type { Claim, ClaimRequest, LeaseStore, WaitingBucket } from './store.ts'

const REQUEST = { limit: 5, leaseMs: 1_000 }

/** A store in which so many rows wait in each bucket; it takes 10 ms for a claim. */
function storeWith(rows: Record<number, number>): {
  store: LeaseStore
  clock: { monotonicNow: () => number }
  claims: string[]
  finds: () => number
  later: (ms: number) => void
} {
  let now = 0
  let found = 0
  const claims: string[] = []
  const claim = async ({ bucket = 0, limit }: ClaimRequest): Promise<Claim<Record<string, unknown>>> => {
    now += 10
    const waiting = rows[bucket] ?? 0
    const size = Math.min(limit, waiting)
    rows[bucket] = waiting - size
    claims.push(`${bucket}: ${size}`)
    const lease = { id: 'x', owner: 'w', bucket, token: 1n, until: new Date(0) }
    const claimed = Array.from({ length: size }, () => ({ lease, row: {} }))
    return Promise.resolve({
      claimed,
      cursor: ['x'],
      more: waiting > size,
      leaseMs: 1_000,
      trustedUntil: 0,
    })
  }
  const store = {
    ways: ['order'],
    claim,
    async findBuckets(): Promise<WaitingBucket[]> {
      found += 1
      const waiting = Object.entries(rows).filter(([, count]) => count > 0)
      return Promise.resolve(waiting.map(([bucket]) => ({ bucket: Number(bucket), dueInMs: -1 })))
    },
    settleAndClaim: async (_: unknown, request: ClaimRequest) => ({
      ...(await claim({ ...request, limit: request.continueOnly === true ? 0 : request.limit })),
      ended: [],
      fencedOff: [],
      busy: [],
      refused: [],
    }),
    // Nothing else of a store is used.
  } as unknown as LeaseStore
  const clock = { monotonicNow: () => now }
  return {
    store,
    clock,
    claims,
    finds: () => found,
    later: (ms) => {
      now += ms
    },
  }
}

const turnsOf = ({ store, clock }: ReturnType<typeof storeWith>, count = 64): BucketTurns<object> =>
  new BucketTurns(store, { clock, random: () => 0, count: () => count })

it('with one bucket, rows are claimed without finding it', async () => {
  const table = storeWith({ 0: 12 })
  const turns = turnsOf(table, 1)
  for (let i = 0; i < 3; i += 1) await turns.claim(REQUEST)
  expect([table.claims, table.finds()]).toEqual([['0: 5', '0: 5', '0: 2'], 0])
})

it('an idle worker sends one statement, however many buckets there are', async () => {
  const table = storeWith({})
  const turns = turnsOf(table, 1_024)
  expect(await turns.claim(REQUEST)).toMatchObject({ claimed: [], drained: true })
  expect([table.claims, table.finds()]).toEqual([[], 1])
})

it('a bucket is claimed from for 100 ms, then it is the turn of the next', async () => {
  const table = storeWith({ 3: 1_000, 9: 1_000 })
  const turns = turnsOf(table)
  for (let i = 0; i < 25; i += 1) await turns.claim({ ...REQUEST, limit: 1 })
  const buckets = table.claims.map((text) => text.split(':')[0]).join('')
  expect(buckets).toBe('3'.repeat(10) + '9'.repeat(10) + '3'.repeat(5))
  expect(table.finds()).toBe(1)
})

it('a bucket that is drained gives its turn to the next, and all are found anew when none waits', async () => {
  const table = storeWith({ 1: 3, 2: 7, 40: 1 })
  const turns = turnsOf(table)
  let drained = false
  while (!drained) ({ drained } = await turns.claim(REQUEST))
  expect(table.claims).toEqual(['1: 3', '2: 5', '2: 2', '40: 1'])
  expect(table.finds()).toBe(2)
})

it('two claims at the same time are made from different buckets', async () => {
  const table = storeWith({ 1: 100, 2: 100 })
  const turns = turnsOf(table)
  await turns.claim({ ...REQUEST, limit: 1 })
  await Promise.all([turns.claim(REQUEST), turns.claim(REQUEST)])
  expect(table.claims.slice(1).toSorted()).toEqual(['1: 5', '2: 5'])
})

it('a settlement in a bucket whose turn is over claims no others from it', async () => {
  const table = storeWith({ 1: 100, 2: 100 })
  const turns = turnsOf(table)
  const { claimed } = await turns.claim({ ...REQUEST, limit: 1 })
  table.later(200)
  await turns.claim({ ...REQUEST, limit: 1 })
  const leases = claimed.map(({ lease }) => lease)
  await turns.settleAndClaim('order', { leases }, REQUEST)
  expect(table.claims).toEqual(['1: 1', '2: 1', '1: 0'])
})

it('a bucket with rows that cannot be claimed is not tried until 250 ms later, or until the worker is woken', async () => {
  const table = storeWith({ 1: 1 })
  const blocked = {
    ...table.store,
    claim: async () => {
      table.claims.push('1: 0')
      return Promise.resolve({ claimed: [], cursor: undefined, more: false, leaseMs: 1_000, trustedUntil: 0 })
    },
  } as unknown as LeaseStore
  const turns = new BucketTurns(blocked, { clock: table.clock, random: () => 0, count: () => 64 })
  const drain = async (): Promise<void> => {
    for (let drained = false; !drained;) ({ drained } = await turns.claim(REQUEST))
  }
  await drain()
  await drain()
  expect(table.claims).toHaveLength(1)
  turns.wake()
  await drain()
  expect(table.claims).toHaveLength(2)
  table.later(250)
  await drain()
  expect(table.claims).toHaveLength(3)
})
