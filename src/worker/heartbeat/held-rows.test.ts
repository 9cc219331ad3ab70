import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { byClaim, columnsOf, HeldRows, MAX_HELD, RowsInRenewal } from './held-rows.ts'
import type { RowToRenew } from './messages.ts'

describe('held rows in memory that two threads share', () => {
  it('a renewal or a loss in one thread is seen by the other', () => {
    const worker = new HeldRows()
    const heartbeat = new HeldRows(worker.buffer)
    const row = worker.take(100)
    expect(worker.isTrusted(row, 99)).toBe(true)
    expect(worker.isTrusted(row, 100)).toBe(false)
    heartbeat.renewed(row, 200)
    expect(worker.isTrusted(row, 199)).toBe(true)
    expect(heartbeat.lose(row)).toBe(true)
    expect(worker.isHeld(row)).toBe(false)
    expect(worker.isTrusted(row, 0)).toBe(false)
    expect(heartbeat.lose(row)).toBe(false)
  })

  it('WH-FR-001-AC3: a row that was freed is neither renewed nor lost, although no message said so', () => {
    const worker = new HeldRows()
    const heartbeat = new HeldRows(worker.buffer)
    const row = worker.take(100)
    expect(worker.free(row)).toBe(true)
    expect(heartbeat.isHeld(row)).toBe(false)
    expect(heartbeat.lose(row)).toBe(false)
  })

  it('a row that reuses the index of an earlier one is not mistaken for it', () => {
    const worker = new HeldRows()
    const heartbeat = new HeldRows(worker.buffer)
    const first = worker.take(100)
    worker.free(first)
    const second = worker.take(50)
    expect(second.index).toBe(first.index)
    expect(worker.free(first)).toBe(false)
    heartbeat.renewed(first, 500)
    expect(heartbeat.lose(first)).toBe(false)
    expect(worker.isHeld(second)).toBe(true)
    expect(worker.trustedUntil(second)).toBe(50)
  })

  it('RULE-020-012: the other thread sees that a row is finished; the next row with its index is not', () => {
    const worker = new HeldRows()
    const heartbeat = new HeldRows(worker.buffer)
    const row = worker.take(100)
    expect(heartbeat.isFinished(row)).toBe(false)
    worker.finish(row)
    expect(heartbeat.isFinished(row)).toBe(true)
    // It is lost like any other, and freed after that.
    expect(heartbeat.lose(row)).toBe(true)
    expect(worker.free(row)).toBe(true)
    expect(heartbeat.isFinished(worker.take(100))).toBe(false)
  })

  it('RULE-020-041: indexes are reused, and their number is limited', () => {
    const held = new HeldRows()
    for (let i = 0; i < 3 * MAX_HELD; i += 1) held.free(held.take(0))
    const rows = Array.from({ length: MAX_HELD }, () => held.take(0))
    expect(new Set(rows.map(({ index }) => index)).size).toBe(MAX_HELD)
    expect(() => held.take(0)).toThrow(`a worker holds at most ${MAX_HELD} rows`)
  })

  it('D8: no row shares memory with another: each has its own trust, loss and end', () => {
    const held = new HeldRows()
    const rows = Array.from({ length: MAX_HELD }, (_, i) => held.take(i + 1))
    for (const row of rows) {
      if (row.index % 2 === 0) held.finish(row)
      if (row.index % 3 === 0) held.lose(row)
    }
    const wrong = rows.filter(
      (row) =>
        held.trustedUntil(row) !== row.index + 1 ||
        held.isFinished(row) !== (row.index % 2 === 0) ||
        held.isHeld(row) !== (row.index % 3 !== 0),
    )
    expect(wrong).toEqual([])
  })
})

function take(held: HeldRows, id: number, claimedAt = 0): RowToRenew {
  return { ...held.take(1_000), id: String(id), token: BigInt(id), bucket: 0, claimedAt }
}

describe('rows as columns', () => {
  it('the earliest claim counts for all of them, so that none is held too long', () => {
    const held = new HeldRows()
    expect(columnsOf([take(held, 1, 9), take(held, 2, 5)])).toMatchObject({ ids: '1\u00002', claimedAt: 5 })
  })

  it('rows of one claim are together, so that none is renewed for longer than its own claim allows', () => {
    const held = new HeldRows()
    const rows = [take(held, 1, 5), take(held, 2, 9), take(held, 3, 5)]
    expect(byClaim(rows)).toMatchObject([
      { ids: '1\u00003', claimedAt: 5 },
      { ids: '2', claimedAt: 9 },
    ])
  })

  it('rows as columns may be none at all', () => {
    const rows = new RowsInRenewal(new HeldRows())
    rows.add(columnsOf([]))
    expect(rows.current()).toEqual([])
  })
})

it('WH-FR-001-AC3: whatever is claimed, settled and lost, exactly the rows still held are renewed, with their own tokens', () => {
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
