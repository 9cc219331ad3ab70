import { describe, expect, it } from 'vitest'
import { fixedLanes } from './fixed-lanes.ts'
import type { Lanes } from './lanes.ts'

interface Row {
  readonly lane: string
}

const rows = (...lanes: readonly string[]): Row[] => lanes.map((lane) => ({ lane }))

function opened(rooms: Readonly<Record<string, number>>): { lanes: Lanes<Row>; told: () => number } {
  const lanes = fixedLanes<Row>({ rooms: new Map(Object.entries(rooms)), laneOf: ({ lane }) => lane })
  let calls = 0
  lanes.onRoom(() => {
    calls += 1
  })
  return { lanes, told: () => calls }
}

const shown = (lanes: Lanes<Row>): Record<string, number> =>
  Object.fromEntries(lanes.open(100).lanes.map(({ key, room }) => [key, room]))

describe('lanes that are known from the start', () => {
  it('are all open at first, each with its own room, and nobody says when to come again', () => {
    const { lanes } = opened({ a: 2, b: 3 })
    expect(lanes.open(100)).toEqual({
      lanes: [
        { key: 'a', room: 2 },
        { key: 'b', room: 3 },
      ],
      againInMs: Infinity,
    })
  })

  it('hand out a room once: it is taken until a look says what became of it', () => {
    const { lanes } = opened({ a: 2, b: 3 })
    const first = lanes.open(100)
    expect(shown(lanes)).toEqual({})
    lanes.looked(first.lanes, rows('a', 'b'))
    expect(shown(lanes)).toEqual({ a: 1, b: 2 })
  })

  it('have their whole room back after a look that brought nothing, or failed', () => {
    const { lanes } = opened({ a: 2, b: 3 })
    lanes.looked(lanes.open(100).lanes, [])
    expect(shown(lanes)).toEqual({ a: 2, b: 3 })
  })

  it('have room again for each row that has ended', () => {
    const { lanes } = opened({ a: 2, b: 3 })
    lanes.looked(lanes.open(100).lanes, rows('a', 'a', 'b'))
    for (const row of rows('a', 'b')) lanes.ended(row)
    expect(shown(lanes)).toEqual({ a: 1, b: 3 })
  })

  it('tell of room in a lane that was full, where more may wait', () => {
    const { lanes, told } = opened({ a: 1, b: 3 })
    lanes.looked(lanes.open(100).lanes, rows('a', 'b'))
    for (const row of rows('a')) lanes.ended(row)
    expect(told()).toBe(1)
  })

  it('do not tell of room in a lane that a look has emptied', () => {
    const { lanes, told } = opened({ a: 1, b: 3 })
    lanes.looked(lanes.open(100).lanes, rows('a', 'b'))
    for (const row of rows('b')) lanes.ended(row)
    expect(told()).toBe(0)
    // Until one brings it to its limit again.
    lanes.looked(lanes.open(100).lanes, rows('b', 'b', 'b'))
    for (const row of rows('b')) lanes.ended(row)
    expect(told()).toBe(1)
  })

  it('are offered no more than there is room for in all, each of them first in its turn', () => {
    const lanes = fixedLanes<string>({
      rooms: new Map([
        ['a', 4],
        ['b', 4],
      ]),
      laneOf: (row) => row,
    })
    const firsts = [1, 2].map(() => {
      const { lanes: offered } = lanes.open(4)
      lanes.looked(offered, [], true)
      return offered
    })
    expect(firsts.toSorted((a, b) => (String(a[0]?.key) < String(b[0]?.key) ? -1 : 1))).toEqual([
      [{ key: 'a', room: 4 }],
      [{ key: 'b', room: 4 }],
    ])
  })
})
