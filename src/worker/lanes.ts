import type { Lane } from '../lease/store.ts'

/** The lanes that a worker may claim from at this moment. */
export interface OpenLanes {
  /** In the order in which they are to be looked at. */
  readonly lanes: readonly Lane[]
  /** When a lane that is shut now, and may have rows, is worth a look. Infinity: when somebody says so. */
  readonly againInMs: number
}

/**
 * Whoever knows the lanes of a table: how many more rows of each may be taken in. It counts what is in hand itself, so
 * that any number of claims may be on their way: a room that was handed out is taken until `looked` says what became of it.
 */
export interface Lanes<Row> {
  /** Room for at most so many rows in all. */
  open(room: number): OpenLanes
  /** What a claim from these lanes has brought, and whether there may be more; nothing when it failed. */
  looked(lanes: readonly Lane[], rows: readonly Row[], full?: boolean): void
  /** A row is no longer being worked on: there is room in its lane. */
  ended(row: Row): void
  /** Called with what to call when there is room in a lane that may have rows. */
  onRoom(listener: () => void): void
  /** Something may have changed: rows, or the lanes themselves. */
  wake?(): void
}

/** A look that goes through lanes finds no more than there is room for in them. */
export function roomIn(lanes: readonly Lane[]): number {
  return lanes.reduce((sum, { room }) => sum + room, 0)
}
