import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Handling } from './handling.ts'
import { dead, done, type Outcome, retry } from './outcome.ts'
import { Settlements } from './settlements.ts'

interface Row {
  readonly n: number
  readonly key?: string | null
}

function handling(n: number, key?: string | null): Handling<Row> {
  const lease = { id: String(n), owner: 'w', token: 1n, until: new Date(0) }
  const facts = { claimedAt: 0, attempt: 1, isSuspect: false, bytes: 0, leaseMs: 30_000 }
  return new Handling(
    { lease, row: key === undefined ? { n } : { n, key } },
    { index: n, generation: 1 },
    facts,
  )
}

const UNORDERED = { ordering: undefined }
const BY_KEY = { ordering: { key: 'key', unfinished: 'true' } }

describe('a batch', () => {
  it('is of one outcome, the largest first, in the order in which they were finished, each with its own arguments', () => {
    const settlements = new Settlements<Row>(UNORDERED)
    settlements.add(handling(1), done(), 0)
    settlements.add(handling(2), retry({ delayMs: 2 }), 0)
    settlements.add(handling(3), retry({ delayMs: 3 }), 0)
    settlements.add(handling(4), retry({ delayMs: 4 }), 0)
    expect(settlements.take(2, 10)).toMatchObject({
      outcome: 'retry',
      rows: [{ row: { n: 2 } }, { row: { n: 3 } }],
      args: [{ delay_ms: 2 }, { delay_ms: 3 }],
    })
    expect(settlements.size).toBe(2)
  })

  it('has no arguments when none of its rows has any', () => {
    const settlements = new Settlements<Row>(UNORDERED)
    settlements.add(handling(1), done(), 0)
    expect(settlements.take(10, 0)?.args).toBeUndefined()
    expect(settlements.take(10, 0)).toBeUndefined()
  })

  it('that waited for 100 ms goes before a larger one, so that a rare outcome is settled under load too', () => {
    const settlements = new Settlements<Row>(UNORDERED)
    settlements.add(handling(1), retry({ delayMs: 1 }), 0)
    settlements.add(handling(2), done(), 90)
    settlements.add(handling(3), done(), 90)
    expect(settlements.nextSize(99)).toBe(2)
    expect(settlements.nextSize(100)).toBe(1)
    expect(settlements.take(10, 100)).toMatchObject({ outcome: 'retry' })
  })

  it('LIFE-13: has only rows with an ordering key, whose followers can be claimed, or only rows without', () => {
    const settlements = new Settlements<Row>(BY_KEY)
    settlements.add(handling(1, 'a'), done(), 0)
    settlements.add(handling(2, null), done(), 0)
    settlements.add(handling(3, 'b'), done(), 0)
    expect(settlements.take(10, 0)).toMatchObject({ way: 'key', rows: [{ id: '1' }, { id: '3' }] })
    const alone = settlements.take(10, 0)
    expect(alone).toMatchObject({ way: 'order', rows: [{ id: '2' }] })
    if (alone !== undefined) settlements.putBack(alone, 0)
    expect(settlements.take(10, 0)).toMatchObject({ way: 'order', rows: [{ id: '2' }] })
  })
})

it('knows since when the oldest is waiting, and that none is', () => {
  const settlements = new Settlements<Row>(UNORDERED)
  expect(settlements.oldestAt).toBe(Number.POSITIVE_INFINITY)
  settlements.add(handling(1), done(), 5)
  settlements.add(handling(2), dead('x'), 9)
  expect(settlements.oldestAt).toBe(5)
  settlements.take(1, 12)
  expect(settlements.oldestAt).toBe(12)
  settlements.take(1, 12)
  expect(settlements.oldestAt).toBe(Number.POSITIVE_INFINITY)
})

it('LIFE-18: whatever is added, taken and put back, nothing is lost, doubled, or given another outcome', () => {
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
      const settlements = new Settlements<Row>(UNORDERED)
      const expected = new Map<number, Outcome>()
      const settled = new Map<number, Outcome>()
      const settle = (limit: number, putBack: boolean, now: number): boolean => {
        const batch = settlements.take(limit, now)
        if (batch === undefined) return false
        expect(batch.rows.length).toBeLessThanOrEqual(limit)
        if (putBack) settlements.putBack(batch, now)
        batch.rows.forEach(({ row }, i) => {
          if (putBack) return
          expect(settled.has(row.n)).toBe(false)
          settled.set(row.n, { outcome: batch.outcome, args: batch.args?.[i] ?? {} })
        })
        return true
      }
      steps.forEach((taken, n) => {
        if ('add' in taken) {
          settlements.add(handling(n), taken.add, n)
          expected.set(n, taken.add)
        } else settle(taken.take, taken.putBack, n)
        expect(settlements.size).toBe(expected.size - settled.size)
      })
      while (settle(3, false, 0));
      expect(settled).toEqual(expected)
    }),
  )
})
