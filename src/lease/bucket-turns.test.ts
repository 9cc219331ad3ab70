import { expect, it } from 'vitest'
import { BucketTurns } from './bucket-turns.ts'
import type { Lease } from './lease.ts'
import type { Claim, ClaimRequest, Ended, LeaseStore, Settlement, WaitingBucket } from './store.ts'

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
    settle: async (_: unknown, leases: readonly Lease[]): Promise<Ended> => {
      claims.push(`${leases[0]?.bucket}: settled`)
      return Promise.resolve({ ended: leases, fencedOff: [], busy: [], refused: [] })
    },
    settleAndClaim: async ({ leases }: Settlement, request: ClaimRequest) => ({
      ...(await claim(request)),
      ended: leases,
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

/** A store in which rows are due that cannot be claimed. */
function storeWithBlocked(rows: Record<number, number> = { 1: 1 }): ReturnType<typeof storeWith> {
  const table = storeWith(rows)
  const claim = async (): Promise<Claim<Record<string, unknown>>> => {
    table.claims.push('1: 0')
    return Promise.resolve({ claimed: [], cursor: undefined, more: false, leaseMs: 1_000, trustedUntil: 0 })
  }
  return { ...table, store: { ...table.store, claim } }
}

/** Claims until nothing more can be claimed, and returns in how long something may be. */
async function drain(turns: BucketTurns<object>): Promise<number | undefined> {
  for (;;) {
    const { drained, dueInMs } = await turns.claim(REQUEST)
    if (drained) return dueInMs
  }
}

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
})

it('a bucket that is drained gives its turn to the next, and all are found anew when none waits', async () => {
  const table = storeWith({ 1: 3, 2: 7, 40: 1 })
  const turns = turnsOf(table)
  await drain(turns)
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

it('buckets in which rows arrive later have their turns, however many rows wait in others', async () => {
  const rows: Record<number, number> = { 3: 1_000_000, 9: 1_000_000 }
  const table = storeWith(rows)
  const turns = turnsOf(table)
  for (let i = 0; i < 50; i += 1) await turns.claim(REQUEST)
  rows[40] = 5
  for (let i = 0; i < 60; i += 1) await turns.claim(REQUEST)
  expect(table.claims).toContain('40: 5')
})

it('they also have their turns where each claim shares a statement with a settlement', async () => {
  const rows: Record<number, number> = { 3: 1_000_000 }
  const table = storeWith(rows)
  const turns = turnsOf(table)
  let { claimed } = await turns.claim(REQUEST)
  rows[40] = 5
  for (let i = 0; i < 60; i += 1) {
    const leases = claimed.map(({ lease }) => lease)
    ;({ claimed } =
      leases.length === 0
        ? await turns.claim(REQUEST)
        : await turns.settleAndClaim('order', { leases }, REQUEST))
  }
  expect(table.claims).toContain('40: 5')
})

it.each(['order', 'key'] as const)(
  'a settlement in a bucket whose turn is over claims nothing from it while others wait (by %s)',
  async (way) => {
    const table = storeWith({ 1: 100, 2: 100, 3: 100 })
    const turns = turnsOf(table)
    const { claimed } = await turns.claim({ ...REQUEST, limit: 1 })
    table.later(200)
    await turns.claim({ ...REQUEST, limit: 1 })
    const leases = claimed.map(({ lease }) => lease)
    expect(await turns.settleAndClaim(way, { leases }, REQUEST)).toMatchObject({ ended: leases, claimed: [] })
    expect(table.claims).toEqual(['1: 1', '2: 1', '1: settled'])
  },
)

it('a settlement in a bucket that is drained claims from it, if no other bucket waits', async () => {
  const table = storeWith({ 1: 5 })
  const turns = turnsOf(table)
  const { claimed } = await turns.claim(REQUEST)
  table.later(200)
  expect(await turns.claim(REQUEST)).toMatchObject({ claimed: [], drained: true })
  await turns.settleAndClaim('key', { leases: claimed.map(({ lease }) => lease) }, REQUEST)
  expect(table.claims).toEqual(['1: 5', '1: 0'])
})

it('a bucket with rows that cannot be claimed is tried after 250 ms, then after longer times', async () => {
  const table = storeWithBlocked()
  const turns = turnsOf(table)
  expect([await drain(turns), await drain(turns)]).toEqual([250, 250])
  expect(table.claims).toHaveLength(1)
  const waits: (number | undefined)[] = []
  for (let wait = 250; waits.length < 7; waits.push(wait)) {
    table.later(wait)
    wait = (await drain(turns)) ?? 0
  }
  expect(waits).toEqual([500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000])
  expect(table.claims).toHaveLength(8)
  // A wake-up begins anew, but does not claim more often than every 250 ms.
  turns.wake('news')
  table.later(200)
  expect(await drain(turns)).toBe(50)
  table.later(50)
  await drain(turns)
  expect(table.claims).toHaveLength(9)
})

it('a bucket that had nothing to claim is forgotten when nothing is due in it any more', async () => {
  const rows: Record<number, number> = { 1: 1 }
  const turns = turnsOf(storeWithBlocked(rows))
  await drain(turns)
  rows[1] = 0
  expect(await turns.claim(REQUEST)).not.toHaveProperty('dueInMs')
})

it('buckets that others have emptied meanwhile are found to be empty by one statement', async () => {
  const rows: Record<number, number> = Object.fromEntries(Array.from({ length: 64 }, (_, n) => [n, 20]))
  const table = storeWith(rows)
  const turns = turnsOf(table)
  for (let i = 0; i < 5; i += 1) await turns.claim(REQUEST)
  for (const bucket of Object.keys(rows)) rows[Number(bucket)] = 0
  await drain(turns)
  const empty = table.claims.filter((text) => text.endsWith(': 0'))
  expect(empty.length).toBeLessThanOrEqual(2)
})

it('a row that arrives in a bucket that was just drained is claimed at the next wake-up', async () => {
  const rows: Record<number, number> = { 1: 1 }
  const table = storeWith(rows)
  const turns = turnsOf(table)
  await drain(turns)
  rows[1] = 1
  turns.wake('news')
  expect(await turns.claim(REQUEST)).toMatchObject({ claimed: [{}] })
})

it.each([
  ['at once if there is room that there was not', 'room', 2],
  ['not before its time if rows have arrived somewhere', 'news', 1],
  ['not before its time if others are due', 'time', 1],
] as const)('a bucket in which nothing could be claimed is claimed from %s', async (_, reason, claims) => {
  const table = storeWithBlocked()
  const turns = turnsOf(table)
  await drain(turns)
  turns.wake(reason)
  expect(await drain(turns)).toBe(250)
  expect(table.claims).toHaveLength(claims)
})

it('the time to the next claim from such a bucket grows, although that time is what wakes the worker', async () => {
  const table = storeWithBlocked()
  const turns = turnsOf(table)
  const waits: number[] = []
  for (let wait = (await drain(turns)) ?? 0; waits.length < 4; wait = (await drain(turns)) ?? 0) {
    waits.push(wait)
    table.later(wait)
    turns.wake('time')
  }
  expect(waits).toEqual([250, 500, 1_000, 2_000])
})

it('a claim that joins a statement which was sent before a wake-up does not take its answer for the last word', async () => {
  const table = storeWith({})
  let answer = (): void => undefined
  const findBuckets = async (): Promise<WaitingBucket[]> =>
    new Promise((resolve) => {
      answer = () => resolve([])
    })
  const turns = turnsOf({ ...table, store: { ...table.store, findBuckets } })
  const first = turns.claim(REQUEST)
  turns.wake('news')
  const second = turns.claim(REQUEST)
  answer()
  expect(await Promise.all([first, second])).toMatchObject([{ drained: false }, { drained: false }])
})

it('a wake-up while buckets are being found is not forgotten', async () => {
  const table = storeWith({})
  const { store, clock } = table
  const turns: BucketTurns<object> = new BucketTurns(
    {
      ...store,
      findBuckets: async () => {
        turns.wake('news')
        return Promise.resolve([])
      },
    },
    { clock, random: () => 0, count: () => 64 },
  )
  expect(await turns.claim(REQUEST)).toMatchObject({ drained: false })
})
