import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { type HandlerResult, type Outcome, retry } from '../completion/outcome.ts'
import { Events } from '../events.ts'
import { RowInFlight } from '../rows-in-flight.ts'
import type { Limits } from './limits.ts'
import { Slots } from './slots.ts'

interface Row {
  readonly key: string
}

interface PromiseWithResolvers {
  readonly resolve: (outcome: Outcome | undefined) => void
  readonly reject: (error: Error) => void
}

beforeEach(() => {
  vi.useFakeTimers()
})
afterEach(() => {
  vi.useRealTimers()
})

function row(id: string, key = 'k', claimedAt = 0): RowInFlight<Row> {
  const lease = { id, owner: 'w', token: 1n, until: new Date(0) }
  const facts = { claimedAt, attempt: 1, isSuspect: false, bytes: 0, leaseMs: 30_000 }
  return new RowInFlight({ lease, row: { key } }, { index: 0, generation: 1 }, facts)
}

function slots(concurrency: number, limits?: Partial<Limits<Row>>) {
  const running = new Map<string, PromiseWithResolvers>()
  const results: HandlerResult[] = []
  const events = new Events()
  const ended: string[] = []
  const released: { ids: string[]; forMs: number }[] = []
  const handled: string[] = []
  const given = { concurrency, untrusted: new Set<string>(), onHandle: () => {} }
  const tested = new Slots<Row>({
    table: 'public.jobs',
    clock: { monotonicNow: () => performance.now() },
    events,
    settings: () => ({ concurrency: given.concurrency, prefetch: 4 }),
    limits: limits === undefined ? undefined : { key: ({ key }) => key, ...limits },
    run: async ({ lease }) =>
      new Promise<Outcome | void>((resolve, reject) => {
        running.set(lease.id, { resolve, reject })
        handled.push(lease.id)
        given.onHandle()
      }),
    gate: { open: true },
    inFlight: { isTrusted: ({ lease }) => !given.untrusted.has(lease.id) },
    cycle: {
      isStalled: false,
      releaseFor: (rows, forMs) => released.push({ ids: rows.map(({ lease }) => lease.id), forMs }),
    },
    completion: {
      handlerEnded: ({ lease }, result) => {
        ended.push(lease.id)
        results.push(result)
      },
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
    results,
    events,
    async finish(id: string, outcome?: Outcome) {
      running.get(id)?.resolve(outcome)
      running.delete(id)
      await vi.advanceTimersByTimeAsync(0)
    },
    async fail(id: string, error: Error) {
      running.get(id)?.reject(error)
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

  it('RULE-020-041: there is room for as many rows as there are slots and may wait, and for none while enough of them wait', () => {
    const tested = slots(4)
    const rooms = Array.from({ length: 8 }, (_, i) => {
      const { room } = tested.slots
      tested.add(row(String(i)))
      return room
    })
    // With 4 running and 3 waiting, a claim for the last row can wait.
    expect(rooms).toEqual([8, 7, 6, 5, 4, 3, 2, 0])
    expect(tested.slots.room).toBe(0)
  })

  it('RULE-020-041: one slot has room for a second row that waits', () => {
    const tested = slots(1)
    tested.add(row('1'))
    expect(tested.slots.room).toBe(1)
    tested.add(row('2'))
    expect(tested.slots.room).toBe(0)
  })

  it('more rows are claimed ahead once the slots ran dry, but not while a row waits', () => {
    const tested = slots(1)
    tested.add(row('1'), row('2'))
    tested.slots.sawBacklog()
    expect(tested.slots.room).toBe(0)
    tested.slots.takeReady()
    tested.slots.sawBacklog()
    expect(tested.slots.room).toBe(2)
  })

  it('fewer rows are claimed ahead after a row has waited for more than a second', async () => {
    const tested = slots(4)
    const before = tested.slots.room
    await vi.advanceTimersByTimeAsync(5_000)
    tested.add(row('recent', 'k', performance.now() - 1_000))
    expect(tested.slots.room).toBe(before - 1)
    tested.add(row('old', 'k', performance.now() - 1_001))
    expect(tested.slots.room).toBe(before - 4)
  })

  it('slots are empty when no row runs and none waits', async () => {
    const tested = slots(1)
    expect(tested.slots.isEmpty).toBe(true)
    tested.add(row('1'))
    expect(tested.slots.isEmpty).toBe(false)
    tested.given.concurrency = 0
    tested.add(row('2'))
    await tested.finish('1')
    expect(tested.slots.running).toBe(0)
    expect(tested.slots.isEmpty).toBe(false)
  })

  it('what a handler returned or threw is passed on, and nothing at all as well', async () => {
    const tested = slots(3)
    tested.add(row('1'), row('2'), row('3'))
    await tested.finish('1')
    await tested.finish('2', retry({ delayMs: 5 }))
    await tested.fail('3', new Error('no'))
    expect(tested.results).toEqual([
      { ended: 'returned', outcome: undefined },
      { ended: 'returned', outcome: retry({ delayMs: 5 }) },
      { ended: 'threw', error: new Error('no') },
    ])
  })

  it('a handler written without types may throw at once: its row fails, and the next one starts', async () => {
    const tested = slots(1)
    tested.given.onHandle = () => {
      tested.given.onHandle = () => {}
      throw new Error('at once')
    }
    tested.add(row('1'), row('2'))
    await vi.advanceTimersByTimeAsync(0)
    expect(tested.results).toEqual([{ ended: 'threw', error: new Error('at once') }])
    expect(tested.slots.running).toBe(1)
  })

  it('the start of a row is reported with its token and attempt', () => {
    const tested = slots(1)
    const started: unknown[] = []
    tested.events.on('started', (event) => started.push(event))
    tested.add(row('1'))
    expect(started).toMatchObject([{ table: 'public.jobs', id: '1', token: 1n, attempt: 1 }])
  })

  it('rows that have waited since before a moment are taken out, and the others stay in order', async () => {
    const tested = slots(1)
    tested.add(row('1', 'k', 1), row('2', 'k', 5), row('3', 'k', 10), row('4', 'k', 20))
    expect(tested.slots.takeReadyBefore(5)).toEqual([])
    expect(tested.slots.takeReadyBefore(10).map(({ id }) => id)).toEqual(['2'])
    expect(tested.slots.ready).toBe(2)
    await tested.finish('1')
    expect(tested.running()).toEqual(['3'])
    expect([...tested.slots].map(({ id }) => id)).toEqual(['3', '4'])
  })

  it('while more handlers of lost rows hang than there are slots, there is room for nothing', async () => {
    const tested = slots(1)
    const rows = ['1', '2', '3'].map((id) => row(id))
    tested.add(...rows)
    const isClogged = rows.slice(0, 2).map((lost) => {
      expect(tested.slots.abandon(lost)).toBe(true)
      tested.slots.fill()
      return tested.slots.isClogged
    })
    expect(isClogged).toEqual([false, true])
    expect(tested.slots.room).toBe(0)
    await tested.finish('1')
    expect(tested.slots.isClogged).toBe(false)
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
    // One slot and two rows ahead are free: half of that, rounded down, may wait.
    expect(tested.slots.ready).toBe(1)
    expect(tested.released[0]).toMatchObject({
      ids: Array.from({ length: 7 }, (_, i) => `a${i + 2}`),
      forMs: 1_000,
    })
    expect(vi.getTimerCount()).toBe(1)
    tested.slots.close()
    expect(vi.getTimerCount()).toBe(0)
  })

  it('a row whose key cannot be computed fails alone', async () => {
    const key = ({ key }: Row): string => {
      if (key === 'bad') throw new Error('no key')
      return key
    }
    const tested = slots(2, { concurrency: 1, key })
    tested.add(row('1', 'bad'), row('2', 'good'))
    await vi.advanceTimersByTimeAsync(0)
    expect(tested.results).toEqual([{ ended: 'threw', error: new Error('no key') }])
    expect(tested.running()).toEqual(['2'])
    tested.slots.close()
  })

  it('rows without a key are not limited', () => {
    const tested = slots(3, { concurrency: 1, key: () => undefined })
    tested.add(row('1'), row('2'), row('3'))
    expect(tested.running()).toEqual(['1', '2', '3'])
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
