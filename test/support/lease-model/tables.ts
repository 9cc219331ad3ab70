/** What the property has to know of a table: its SQL, and how it shows a row of the model. */
import type { LeaseTable } from '../../../src/lease/index.ts'
import type { Expected } from './image.ts'
import type { ModelRow } from './row.ts'

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
  /** The columns of a row that is in this state. */
  columns(row: ModelRow): Record<string, Expected>
}

export function availability(row: ModelRow): Expected {
  return { moment: row.waiting ? 'future' : 'past' }
}

export function leaseEnd({ lease }: ModelRow): Expected {
  if (lease === undefined) return null
  return lease.alive ? { atLeast: lease.untilAtLeast } : { moment: 'past' }
}
