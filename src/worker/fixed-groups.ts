import type { Group } from '../lease/store.ts'
import type { Groups } from './groups.ts'

/** Groups that are known from the start: how many rows of each may be worked on at once. */
export function fixedGroups<Row>(options: {
  readonly rooms: ReadonlyMap<string, number>
  readonly groupOf: (row: Row) => string
}): Groups<Row> {
  const { rooms, groupOf } = options
  const taken = new Map<string, number>()
  /** More may wait there than the last claim returned. */
  const full = new Set(rooms.keys())
  const keys = [...rooms.keys()]
  let first = -1
  /** A group could use more than it was offered, if only others had ended. */
  let contended = false
  let listener: () => void = () => undefined
  const take = (key: string, count: number): void => void taken.set(key, (taken.get(key) ?? 0) + count)

  return {
    open(free) {
      const groups: Group[] = []
      let left = free
      contended = false
      // Each claim begins with another group, so that none is always last when there is room for few.
      first = (first + 1) % Math.max(1, keys.length)
      for (const key of [...keys.slice(first), ...keys.slice(0, first)]) {
        const bound = (rooms.get(key) ?? 0) - (taken.get(key) ?? 0)
        const room = Math.min(left, bound)
        contended ||= bound > left && full.has(key)
        if (room <= 0) continue
        groups.push({ group: key, room })
        take(key, room)
        left -= room
      }
      return { groups, againInMs: Number.POSITIVE_INFINITY }
    },
    claimed(groups, rows, more = false) {
      const found = new Map<string, number>()
      for (const row of rows) found.set(groupOf(row), (found.get(groupOf(row)) ?? 0) + 1)
      for (const { group: key, room } of groups) {
        const count = found.get(key) ?? 0
        take(key, count - room)
        if (count >= room || more) full.add(key)
        else full.delete(key)
      }
    },
    ended(row) {
      take(groupOf(row), -1)
      if (contended || full.has(groupOf(row))) listener()
    },
    onRoom(told) {
      listener = told
    },
  }
}
