import { describe, expect, it } from 'vitest'
import { HeldRows, MAX_HELD } from './held-rows.ts'

describe('rows in memory that two threads see', () => {
  it('a renewal on the other side counts on this one, and a loss as well', () => {
    const worker = new HeldRows()
    const lifeline = new HeldRows(worker.buffer)
    const row = worker.take(100)
    expect(worker.isTrusted(row, 99)).toBe(true)
    expect(worker.isTrusted(row, 100)).toBe(false)
    lifeline.renewed(row, 200)
    expect(worker.isTrusted(row, 199)).toBe(true)
    expect(lifeline.lose(row)).toBe(true)
    expect(worker.isHeld(row)).toBe(false)
    expect(worker.isTrusted(row, 0)).toBe(false)
    expect(lifeline.lose(row)).toBe(false)
  })

  it('WH-FR-001-AC3: what was freed is neither renewed nor lost, although nobody told the other side', () => {
    const worker = new HeldRows()
    const lifeline = new HeldRows(worker.buffer)
    const row = worker.take(100)
    expect(worker.free(row)).toBe(true)
    expect(lifeline.isHeld(row)).toBe(false)
    expect(lifeline.lose(row)).toBe(false)
  })

  it('a row that has the index of an earlier one is not mistaken for it', () => {
    const worker = new HeldRows()
    const lifeline = new HeldRows(worker.buffer)
    const first = worker.take(100)
    worker.free(first)
    const second = worker.take(50)
    expect(second.index).toBe(first.index)
    expect(worker.free(first)).toBe(false)
    lifeline.renewed(first, 500)
    expect(lifeline.lose(first)).toBe(false)
    expect(worker.isHeld(second)).toBe(true)
    expect(worker.trustedUntil(second)).toBe(50)
  })

  it('RULE-020-012: the other side sees that a row is finished; a new row in its memory is not', () => {
    const worker = new HeldRows()
    const lifeline = new HeldRows(worker.buffer)
    const row = worker.take(100)
    expect(lifeline.isFinished(row)).toBe(false)
    worker.finish(row)
    expect(lifeline.isFinished(row)).toBe(true)
    // It is lost like any other, and freed after that.
    expect(lifeline.lose(row)).toBe(true)
    expect(worker.free(row)).toBe(true)
    expect(lifeline.isFinished(worker.take(100))).toBe(false)
  })

  it('RULE-020-041: indexes are used again, and their number is limited', () => {
    const held = new HeldRows()
    for (let i = 0; i < 3 * MAX_HELD; i += 1) held.free(held.take(0))
    const rows = Array.from({ length: MAX_HELD }, () => held.take(0))
    expect(new Set(rows.map(({ index }) => index)).size).toBe(MAX_HELD)
    expect(() => held.take(0)).toThrow(RangeError)
  })
})
