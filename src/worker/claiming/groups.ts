import type { Group } from '../../lease/store.ts'
import { refuseUnknownOptions } from '../../nearest.ts'

/** The groups that a worker may claim from at this moment. */
export interface OpenGroups {
  /** In the order in which they are scanned. */
  readonly groups: readonly Group[]
  /** How many rows of all these groups together may be claimed. Default: the sum of their rooms. */
  readonly limit?: number
  /**
   * When a group that has no room now, and may have rows, is worth another claim. Infinity: when `onRoom` says so. If no
   * group has room, all are asked again with the next poll.
   */
  readonly recheckInMs: number
}

/**
 * Knows the groups of a table: how many more rows of each may be taken. It counts what is in flight itself, so that any
 * number of claims may run at once: room that was offered is taken until `claimed` says what the claim returned.
 */
export interface Groups<Row> {
  /** Those that are known from the start, for the registry: rows of other groups are not claimed. */
  readonly names?: readonly string[]
  /** Room for at most this many rows in all, of a worker with this many slots. */
  open(room: number, slots: number): OpenGroups
  /** What a claim from these groups returned, and whether there may be more; no rows when it failed. */
  claimed(offered: OpenGroups, rows: readonly Row[], more?: boolean): void
  /** A row is no longer being processed: there is room in its group. */
  ended(row: Row): void
  /** The listener is called when there is room in a group that may have rows. */
  onRoom(listener: () => void): void
  /** Something may have changed: rows, or the groups themselves. */
  wake?(): void
}

/** How many rows a claim from these groups may return. */
export function roomIn({ groups, limit = Number.POSITIVE_INFINITY }: OpenGroups): number {
  return Math.min(
    limit,
    groups.reduce((sum, { room }) => sum + room, 0),
  )
}

/**
 * Groups that are known from the start: how many rows of each may be processed at once. Where the worker has less room than
 * the groups, the order of the table decides which rows come first, not the group.
 */
export function fixedGroups<Row>(options: {
  readonly rooms: ReadonlyMap<string, number>
  readonly groupOf: (row: Row) => string
}): Groups<Row> {
  refuseUnknownOptions('fixedGroups', options, ['rooms', 'groupOf'])
  const { rooms, groupOf } = options
  const taken = new Map<string, number>()
  /** Groups in which more rows may wait than the last claim returned. */
  const mayHaveMore = new Set(rooms.keys())
  const keys = [...rooms.keys()]
  let first = -1
  /** A group was offered less than it has room for, because the worker had no more. */
  let contended = false
  let listener: () => void = () => undefined
  const take = (key: string, count: number): void => void taken.set(key, (taken.get(key) ?? 0) + count)

  return {
    names: keys,
    open(free) {
      const groups: Group[] = []
      contended = false
      // Each claim begins with another group, because the suspect of the first one is tried.
      first = (first + 1) % Math.max(1, keys.length)
      for (const key of [...keys.slice(first), ...keys.slice(0, first)]) {
        const bound = (rooms.get(key) ?? 0) - (taken.get(key) ?? 0)
        // All groups are offered the same room; the claim takes no more than it in all.
        const room = Math.min(free, bound)
        contended ||= bound > free && mayHaveMore.has(key)
        if (room <= 0) continue
        groups.push({ group: key, room })
        take(key, room)
      }
      return { groups, recheckInMs: Number.POSITIVE_INFINITY }
    },
    claimed({ groups }, rows, more = false) {
      const found = new Map<string, number>()
      for (const row of rows) found.set(groupOf(row), (found.get(groupOf(row)) ?? 0) + 1)
      for (const { group: key, room } of groups) {
        const count = found.get(key) ?? 0
        take(key, count - room)
        if (count >= room || more) mayHaveMore.add(key)
        else mayHaveMore.delete(key)
      }
    },
    ended(row) {
      take(groupOf(row), -1)
      if (contended || mayHaveMore.has(groupOf(row))) listener()
    },
    onRoom(notify) {
      listener = notify
    },
  }
}
