import { describe, expect, it } from 'vitest'
import { fixedGroups } from './groups.ts'
import type { Groups } from './groups.ts'

interface Row {
  readonly group: string
}

const rows = (...groups: readonly string[]): Row[] => groups.map((group) => ({ group }))

function opened(rooms: Readonly<Record<string, number>>): { groups: Groups<Row>; told: () => number } {
  const groups = fixedGroups<Row>({ rooms: new Map(Object.entries(rooms)), groupOf: ({ group }) => group })
  let calls = 0
  groups.onRoom(() => {
    calls += 1
  })
  return { groups, told: () => calls }
}

const shown = (groups: Groups<Row>): Record<string, number> =>
  Object.fromEntries(groups.open(100).groups.map(({ group: key, room }) => [key, room]))

describe('groups that are known from the start', () => {
  it('are all open at first, each with its own room, and nobody says when to come again', () => {
    const { groups } = opened({ a: 2, b: 3 })
    expect(groups.open(100)).toEqual({
      groups: [
        { group: 'a', room: 2 },
        { group: 'b', room: 3 },
      ],
      recheckInMs: Infinity,
    })
  })

  it('hand out a room once: it is taken until a claim says what became of it', () => {
    const { groups } = opened({ a: 2, b: 3 })
    const first = groups.open(100)
    expect(shown(groups)).toEqual({})
    groups.claimed(first.groups, rows('a', 'b'))
    expect(shown(groups)).toEqual({ a: 1, b: 2 })
  })

  it('have their whole room back after a claim that returned nothing, or failed', () => {
    const { groups } = opened({ a: 2, b: 3 })
    groups.claimed(groups.open(100).groups, [])
    expect(shown(groups)).toEqual({ a: 2, b: 3 })
  })

  it('have room again for each row that has ended', () => {
    const { groups } = opened({ a: 2, b: 3 })
    groups.claimed(groups.open(100).groups, rows('a', 'a', 'b'))
    for (const row of rows('a', 'b')) groups.ended(row)
    expect(shown(groups)).toEqual({ a: 1, b: 3 })
  })

  it('tell of room in a group that was full, where more may wait', () => {
    const { groups, told } = opened({ a: 1, b: 3 })
    groups.claimed(groups.open(100).groups, rows('a', 'b'))
    for (const row of rows('a')) groups.ended(row)
    expect(told()).toBe(1)
  })

  it('do not tell of room in a group that a claim has emptied', () => {
    const { groups, told } = opened({ a: 1, b: 3 })
    groups.claimed(groups.open(100).groups, rows('a', 'b'))
    for (const row of rows('b')) groups.ended(row)
    expect(told()).toBe(0)
    // Until one brings it to its limit again.
    groups.claimed(groups.open(100).groups, rows('b', 'b', 'b'))
    for (const row of rows('b')) groups.ended(row)
    expect(told()).toBe(1)
  })

  it('are offered no more than there is room for in all, each of them first in its turn', () => {
    const groups = fixedGroups<string>({
      rooms: new Map([
        ['a', 4],
        ['b', 4],
      ]),
      groupOf: (row) => row,
    })
    const firsts = [1, 2].map(() => {
      const { groups: offered } = groups.open(4)
      groups.claimed(offered, [], true)
      return offered
    })
    expect(firsts.toSorted((a, b) => (String(a[0]?.group) < String(b[0]?.group) ? -1 : 1))).toEqual([
      [{ group: 'a', room: 4 }],
      [{ group: 'b', room: 4 }],
    ])
  })
})
