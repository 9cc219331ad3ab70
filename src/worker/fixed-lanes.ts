import type { Lane } from '../lease/store.ts'
import type { Lanes } from './lanes.ts'

/** Lanes that are known from the start: how many rows of each may be worked on at once. */
export function fixedLanes<Row>(options: {
  readonly rooms: ReadonlyMap<string, number>
  readonly laneOf: (row: Row) => string
}): Lanes<Row> {
  const { rooms, laneOf } = options
  const taken = new Map<string, number>()
  /** More may wait there than the last look has brought. */
  const full = new Set(rooms.keys())
  const keys = [...rooms.keys()]
  let first = -1
  /** A lane could use more than it was offered, if only others had ended. */
  let crowded = false
  let listener: () => void = () => undefined
  const take = (key: string, count: number): void => void taken.set(key, (taken.get(key) ?? 0) + count)

  return {
    open(free) {
      const lanes: Lane[] = []
      let left = free
      crowded = false
      // Each look begins with another lane, so that none is always last when there is room for few.
      first = (first + 1) % Math.max(1, keys.length)
      for (const key of [...keys.slice(first), ...keys.slice(0, first)]) {
        const bound = (rooms.get(key) ?? 0) - (taken.get(key) ?? 0)
        const room = Math.min(left, bound)
        crowded ||= bound > left && full.has(key)
        if (room <= 0) continue
        lanes.push({ key, room })
        take(key, room)
        left -= room
      }
      return { lanes, againInMs: Number.POSITIVE_INFINITY }
    },
    looked(lanes, rows, more = false) {
      const found = new Map<string, number>()
      for (const row of rows) found.set(laneOf(row), (found.get(laneOf(row)) ?? 0) + 1)
      for (const { key, room } of lanes) {
        const count = found.get(key) ?? 0
        take(key, count - room)
        if (count >= room || more) full.add(key)
        else full.delete(key)
      }
    },
    ended(row) {
      take(laneOf(row), -1)
      if (crowded || full.has(laneOf(row))) listener()
    },
    onRoom(told) {
      listener = told
    },
  }
}
