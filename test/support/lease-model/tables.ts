/** What the property has to know of a table: its SQL, and how it shows a row of the model. */
import type { LeaseTable } from '../../../src/lease/index.ts'
import type { Expected } from './image.ts'
import type { ModelRow, Rules } from './row.ts'

export type Outcome = 'done' | 'retry' | 'dead'

export interface ModelTable {
  readonly declaration: LeaseTable<Outcome>
  readonly target: string
  /** The id of a row as leases name it, as SQL. */
  readonly rowId: string
  /** The claim's order, as SQL. */
  readonly order: string
  readonly create: readonly string[]
  /** Inserts `$1` rows. */
  readonly insert: string
  /** Brings back finished ones: what is set, and of which rows. */
  readonly replay: { readonly set: string; readonly finished: string }
  /** Needed when the table has groups. */
  readonly groups?: readonly string[]
  /** The columns of a row that is in this state. */
  columns(row: ModelRow): Record<string, Expected>
}

/** How long a row waits after its second expiry: until it arrives. */
export const BACKOFF_MS = 3_600_000

export function rulesOf({ declaration: { onExpiry, attempts } }: ModelTable): Rules {
  return { onExpiry, countsExpiries: attempts?.expiries !== undefined }
}

export function availability(row: ModelRow): Expected {
  return { moment: row.waiting ? 'future' : 'past' }
}

export function leaseEnd({ lease }: ModelRow): Expected {
  if (lease === undefined) return null
  return lease.alive ? { atLeast: lease.untilAtLeast } : { moment: 'past' }
}
