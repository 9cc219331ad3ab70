import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { Handling } from './handling.ts'
import { createLimiter, type Limits } from './limits.ts'
import { Slots } from './slots.ts'

interface Row {
  readonly key: string
}

beforeEach(() => {
  vi.useFakeTimers()
})
afterEach(() => {
  vi.useRealTimers()
})

function handling(id: string, key = 'k'): Handling<Row> {
  const lease = { id, owner: 'w', token: 1n, until: new Date(0) }
  const facts = { claimedAt: 0, attempt: 1, isSuspect: false, bytes: 0, leaseMs: 30_000 }
  return new Handling({ lease, row: { key } }, { index: 0, generation: 1 }, facts)
}

function slots(concurrency: number, limits?: Omit<Limits<Row>, 'key'>) {
  const running = new Map<string, () => void>()
  const ended: string[] = []
  const crowded: { ids: string[]; forMs: number }[] = []
  const handled: string[] = []
  const given = { concurrency, mayStart: true, untrusted: new Set<string>(), onHandle: () => {} }
  const key = (row: Row): string => row.key
  const limiter = createLimiter<Row>({ key, ...limits }, { monotonicNow: () => performance.now() })
  const tested = new Slots<Row>({
    concurrency: () => given.concurrency,
    mayStart: () => given.mayStart,
    places: () => given.concurrency + 4,
    isTrusted: ({ lease }) => !given.untrusted.has(lease.id),
    now: () => performance.now(),
    handle: async ({ lease }) =>
      new Promise<void>((resolve) => {
        running.set(lease.id, resolve)
        handled.push(lease.id)
        given.onHandle()
      }),
    limits: limits === undefined ? undefined : { key, limiter },
    onStart: () => undefined,
    onEnd: ({ lease }) => ended.push(lease.id),
    onTrouble: (error) => {
      throw error
    },
    onCrowded: (rows, forMs) => crowded.push({ ids: rows.map(({ lease }) => lease.id), forMs }),
  })
  return {
    slots: tested,
    given,
    handled,
    ended,
    crowded,
    running: () => [...running.keys()],
    async finish(id: string) {
      running.get(id)?.()
      running.delete(id)
      await vi.advanceTimersByTimeAsync(0)
    },
    add(...handlings: Handling<Row>[]) {
      tested.add(handlings)
      tested.fill()
    },
  }
}

describe('slots', () => {
  it('RULE-020-041: as many run as there are slots, the others wait in order and start as slots come free', async () => {
    const tested = slots(2)
    tested.add(...['1', '2', '3', '4'].map((id) => handling(id)))
    expect(tested.running()).toEqual(['1', '2'])
    expect(tested.slots.ready).toBe(2)
    await tested.finish('2')
    expect(tested.running()).toEqual(['1', '3'])
    expect(tested.ended).toEqual(['2'])
  })

  it('RULE-020-002: more slots are filled at once; fewer cut nobody off, and nothing starts until there is room', async () => {
    const tested = slots(1)
    tested.add(...['1', '2', '3', '4'].map((id) => handling(id)))
    tested.given.concurrency = 3
    tested.slots.fill()
    expect(tested.running()).toEqual(['1', '2', '3'])
    tested.given.concurrency = 1
    await tested.finish('1')
    await tested.finish('2')
    expect(tested.running()).toEqual(['3'])
    await tested.finish('3')
    expect(tested.running()).toEqual(['4'])
  })

  it('a row that was lost makes room for another although its handler has not come back, but not without end', async () => {
    const tested = slots(1)
    const rows = ['1', '2', '3', '4'].map((id) => handling(id))
    tested.add(...rows)
    for (const row of rows.slice(0, 3)) {
      tested.slots.abandon(row)
      tested.slots.fill()
    }
    expect(tested.running()).toEqual(['1', '2'])
    expect(tested.slots.abandoned).toBe(2)
    await tested.finish('1')
    expect(tested.running()).toEqual(['2', '4'])
  })

  it('a row is started once, also where a handler has the slots filled before it first waits for something', () => {
    const tested = slots(1)
    const rows = ['1', '2', '3'].map((id) => handling(id))
    tested.given.onHandle = () => {
      tested.given.concurrency = 3
      tested.slots.fill()
    }
    tested.add(...rows)
    expect(tested.handled).toEqual(['1', '2', '3'])
    expect(tested.slots.running).toBe(3)
    expect(tested.slots.ready).toBe(0)
  })

  it('rows go on in order, and none is lost or doubled, however many have gone through', async () => {
    const tested = slots(2)
    const ids = Array.from({ length: 300 }, (_, i) => String(i))
    tested.add(...ids.slice(0, 200).map((id) => handling(id)))
    for (const id of ids.slice(0, 150)) await tested.finish(id)
    tested.add(...ids.slice(200).map((id) => handling(id)))
    expect(tested.slots.ready).toBe(148)
    expect([...tested.slots].map(({ lease }) => lease.id)).toEqual(ids.slice(150))
    for (const id of ids.slice(150)) await tested.finish(id)
    expect(tested.handled).toEqual(ids)
    expect(tested.ended).toEqual(ids)
  })

  it('a row that waits and is lost is not started', () => {
    const tested = slots(1)
    const [first, second] = [handling('1'), handling('2')]
    tested.add(first, second)
    expect(tested.slots.abandon(second)).toBe(false)
    expect(tested.slots.ready).toBe(0)
    expect(tested.slots.abandoned).toBe(0)
  })
})

it.each([undefined, { concurrency: 5 }])(
  'RULE-020-050: a row whose lease ran out while it waited is not started, and those behind it are (limits: %j)',
  (limits) => {
    const tested = slots(2, limits)
    tested.given.untrusted.add('2')
    tested.add(...['1', '2', '3', '4'].map((id) => handling(id)))
    expect(tested.running()).toEqual(['1', '3'])
    expect([...tested.slots].map(({ lease }) => lease.id)).toEqual(['1', '3', '2', '4'])
    tested.slots.close()
  },
)

describe('limits per key', () => {
  it('rows whose key is busy step aside for those behind them, and start when their key has room', async () => {
    const tested = slots(3, { concurrency: 1 })
    tested.add(handling('a1', 'a'), handling('a2', 'a'), handling('b1', 'b'), handling('c1', 'c'))
    expect(tested.running()).toEqual(['a1', 'b1', 'c1'])
    await tested.finish('b1')
    expect(tested.running()).toEqual(['a1', 'c1'])
    await tested.finish('a1')
    expect(tested.running()).toEqual(['c1', 'a2'])
    tested.slots.close()
  })

  it('RULE-020-042: when nothing but such rows is left, those that are in the way of others are given back', () => {
    const tested = slots(2, { concurrency: 1 })
    tested.add(...Array.from({ length: 9 }, (_, i) => handling(`a${i}`, 'a')))
    expect(tested.running()).toEqual(['a0'])
    expect(tested.crowded).toHaveLength(1)
    expect(tested.slots.ready + (tested.crowded[0]?.ids.length ?? 0)).toBe(8)
    expect(tested.crowded[0]?.ids.length).toBeGreaterThan(0)
    tested.slots.close()
  })

  it('a rate lets the next one start when its time has come', async () => {
    const tested = slots(5, { rate: { perSecond: 10, burst: 1 } })
    tested.add(handling('a1', 'a'), handling('a2', 'a'))
    expect(tested.running()).toEqual(['a1'])
    await vi.advanceTimersByTimeAsync(99)
    expect(tested.running()).toEqual(['a1'])
    await vi.advanceTimersByTimeAsync(2)
    expect(tested.running()).toEqual(['a1', 'a2'])
    tested.slots.close()
    expect(vi.getTimerCount()).toBe(0)
  })
})
