import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type HeldRow, HeldRows, MAX_HELD, type RowToRenew } from './held-rows.ts'

function take(held: HeldRows, trustedUntil: number): HeldRow {
  return held.take({ trustedUntil, claimedAt: 0, token: 1n, address: '1' })
}

describe('held rows in memory that two threads share', () => {
  it('a renewal or a loss in one thread is seen by the other', () => {
    const worker = new HeldRows()
    const heartbeat = new HeldRows(worker.buffer)
    const row = take(worker, 100)
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
    const row = take(worker, 100)
    expect(worker.free(row)).toBe(true)
    expect(heartbeat.isHeld(row)).toBe(false)
    expect(heartbeat.lose(row)).toBe(false)
  })

  it('a row that reuses the index of an earlier one is not mistaken for it', () => {
    const worker = new HeldRows()
    const heartbeat = new HeldRows(worker.buffer)
    const first = take(worker, 100)
    worker.free(first)
    const second = take(worker, 50)
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
    const row = take(worker, 100)
    expect(heartbeat.isFinished(row)).toBe(false)
    worker.finish(row)
    expect(heartbeat.isFinished(row)).toBe(true)
    // It is lost like any other, and freed after that.
    expect(heartbeat.lose(row)).toBe(true)
    expect(worker.free(row)).toBe(true)
    expect(heartbeat.isFinished(take(worker, 100))).toBe(false)
  })

  it('RULE-020-041: indexes are reused, and their number is limited', () => {
    const held = new HeldRows()
    for (let i = 0; i < 3 * MAX_HELD; i += 1) held.free(take(held, 0))
    const rows = Array.from({ length: MAX_HELD }, () => take(held, 0))
    expect(new Set(rows.map(({ index }) => index)).size).toBe(MAX_HELD)
    expect(() => take(held, 0)).toThrow(`a worker holds at most ${MAX_HELD} rows`)
  })

  it('D8: no row shares memory with another: each has its own trust, loss and end', () => {
    const held = new HeldRows()
    const rows = Array.from({ length: MAX_HELD }, (_, i) => take(held, i + 1))
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

describe('rows to renew', () => {
  const texts = ['7', 'x'.repeat(128), 'x'.repeat(129), 'ü', '']

  it.each(texts)(
    'a row has its own address, also one that does not fit into the shared memory (%s)',
    (address) => {
      const worker = new HeldRows()
      const row = worker.take({ trustedUntil: 9, claimedAt: 0, token: 2n ** 62n, address })
      const told = new Map([[row.index, address]])
      const renewed = new HeldRows(worker.buffer).claimedBefore(1, ({ index }) => told.get(index))
      expect(renewed).toEqual([{ ...row, address, token: 2n ** 62n, claimedAt: 0 }])
      expect(worker.isTooLong(row)).toBe(address.length > 128 || address === 'ü' || address === '')
    },
  )

  it('WH-FR-001-AC3: whatever is claimed, settled and lost, exactly the rows still held are renewed, with their own tokens', () => {
    const step = fc.oneof(
      fc.record({ claim: fc.integer({ min: 1, max: 5 }) }),
      fc.record({ free: fc.nat() }),
      fc.record({ lose: fc.nat() }),
      fc.record({ before: fc.nat(60) }),
    )
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const worker = new HeldRows()
        const heartbeat = new HeldRows(worker.buffer)
        let mine: RowToRenew[] = []
        let next = 1
        const expectHeld = (before: number): void => {
          const renewed = heartbeat.claimedBefore(before, () => undefined)
          const inOrder = renewed.toSorted((a, b) => a.generation - b.generation)
          expect(inOrder).toEqual(mine.filter(({ claimedAt }) => claimedAt < before))
        }
        steps.forEach((taken, claimedAt) => {
          if ('claim' in taken) {
            for (let i = 0; i < taken.claim; i += 1) {
              const row = { address: String(next), token: BigInt(next), claimedAt }
              next += 1
              mine.push({ ...row, ...worker.take({ ...row, trustedUntil: 1_000 }) })
            }
          } else if ('before' in taken) expectHeld(taken.before)
          else {
            const row = mine[('free' in taken ? taken.free : taken.lose) % Math.max(1, mine.length)]
            if (row === undefined) return
            mine = mine.filter((one) => one !== row)
            if ('lose' in taken) heartbeat.lose(row)
            worker.free(row)
          }
        })
        expectHeld(Number.POSITIVE_INFINITY)
      }),
    )
  })
})
