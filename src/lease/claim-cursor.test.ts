import { Client } from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { events, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase } from '../postgres/database.ts'
import { ClaimCursor } from './claim-cursor.ts'
import type { Way } from './statements.ts'
import { openLeaseStore, type Claim, type ClaimRequest, type Cursor, type LeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const subject = subjectOf(db, events)

beforeAll(async () => subject.create())
beforeEach(async () => subject.empty())
afterAll(async () => db.close())

type Answer = Pick<Claim<object>, 'more' | 'cursor' | 'freed'> & { readonly size: number }

/** A store that answers what it is told to, and remembers what it was asked. */
function scripted(
  ways: readonly Way[],
  answer: (request: ClaimRequest, n: number) => Partial<Answer>,
): { store: LeaseStore; asked: ClaimRequest[] } {
  const asked: ClaimRequest[] = []
  const claim = async (request: ClaimRequest): Promise<Claim<Record<string, unknown>>> => {
    asked.push(request)
    const { size = 0, more = false, cursor, ...freed } = answer(request, asked.length)
    const lease = { id: 'x', owner: 'w', token: 1n, until: new Date() }
    const claimed = Array.from({ length: size }, () => ({ lease, row: {} }))
    return Promise.resolve({ claimed, cursor, more, ...freed, leaseMs: 1_000, trustedUntil: 0 })
  }
  const store = {
    ways,
    claim,
    settleAndClaim: async (_: unknown, request: ClaimRequest) => ({
      ...(await claim(request)),
      ended: [],
      fencedOff: [],
      busy: [],
      refused: [],
    }),
    // Nothing else of a store is used.
  } as unknown as LeaseStore
  return { store, asked }
}

const REQUEST = { limit: 5, leaseMs: 1_000 }
const froms = (asked: readonly ClaimRequest[]): (Cursor | undefined)[] => asked.map(({ cursor }) => cursor)

describe('claims in order', () => {
  const full = (_: ClaimRequest, n: number): Partial<Answer> => ({ size: 5, more: true, cursor: [String(n)] })

  it('a claim starts where the one before the last ended, as long as there are more rows', async () => {
    const { store, asked } = scripted(['order'], full)
    let now = 0
    const cursor = new ClaimCursor(store, { monotonicNow: () => (now += 1) })
    for (let i = 0; i < 4; i += 1) await cursor.claim(REQUEST)
    expect(froms(asked)).toEqual([undefined, ['1'], ['1'], ['2']])
  })

  it('when the cursor finds nothing more, a claim scans from the start if that costs little', async () => {
    const { store, asked } = scripted(['order'], (_, n) => (n < 4 ? full(_, n) : { size: 2, cursor: ['9'] }))
    let now = 0
    const cursor = new ClaimCursor(store, { monotonicNow: () => (now += 1) })
    const drained: boolean[] = []
    for (let i = 0; i < 5; i += 1) drained.push((await cursor.claim(REQUEST)).drained)
    expect(froms(asked).at(-1)).toBeUndefined()
    expect(drained).toEqual([false, false, false, true, true])
  })

  it('where a scan from the start costs much, a drained claim says when the next one is affordable', async () => {
    let now = 0
    const { store, asked } = scripted(['order'], (request, n) => {
      now += request.cursor === undefined ? 30 : 1
      return n < 3 ? full(request, n) : { size: 1, cursor: [String(n)] }
    })
    const cursor = new ClaimCursor(store, { monotonicNow: () => now })
    await cursor.claim(REQUEST)
    await cursor.claim(REQUEST)
    const partial = await cursor.claim(REQUEST)
    expect(froms(asked)).toEqual([undefined, ['1'], ['1']])
    // 30 ms at a share of 3 % may be spent once in 1,000 ms.
    expect([partial.drained, Math.round(partial.fullScanInMs ?? 0)]).toEqual([true, 998])
    now += 998
    const whole = await cursor.claim(REQUEST)
    expect([froms(asked).at(-1), whole.fullScanInMs]).toEqual([undefined, undefined])
  })
})

it('claims in order go back as well to what a scan from the start has found before their cursor', async () => {
  let now = 0
  const { store, asked } = scripted(['order'], ({ cursor }, n) => {
    now += 30
    if (n === 1) return { size: 5, more: true, cursor: ['m'] }
    if (n === 2) return { cursor: ['z'] }
    return { size: 5, more: cursor?.[0] !== 'd', cursor: [n === 3 ? 'c' : 'd'] }
  })
  const cursor = new ClaimCursor(store, { monotonicNow: () => now })
  for (let i = 0; i < 5; i += 1) {
    const { fullScanInMs = 0 } = await cursor.claim(REQUEST)
    now += fullScanInMs
  }
  expect(froms(asked)).toEqual([undefined, ['m'], undefined, ['c'], ['c']])
})

describe('claims by key', () => {
  it('a scan from the start takes several claims, and is no reason not to be drained', async () => {
    let now = 0
    // What waits before the cursor takes three claims to read. After the cursor there is nothing.
    const { store, asked } = scripted(['key'], ({ oldestFirst, cursor }, n) => {
      now += 3
      if (n === 1) return { size: 5, more: true, cursor: ['m'] }
      if (oldestFirst !== true) return { cursor: ['z'] }
      const next = cursor === undefined ? 'c' : cursor[0] === 'c' ? 'f' : undefined
      return next === undefined ? { cursor: ['z'] } : { more: true, cursor: [next] }
    })
    const cursor = new ClaimCursor(store, { monotonicNow: () => now })
    const drained: boolean[] = []
    for (let i = 0; i < 6; i += 1) {
      const scan = await cursor.claim(REQUEST)
      drained.push(scan.drained)
      now += scan.fullScanInMs ?? 0
    }
    expect(asked.map(({ oldestFirst, cursor: from }) => [oldestFirst ?? false, from?.[0]])).toEqual([
      [true, undefined],
      [false, 'm'],
      [true, undefined],
      [true, 'c'],
      [true, 'f'],
      [true, undefined],
    ])
    expect(drained).toEqual([false, true, true, true, true, true])
  })

  it('a claim that has come to the end of what is due starts before it, and one that has not does not', async () => {
    let now = 0
    const { store, asked } = scripted(['key'], ({ oldestFirst }, n) => {
      now += oldestFirst === true ? 30 : 1
      return { more: n < 3, cursor: [String(n)] }
    })
    const cursor = new ClaimCursor(store, { monotonicNow: () => now })
    for (let i = 0; i < 4; i += 1) await cursor.claim(REQUEST)
    expect(froms(asked)).toEqual([undefined, ['1'], ['2'], ['3']])
    expect(asked.map(({ overlapMs }) => overlapMs)).toEqual([undefined, 0, 0, 1_000])
    // Nothing could be claimed: more and more is read at once.
    expect(asked.map(({ rows }) => rows)).toEqual([1_000, 2_000, 4_000, 0])
  })

  it('while a backlog lasts, a scan from the start that finds rows starts again, and finds what commits late', async () => {
    let now = 0
    const { store, asked } = scripted(['key'], (_, n) => {
      now += 30
      return { size: 5, more: true, cursor: [String(n)] }
    })
    const cursor = new ClaimCursor(store, { monotonicNow: () => now })
    for (let i = 0; i < 4; i += 1) {
      await cursor.claim(REQUEST)
      now += 2_000
    }
    expect(froms(asked)).toEqual([undefined, undefined, undefined, undefined])
  })

  it('where the cursor has come to the end, it goes back to what a scan from the start has found', async () => {
    let now = 0
    const answers: Partial<Answer>[] = [
      { size: 5, more: true, cursor: ['m'] },
      { cursor: ['z'] },
      { size: 5, more: true, cursor: ['c'] },
      { size: 5, more: true, cursor: ['d'] },
      { size: 1, cursor: ['z'] },
    ]
    const { store, asked } = scripted(['key'], (_, n) => {
      now += 30
      return answers[n - 1] ?? {}
    })
    const cursor = new ClaimCursor(store, { monotonicNow: () => now })
    const drained: boolean[] = []
    for (let i = 0; i < 5; i += 1) {
      const scan = await cursor.claim(REQUEST)
      drained.push(scan.drained)
      now += scan.fullScanInMs ?? 0
    }
    expect(asked.map(({ oldestFirst, cursor: from }) => [oldestFirst ?? false, from?.[0]])).toEqual([
      [true, undefined],
      [false, 'm'],
      [true, undefined],
      [false, 'c'],
      [false, 'd'],
    ])
    expect(drained).toEqual([false, true, false, false, true])
  })

  it('an overlap with more rows than a claim reads is read on, if some of them could be claimed', async () => {
    for (const size of [0, 5]) {
      let now = 0
      const { store, asked } = scripted(['key'], ({ oldestFirst }, n) => {
        now += oldestFirst === true ? 30 : 1
        if (n === 1) return { size: 5, more: true, cursor: ['m'] }
        return n === 2 ? { cursor: ['z'] } : { size, more: n === 3, cursor: ['k'] }
      })
      const cursor = new ClaimCursor(store, { monotonicNow: () => now })
      for (let i = 0; i < 4; i += 1) await cursor.claim(REQUEST)
      expect(froms(asked)).toEqual([undefined, ['m'], ['z'], [size === 0 ? 'z' : 'k']])
    }
  })

  it('one claim that reads all that is due is drained at once', async () => {
    const { store } = scripted(['key'], () => ({ size: 3 }))
    const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
    expect((await cursor.claim(REQUEST)).drained).toBe(true)
  })

  it('a scan that took long because of a lock is followed by a scan from the start within 5 s', async () => {
    let now = 0
    const { store, asked } = scripted(['order'], (_, nth) => {
      now += nth === 1 ? 29_000 : 1
      return { size: 5, more: true, cursor: ['x'] }
    })
    const cursor = new ClaimCursor(store, { monotonicNow: () => now })
    for (let i = 0; i < 3; i += 1) await cursor.claim(REQUEST)
    now += 5_000
    await cursor.claim(REQUEST)
    expect(froms(asked)[0]).toBeUndefined()
    expect(froms(asked).at(-1)).toBeUndefined()
    expect(froms(asked)[2]).toEqual(['x'])
  })
})

describe('keys that were freed', () => {
  const named = (asked: readonly ClaimRequest[]): string[] =>
    asked.map(({ freed = [] }) => freed.join(' ') || '-')

  it('every second claim names them, as many as it has room for, as long as there are others to claim', async () => {
    const { store, asked } = scripted(['key'], () => ({ size: 5, more: true, cursor: ['x'] }))
    const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
    await cursor.claim(REQUEST)
    cursor.keysFreed(['1', '2', '3', '1'])
    for (let i = 0; i < 5; i += 1) await cursor.claim({ ...REQUEST, limit: 2 })
    expect(named(asked)).toEqual(['-', '-', '1 2', '-', '3', '-'])
  })

  it('the claim after a settlement that yields leaves the room to others, however many claims there were before', async () => {
    for (const before of [1, 2, 3, 4]) {
      const { store, asked } = scripted(['key'], () => ({ size: 1, more: true, cursor: ['x'] }))
      const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
      for (let i = 0; i < before; i += 1) await cursor.claim(REQUEST)
      cursor.keysFreed(['1'])
      await cursor.claim({ ...REQUEST, limit: 1 })
      expect(named(asked).at(-1)).toBe('-')
    }
  })

  it('a table that is not claimed by key has none, and is drained', async () => {
    const { store } = scripted(['group'], () => ({}))
    const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
    cursor.keysFreed(['1'])
    expect((await cursor.claim(REQUEST)).drained).toBe(true)
  })

  it('every claim names them where there are no others, and the table is not drained before', async () => {
    const { store, asked } = scripted(['key'], () => ({}))
    const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
    cursor.keysFreed(['1', '2', '3'])
    const drained: boolean[] = []
    for (let i = 0; i < 3; i += 1) drained.push((await cursor.claim({ ...REQUEST, limit: 1 })).drained)
    expect([named(asked), drained]).toEqual([
      ['1', '2', '3'],
      [false, false, true],
    ])
  })

  it('a claim that had no room for some of them, or failed, is followed by one that names them again', async () => {
    const { store, asked } = scripted(['key'], (_, n) => {
      if (n === 1) throw new Error('away')
      return n === 2 ? { freed: ['7'] } : {}
    })
    const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
    cursor.keysFreed(['1'])
    await expect(cursor.claim(REQUEST)).rejects.toThrow('away')
    for (let i = 0; i < 3; i += 1) await cursor.claim(REQUEST)
    expect(named(asked)).toEqual(['1', '1', '7', '-'])
  })

  it('no more than 10,000 are remembered', async () => {
    const { store, asked } = scripted(['key'], () => ({}))
    const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
    cursor.keysFreed(Array.from({ length: 11_000 }, (_, i) => String(i)))
    await cursor.claim({ ...REQUEST, limit: 100_000 })
    expect(asked[0]?.freed).toHaveLength(10_000)
  })
})

describe('a table that is claimed by key and in order', () => {
  it('a way that had nothing is tried at once when keys were freed', async () => {
    const { store, asked } = scripted(['key', 'order'], ({ way }) =>
      way === 'key' ? {} : { size: 5, more: true, cursor: ['x'] },
    )
    const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
    await cursor.claim(REQUEST)
    await cursor.claim(REQUEST)
    cursor.keysFreed(['1'])
    await cursor.claim(REQUEST)
    expect(asked.map(({ way }) => way)).toEqual(['key', 'order', 'key'])
  })

  it('the two ways take turns as long as both have rows', async () => {
    const { store, asked } = scripted(['key', 'order'], () => ({ size: 5, more: true, cursor: ['x'] }))
    const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
    for (let i = 0; i < 4; i += 1) await cursor.claim(REQUEST)
    expect(asked.map(({ way }) => way)).toEqual(['key', 'order', 'key', 'order'])
  })

  it('a way that had nothing to claim is not tried until it is woken or 250 ms have passed', async () => {
    const { store, asked } = scripted(['key', 'order'], ({ way }) =>
      way === 'key' ? {} : { size: 5, more: true, cursor: ['x'] },
    )
    let now = 0
    const cursor = new ClaimCursor(store, { monotonicNow: () => now })
    for (let i = 0; i < 3; i += 1) expect((await cursor.claim(REQUEST)).drained).toBe(false)
    cursor.wake()
    await cursor.claim(REQUEST)
    await cursor.claim(REQUEST)
    now += 250
    await cursor.claim(REQUEST)
    expect(asked.map(({ way }) => way)).toEqual(['key', 'order', 'order', 'key', 'order', 'key'])
  })

  it('what wakes a worker while a claim is on its way is not forgotten', async () => {
    const { store } = scripted(['key'], (_, n) => {
      if (n === 2) cursor.wake()
      return {}
    })
    const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
    const drained: boolean[] = []
    for (let i = 0; i < 3; i += 1) drained.push((await cursor.claim(REQUEST)).drained)
    expect(drained).toEqual([true, false, true])
  })

  it('the table is drained when both ways are', async () => {
    const { store } = scripted(['key', 'order'], () => ({}))
    const cursor = new ClaimCursor(store, { monotonicNow: () => 0 })
    expect([(await cursor.claim(REQUEST)).drained, (await cursor.claim(REQUEST)).drained]).toEqual([
      false,
      true,
    ])
  })
})

it('a transaction that commits late, before the cursor, is claimed all the same', async () => {
  await subject.insert(20)
  const late = new Client({ connectionString: url })
  await late.connect()
  await late.query('begin')
  await late.query(
    "insert into public.events (payload, available_at) values ('{}', now() - interval '1 hour')",
  )
  let now = 0
  const cursor = new ClaimCursor(await openLeaseStore(db, events.table, { owner: 'worker' }), {
    monotonicNow: () => (now += 1),
  })
  const ids: string[] = []
  for (let drained = false; !drained;) {
    if (ids.length === 12) await late.query('commit')
    const scan = await cursor.claim({ limit: 4, leaseMs: 60_000 })
    ids.push(...scan.claimed.map(({ lease }) => lease.id))
    drained = scan.drained && scan.fullScanInMs === undefined
    now += scan.fullScanInMs ?? 0
  }
  await late.end()
  expect(ids).toHaveLength(21)
})

/** How many index entries were read for each third of the rows. */
async function readByThird(rows: number): Promise<number[]> {
  // One connection, which reports its statistics before they are read.
  const alone = openDatabase({ url, maxConnections: 1 })
  const read = async (): Promise<number> => {
    await alone.query({ text: 'select pg_stat_force_next_flush()' })
    const { rows: sums } = await alone.query<{ read: number }>({
      text: "select sum(idx_tup_read)::float8 as read from pg_stat_user_indexes where relname = 'events'",
    })
    return sums[0]?.read ?? Number.NaN
  }
  try {
    const store = await openLeaseStore(alone, events.table, { owner: 'worker' })
    const cursor = new ClaimCursor(store)
    const marks = [await read()]
    for (let settled = 0; settled < rows;) {
      const scan = await cursor.claim({ limit: 500, leaseMs: 3_600_000 })
      const { ended } = await store.settle(
        'done',
        scan.claimed.map(({ lease }) => lease),
      )
      settled += ended.length
      if (settled >= (rows / 3) * marks.length) marks.push(await read())
    }
    return marks.slice(1).map((mark, i) => mark - (marks[i] ?? Number.NaN))
  } finally {
    await alone.close()
  }
}

it('while a snapshot is held open elsewhere, the last third of 60,000 rows costs at most twice as many index reads as the first', async () => {
  const holder = new Client({ connectionString: url })
  await holder.connect()
  try {
    await db.query({ text: 'alter table public.events set (autovacuum_enabled = off)' })
    await subject.insert(60_000)
    await db.query({ text: 'analyze public.events' })
    await holder.query('begin isolation level repeatable read')
    await holder.query('select count(*) from public.events')
    const [first = 0, , last = Infinity] = await readByThird(60_000)
    // Each row is read at least once. Now and then a claim starts at the beginning and walks over the dead entries; if
    // every claim did, the last third would cost more than four times as much.
    expect(first).toBeGreaterThanOrEqual(20_000)
    expect(last).toBeLessThanOrEqual(first * 2)
  } finally {
    await holder.end()
  }
})
