import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { RowInFlight } from '../rows-in-flight.ts'
import { dead, done, type Outcome, retry } from './outcome.ts'
import { filterBatch, type SettlementBatch, settlementOf, SettlementQueue } from './settlement-queue.ts'

interface Row {
  readonly n: number
  readonly key?: string | null
}

function row(n: number, key?: string | null): RowInFlight<Row> {
  const lease = { id: String(n), owner: 'w', token: 1n, until: new Date(0) }
  const facts = { claimedAt: 0, attempt: 1, isSuspect: false, bytes: 0, leaseMs: 30_000 }
  return new RowInFlight(
    { lease, row: key === undefined ? { n } : { n, key } },
    { index: n, generation: 1 },
    facts,
  )
}

const UNORDERED = { ordering: undefined }
const BY_KEY = { ordering: { key: 'key', unfinished: 'true' } }

describe('a batch of settlements', () => {
  it('a batch has rows of one outcome, in the order in which they finished, each with its own arguments; the largest comes first', () => {
    const queue = new SettlementQueue<Row>(UNORDERED)
    queue.add(row(1), done(), 0)
    queue.add(row(2), retry({ delayMs: 2 }), 0)
    queue.add(row(3), retry({ delayMs: 3 }), 0)
    queue.add(row(4), retry({ delayMs: 4 }), 0)
    expect(queue.take(2, 10)).toMatchObject({
      outcome: 'retry',
      rows: [{ row: { n: 2 } }, { row: { n: 3 } }],
      args: [{ delay_ms: 2 }, { delay_ms: 3 }],
    })
    expect(queue.size).toBe(2)
  })

  it('a batch has no arguments when none of its rows has any', () => {
    const queue = new SettlementQueue<Row>(UNORDERED)
    queue.add(row(1), done(), 0)
    expect(queue.take(10, 0)?.args).toBeUndefined()
    expect(queue.take(10, 0)).toBeUndefined()
  })

  it('a batch that has waited for 100 ms comes before a larger one, so that a rare outcome is settled under load too', () => {
    const queue = new SettlementQueue<Row>(UNORDERED)
    queue.add(row(1), retry({ delayMs: 1 }), 0)
    queue.add(row(2), done(), 90)
    queue.add(row(3), done(), 90)
    expect(queue.nextSize(99)).toBe(2)
    expect(queue.nextSize(100)).toBe(1)
    expect(queue.take(10, 100)).toMatchObject({ outcome: 'retry' })
  })

  it('LIFE-13: a batch has only rows with an ordering key, whose next rows can be claimed, or only rows without', () => {
    const queue = new SettlementQueue<Row>(BY_KEY)
    queue.add(row(1, 'a'), done(), 0)
    queue.add(row(2, null), done(), 0)
    queue.add(row(3, 'b'), done(), 0)
    expect(queue.take(10, 0)).toMatchObject({ way: 'key', rows: [{ id: '1' }, { id: '3' }] })
    const alone = queue.take(10, 0)
    expect(alone).toMatchObject({ way: 'order', rows: [{ id: '2' }] })
    if (alone !== undefined) queue.putBack(alone, 0)
    expect(queue.take(10, 0)).toMatchObject({ way: 'order', rows: [{ id: '2' }] })
  })
})

it('the queue knows since when its oldest row is waiting, and that none is', () => {
  const queue = new SettlementQueue<Row>(UNORDERED)
  expect(queue.waitsSince).toBe(Number.POSITIVE_INFINITY)
  queue.add(row(1), done(), 5)
  queue.add(row(2), dead('x'), 9)
  expect(queue.waitsSince).toBe(5)
  queue.take(1, 12)
  expect(queue.waitsSince).toBe(12)
  queue.take(1, 12)
  expect(queue.waitsSince).toBe(Number.POSITIVE_INFINITY)
})

it('LIFE-18: whatever is added, taken and put back, no row is lost, duplicated or given another outcome', () => {
  const outcome = fc.oneof(
    fc.constant(done()),
    fc.nat(99).map((delayMs) => retry({ delayMs })),
    fc.constant(dead('no')),
  )
  const step = fc.oneof(
    fc.record({ add: outcome }),
    fc.record({ take: fc.integer({ min: 1, max: 5 }), putBack: fc.boolean() }),
  )
  fc.assert(
    fc.property(fc.array(step, { maxLength: 100 }), (steps) => {
      const queue = new SettlementQueue<Row>(UNORDERED)
      const expected = new Map<number, Outcome>()
      const settled = new Map<number, Outcome>()
      const settle = (limit: number, putBack: boolean, now: number): boolean => {
        const batch = queue.take(limit, now)
        if (batch === undefined) return false
        expect(batch.rows.length).toBeLessThanOrEqual(limit)
        if (putBack) queue.putBack(batch, now)
        batch.rows.forEach(({ row }, i) => {
          if (putBack) return
          expect(settled.has(row.n)).toBe(false)
          settled.set(row.n, { name: batch.outcome, args: batch.args?.[i] ?? {} })
        })
        return true
      }
      steps.forEach((taken, n) => {
        if ('add' in taken) {
          queue.add(row(n), taken.add, n)
          expected.set(n, taken.add)
        } else settle(taken.take, taken.putBack, n)
        expect(queue.size).toBe(expected.size - settled.size)
      })
      while (settle(3, false, 0));
      expect(settled).toEqual(expected)
    }),
  )
})

describe('when a batch is sent', () => {
  const settings = { batch: 2, settleDelayMs: 50 }

  it('a batch is due when it is full, or when its first row has waited for as long as it may', () => {
    const queue = new SettlementQueue<Row>(UNORDERED)
    expect(queue.isDue(1_000, settings)).toBe(false)
    expect(queue.nextSize(0)).toBe(0)
    queue.add(row(1), done(), 10)
    expect([59, 60].map((now) => queue.isDue(now, settings))).toEqual([false, true])
    queue.add(row(2), done(), 20)
    expect(queue.isDue(20, settings)).toBe(true)
  })
})

describe('the rows of a batch', () => {
  const rows = [row(1), row(2), row(3)]
  const batch: SettlementBatch<Row> = { outcome: 'done', way: 'order', bucket: 4, rows, args: undefined }
  const args = [{ n: 1 }, { n: 2 }, { n: 3 }]

  it('are sent by their leases, with arguments only where there are any', () => {
    expect(settlementOf(batch)).toEqual({ leases: rows.map(({ lease }) => lease) })
    expect(settlementOf({ ...batch, args })).toEqual({ leases: rows.map(({ lease }) => lease), args })
  })

  it('are filtered together with their arguments', () => {
    const isOdd = ({ row: { n } }: RowInFlight<Row>): boolean => n % 2 === 1
    expect(filterBatch(batch, isOdd)).toEqual({ ...batch, rows: [rows[0], rows[2]] })
    expect(filterBatch({ ...batch, args }, isOdd)).toEqual({
      ...batch,
      rows: [rows[0], rows[2]],
      args: [{ n: 1 }, { n: 3 }],
    })
  })

  it('get empty arguments for those that have none, once another row of the batch has some', () => {
    const queue = new SettlementQueue<Row>(UNORDERED)
    queue.add(row(1), done(), 0)
    queue.add(row(2), done({ note: 'paid' }), 0)
    queue.add(row(3), done(), 0)
    expect(queue.take(10, 0)?.args).toEqual([{}, { note: 'paid' }, {}])
    queue.add(row(4), done({}), 0)
    expect(queue.take(10, 0)?.args).toBeUndefined()
  })
})
