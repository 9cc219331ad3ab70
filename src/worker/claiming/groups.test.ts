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
  Object.fromEntries(groups.open(100, 100).groups.map(({ group: key, room }) => [key, room]))

describe('groups that are known from the start', () => {
  it('are all open at first, each with its own room, and name no time for the next check', () => {
    const { groups } = opened({ a: 2, b: 3 })
    expect(groups.open(100, 100)).toEqual({
      groups: [
        { group: 'a', room: 2 },
        { group: 'b', room: 3 },
      ],
      recheckInMs: Infinity,
    })
  })

  it('offer room once: it is taken until a claim says what it returned', () => {
    const { groups } = opened({ a: 2, b: 3 })
    const first = groups.open(100, 100)
    expect(shown(groups)).toEqual({})
    groups.claimed(first, rows('a', 'b'))
    expect(shown(groups)).toEqual({ a: 1, b: 2 })
  })

  it('have their whole room back after a claim that returned nothing, or failed', () => {
    const { groups } = opened({ a: 2, b: 3 })
    groups.claimed(groups.open(100, 100), [])
    expect(shown(groups)).toEqual({ a: 2, b: 3 })
  })

  it('have room for another row when one has ended', () => {
    const { groups } = opened({ a: 2, b: 3 })
    groups.claimed(groups.open(100, 100), rows('a', 'a', 'b'))
    for (const row of rows('a', 'b')) groups.ended(row)
    expect(shown(groups)).toEqual({ a: 1, b: 3 })
  })

  it('call the listener when a group has room in which more rows may wait', () => {
    const { groups, told } = opened({ a: 1, b: 3 })
    groups.claimed(groups.open(100, 100), rows('a', 'b'))
    for (const row of rows('a')) groups.ended(row)
    expect(told()).toBe(1)
  })

  it('do not call the listener for a group that a claim has emptied', () => {
    const { groups, told } = opened({ a: 1, b: 3 })
    groups.claimed(groups.open(100, 100), rows('a', 'b'))
    for (const row of rows('b')) groups.ended(row)
    expect(told()).toBe(0)
    // Until a claim returns as many rows as there was room for.
    groups.claimed(groups.open(100, 100), rows('b', 'b', 'b'))
    for (const row of rows('b')) groups.ended(row)
    expect(told()).toBe(1)
  })

  it('are each offered all of the room that there is: the order of the table decides between them', () => {
    const groups = fixedGroups<string>({
      rooms: new Map([
        ['a', 4],
        ['b', 2],
      ]),
      groupOf: (row) => row,
    })
    const { groups: offered } = groups.open(3, 3)
    expect(Object.fromEntries(offered.map(({ group, room }) => [group, room]))).toEqual({ a: 3, b: 2 })
  })

  it('are each first in turn', () => {
    const { groups } = opened({ a: 4, b: 4 })
    const firsts = [1, 2].map(() => {
      const offered = groups.open(4, 4)
      groups.claimed(offered, [], true)
      return offered.groups[0]?.group
    })
    expect(new Set(firsts)).toEqual(new Set(['a', 'b']))
  })
})
