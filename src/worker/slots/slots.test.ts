import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { Events } from '../events.ts'
import { RowInFlight } from '../rows-in-flight.ts'
import type { Limits } from './limits.ts'
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

function row(id: string, key = 'k'): RowInFlight<Row> {
  const lease = { id, owner: 'w', token: 1n, until: new Date(0) }
  const facts = { claimedAt: 0, attempt: 1, isSuspect: false, bytes: 0, leaseMs: 30_000 }
  return new RowInFlight({ lease, row: { key } }, { index: 0, generation: 1 }, facts)
}

function slots(concurrency: number, limits?: Omit<Limits<Row>, 'key'>) {
  const running = new Map<string, () => void>()
  const ended: string[] = []
  const released: { ids: string[]; forMs: number }[] = []
  const handled: string[] = []
  const given = { concurrency, untrusted: new Set<string>(), onHandle: () => {} }
  const tested = new Slots<Row>({
    table: 'public.jobs',
    clock: { monotonicNow: () => performance.now() },
    events: new Events(),
    settings: () => ({ concurrency: given.concurrency, prefetch: 4 }),
    limits: limits === undefined ? undefined : { key: ({ key }) => key, ...limits },
    run: async ({ lease }) =>
      new Promise<void>((resolve) => {
        running.set(lease.id, resolve)
        handled.push(lease.id)
        given.onHandle()
      }),
    gate: { open: true },
    inFlight: { isTrusted: ({ lease }) => !given.untrusted.has(lease.id) },
    loop: {
      isStalled: false,
      releaseFor: (rows, forMs) => released.push({ ids: rows.map(({ lease }) => lease.id), forMs }),
    },
    completion: {
      handlerEnded: ({ lease }) => ended.push(lease.id),
      endedUnexpectedly: (_, error) => {
        throw error
      },
    },
  })
  return {
    slots: tested,
    given,
    handled,
    ended,
    released,
    running: () => [...running.keys()],
    async finish(id: string) {
      running.get(id)?.()
      running.delete(id)
      await vi.advanceTimersByTimeAsync(0)
    },
    add(...rows: RowInFlight<Row>[]) {
      tested.add(rows)
      tested.fill()
    },
  }
}

describe('slots', () => {
  it('RULE-020-041: as many rows run as there are slots; the others wait in order and start as slots become free', async () => {
    const tested = slots(2)
    tested.add(...['1', '2', '3', '4'].map((id) => row(id)))
    expect(tested.running()).toEqual(['1', '2'])
    expect(tested.slots.ready).toBe(2)
    await tested.finish('2')
    expect(tested.running()).toEqual(['1', '3'])
    expect(tested.ended).toEqual(['2'])
  })

  it('RULE-020-002: additional slots are filled at once; with fewer slots nothing is cut off, and nothing starts until one is free', async () => {
    const tested = slots(1)
    tested.add(...['1', '2', '3', '4'].map((id) => row(id)))
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

  it('a lost row makes room for another although its handler has not returned, but only once for each slot', async () => {
    const tested = slots(1)
    const rows = ['1', '2', '3', '4'].map((id) => row(id))
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

  it('a row is started once, even if a handler causes slots to be filled before its first await', () => {
    const tested = slots(1)
    const rows = ['1', '2', '3'].map((id) => row(id))
    tested.given.onHandle = () => {
      tested.given.concurrency = 3
      tested.slots.fill()
    }
    tested.add(...rows)
    expect(tested.handled).toEqual(['1', '2', '3'])
    expect(tested.slots.running).toBe(3)
    expect(tested.slots.ready).toBe(0)
  })

  it('rows are started in order, and none is lost or started twice, however many pass through', async () => {
    const tested = slots(2)
    const ids = Array.from({ length: 300 }, (_, i) => String(i))
    tested.add(...ids.slice(0, 200).map((id) => row(id)))
    for (const id of ids.slice(0, 150)) await tested.finish(id)
    tested.add(...ids.slice(200).map((id) => row(id)))
    expect(tested.slots.ready).toBe(148)
    expect([...tested.slots].map(({ lease }) => lease.id)).toEqual(ids.slice(150))
    for (const id of ids.slice(150)) await tested.finish(id)
    expect(tested.handled).toEqual(ids)
    expect(tested.ended).toEqual(ids)
  })

  it('a row that is lost while it waits for a slot is not started', () => {
    const tested = slots(1)
    const [first, second] = [row('1'), row('2')]
    tested.add(first, second)
    expect(tested.slots.abandon(second)).toBe(false)
    expect(tested.slots.ready).toBe(0)
    expect(tested.slots.abandoned).toBe(0)
  })
})

it.each([undefined, { concurrency: 5 }])(
  'RULE-020-050: a row whose lease ran out while it waited is not started, and the rows after it are (limits: %j)',
  (limits) => {
    const tested = slots(2, limits)
    tested.given.untrusted.add('2')
    tested.add(...['1', '2', '3', '4'].map((id) => row(id)))
    expect(tested.running()).toEqual(['1', '3'])
    expect([...tested.slots].map(({ lease }) => lease.id)).toEqual(['1', '3', '2', '4'])
    tested.slots.close()
  },
)

describe('limits per key', () => {
  it('rows whose key is busy are passed over, and start when their key has room', async () => {
    const tested = slots(3, { concurrency: 1 })
    tested.add(row('a1', 'a'), row('a2', 'a'), row('b1', 'b'), row('c1', 'c'))
    expect(tested.running()).toEqual(['a1', 'b1', 'c1'])
    await tested.finish('b1')
    expect(tested.running()).toEqual(['a1', 'c1'])
    await tested.finish('a1')
    expect(tested.running()).toEqual(['c1', 'a2'])
    tested.slots.close()
  })

  it('RULE-020-042: when only rows of busy keys wait for free slots, most of them are released to make room for others', () => {
    const tested = slots(2, { concurrency: 1 })
    tested.add(...Array.from({ length: 9 }, (_, i) => row(`a${i}`, 'a')))
    expect(tested.running()).toEqual(['a0'])
    expect(tested.released).toHaveLength(1)
    expect(tested.slots.ready + (tested.released[0]?.ids.length ?? 0)).toBe(8)
    expect(tested.released[0]?.ids.length).toBeGreaterThan(0)
    tested.slots.close()
  })

  it('a rate lets the next row start when its time has come', async () => {
    const tested = slots(5, { rate: { perSecond: 10, burst: 1 } })
    tested.add(row('a1', 'a'), row('a2', 'a'))
    expect(tested.running()).toEqual(['a1'])
    await vi.advanceTimersByTimeAsync(99)
    expect(tested.running()).toEqual(['a1'])
    await vi.advanceTimersByTimeAsync(2)
    expect(tested.running()).toEqual(['a1', 'a2'])
    tested.slots.close()
    expect(vi.getTimerCount()).toBe(0)
  })
})
