import type { Group } from '../lease/store.ts'

/** The groups that a worker may claim from at this moment. */
export interface OpenGroups {
  /** In the order in which they are scanned. */
  readonly groups: readonly Group[]
  /** When a group that has no room now, and may have rows, is worth another claim. Infinity: when `onRoom` says so. */
  readonly againInMs: number
}

/**
 * Whoever knows the groups of a table: how many more rows of each may be taken. It counts what is in flight itself, so
 * that any number of claims may run at once: room that was handed out is taken until `claimed` says what became of it.
 */
export interface Groups<Row> {
  /** Room for at most so many rows in all. */
  open(room: number): OpenGroups
  /** What a claim from these groups returned, and whether there may be more; no rows when it failed. */
  claimed(groups: readonly Group[], rows: readonly Row[], more?: boolean): void
  /** A row is no longer being worked on: there is room in its group. */
  ended(row: Row): void
  /** The listener is called when there is room in a group that may have rows. */
  onRoom(listener: () => void): void
  /** Something may have changed: rows, or the groups themselves. */
  wake?(): void
}

export function roomIn(groups: readonly Group[]): number {
  return groups.reduce((sum, { room }) => sum + room, 0)
}
