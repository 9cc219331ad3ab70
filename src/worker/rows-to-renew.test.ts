import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { RowToRenew } from './lifeline-messages.ts'
import { HeldRows } from './held-rows.ts'
import { columnsOf, RowsInRenewal } from './rows-to-renew.ts'

function take(held: HeldRows, id: number, claimedAt = 0): RowToRenew {
  return { ...held.take(1_000), id: String(id), token: BigInt(id), claimedAt }
}

describe('rows by columns', () => {
  it('the earliest claim counts for all: none is held too long', () => {
    const held = new HeldRows()
    expect(columnsOf([take(held, 1, 9), take(held, 2, 5)])).toMatchObject({ ids: '1\u00002', claimedAt: 5 })
  })

  it('no rows at all are fine', () => {
    const rows = new RowsInRenewal(new HeldRows())
    rows.add(columnsOf([]))
    expect(rows.current()).toEqual([])
  })
})

it('WH-FR-001-AC3: whatever is claimed, settled and lost, exactly those still held are renewed, with their own tokens', () => {
  const step = fc.oneof(
    fc.record({ claim: fc.integer({ min: 1, max: 5 }) }),
    fc.record({ free: fc.nat() }),
    fc.record({ lose: fc.nat() }),
    fc.constant({ beat: true }),
  )
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const worker = new HeldRows()
      const rows = new RowsInRenewal(new HeldRows(worker.buffer))
      const mine = new Map<string, RowToRenew>()
      const beats: [renewed: RowToRenew[], held: RowToRenew[]][] = []
      let next = 1
      const pick = (n: number): RowToRenew | undefined => [...mine.values()][n % Math.max(1, mine.size)]
      steps.forEach((taken, claimedAt) => {
        if ('claim' in taken) {
          const claimed = Array.from({ length: taken.claim }, () => take(worker, next++, claimedAt))
          for (const row of claimed) mine.set(row.id, row)
          rows.add(columnsOf(claimed))
        } else if ('beat' in taken) {
          beats.push([rows.current(), [...mine.values()]])
        } else {
          const row = pick('free' in taken ? taken.free : taken.lose)
          if (row === undefined) return
          mine.delete(row.id)
          if ('lose' in taken) worker.lose(row)
          worker.free(row)
        }
      })
      beats.push([rows.current(), [...mine.values()]])
      for (const [renewed, held] of beats) expect(renewed).toEqual(held)
    }),
  )
})
