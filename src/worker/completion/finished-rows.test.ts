import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { RowInFlight } from '../rows-in-flight.ts'
import { filterBatch, FinishedRows } from './finished-rows.ts'
import { dead, done, type Outcome, retry } from './outcome.ts'

interface Row {
  readonly n: number
}

function row(n: number): RowInFlight<Row> {
  const lease = { id: String(n), owner: 'w', token: 1n, until: new Date(0) }
  const facts = { claimedAt: 0, attempt: 1, isSuspect: false, bytes: 0, leaseMs: 30_000 }
  return new RowInFlight({ lease, row: { n } }, { index: n, generation: 1 }, facts)
}

describe('finished rows', () => {
  it('are taken with those of the same outcome, in the order in which they finished, each with its own arguments', () => {
    const finished = new FinishedRows<Row>()
    finished.add(row(1), done(), 0)
    finished.add(row(2), retry({ delayMs: 2 }), 0)
    finished.add(row(3), done(), 0)
    finished.add(row(4), retry({ delayMs: 4 }), 0)
    expect(finished.take(10, 10)).toMatchObject([
      { outcome: 'done', rows: [{ id: '1' }, { id: '3' }], args: undefined },
      { outcome: 'retry', rows: [{ id: '2' }, { id: '4' }], args: [{ delay_ms: 2 }, { delay_ms: 4 }] },
    ])
    expect(finished.take(10, 10)).toEqual([])
  })

  it('of an outcome that did not fit come after the others the next time, so that a rare outcome is settled under load too', () => {
    const finished = new FinishedRows<Row>()
    for (const n of [1, 2, 3]) finished.add(row(n), done(), 0)
    finished.add(row(4), dead('no'), 0)
    expect(finished.take(2, 0)).toMatchObject([{ outcome: 'done', rows: [{ id: '1' }, { id: '2' }] }])
    expect(finished.take(2, 0)).toMatchObject([
      { outcome: 'dead', rows: [{ id: '4' }] },
      { outcome: 'done', rows: [{ id: '3' }] },
    ])
  })

  it('get empty arguments where they have none, once another row of the batch has some', () => {
    const finished = new FinishedRows<Row>()
    finished.add(row(1), done(), 0)
    finished.add(row(2), done({ note: 'paid' }), 0)
    finished.add(row(3), done({}), 0)
    expect(finished.take(10, 0)).toMatchObject([{ args: [{}, { note: 'paid' }, {}] }])
    finished.add(row(4), done({}), 0)
    expect(finished.take(10, 0)).toMatchObject([{ args: undefined }])
  })

  it('are due when they fill a pipeline, or when the first has waited for as long as it may; those that stay wait anew', () => {
    const settings = { batch: 2, settleDelayMs: 50 }
    const finished = new FinishedRows<Row>()
    expect(finished.isDue(1_000, settings)).toBe(false)
    finished.add(row(1), done(), 10)
    expect([59, 60].map((now) => finished.isDue(now, settings))).toEqual([false, true])
    finished.add(row(2), dead('no'), 20)
    expect(finished.isDue(20, settings)).toBe(true)
    finished.take(1, 30)
    expect(finished.waitsSince).toBe(30)
    finished.take(1, 30)
    expect(finished.waitsSince).toBe(Number.POSITIVE_INFINITY)
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
        const finished = new FinishedRows<Row>()
        const expected = new Map<number, Outcome>()
        const settled = new Map<number, Outcome>()
        const twice: number[] = []
        const settle = (limit: number, putBack: boolean, now: number): void => {
          const before = finished.size
          const batches = finished.take(limit, now)
          const taken = batches.reduce((sum, { rows }) => sum + rows.length, 0)
          expect(taken).toBe(Math.min(limit, before))
          for (const batch of batches) {
            if (putBack) finished.putBack(batch, now)
            else
              batch.rows.forEach(({ row: { n } }, i) => {
                if (settled.has(n)) twice.push(n)
                settled.set(n, { name: batch.outcome, args: batch.args?.[i] ?? {} })
              })
          }
        }
        steps.forEach((taken, n) => {
          if ('add' in taken) {
            finished.add(row(n), taken.add, n)
            expected.set(n, taken.add)
          } else settle(taken.take, taken.putBack, n)
          expect(finished.size).toBe(expected.size - settled.size)
        })
        while (finished.size > 0) settle(3, false, 0)
        expect(twice).toEqual([])
        expect(settled).toEqual(expected)
      }),
    )
  })
})

it('a batch is filtered together with its arguments', () => {
  const rows = [row(1), row(2), row(3)]
  const batch = { outcome: 'retry', rows, args: [{ n: 1 }, { n: 2 }, { n: 3 }] }
  const isOdd = ({ row: { n } }: RowInFlight<Row>): boolean => n % 2 === 1
  expect(filterBatch(batch, isOdd)).toEqual({
    outcome: 'retry',
    rows: [rows[0], rows[2]],
    args: [{ n: 1 }, { n: 3 }],
  })
  expect(filterBatch({ ...batch, args: undefined }, isOdd).args).toBeUndefined()
})
