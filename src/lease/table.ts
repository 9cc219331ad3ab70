/** A lease table as the kernel reads it: a declaration (`declaration.ts`) with its defaults filled in. */
import type { RetryPolicy } from './retry-policy.ts'

/** SQL over the columns of the row, written by the developer who declares the table; never by its users. */
export type Sql = string

/** Column → SQL expression. In an outcome, `$name` stands for the row's argument of that name. */
export type Assignments = Readonly<Record<string, Sql>>

/** One way a row can be settled. */
export interface OutcomeSql {
  /** What is written besides the end of the lease. */
  readonly set: Assignments
  /** The SQL types of its arguments. */
  readonly args: Readonly<Record<string, Sql>>
  readonly when: Sql | undefined
  readonly otherwise: string | undefined
  readonly rest: Sql | undefined
}

/**
 * Rows that share a key are processed one at a time, in the order of their ids. With `groups`, keys are told apart
 * within a group. The table needs these indexes: `(availableAt, id)` over claimable rows that have a key, by which claims
 * find keys that have something to do (not with groups); `(key, id)` over unfinished rows, by which they find the head of a
 * key; and a unique one on the key over leased rows, which makes "one row of a key in flight" a constraint.
 */
export interface Ordering {
  /** The column with the ordering key; null: the row is in no order. */
  readonly key: string
  /** What is true of a row as long as the rows after it have to wait. It need not be true while the row is leased. */
  readonly unfinished: Sql
}

/** What is written when an attempt fails, and when the row is dead. */
export interface Attempts {
  /** Counts failed attempts, expired leases included (D4). */
  readonly column: string | undefined
  /** Failed attempts after which a row is dead: a number, or the column that holds it. */
  readonly max: number | string | undefined
  /** Counts leases that ended because their process died or lost them (D10). */
  readonly expiries: string | undefined
  /** Gets the text of the last error. */
  readonly error: string | undefined
}

export interface OrderBy {
  readonly column: string
  readonly direction: 'asc' | 'desc'
}

/** `LeaseTableDeclaration` says what each field means. */
export interface LeaseTable<Name extends string = string> {
  readonly schema: string
  readonly name: string
  readonly id: readonly string[]
  readonly bucket: string | undefined
  readonly lease: { readonly owner: string; readonly until: string; readonly token: string | undefined }
  readonly claimable: Sql
  readonly availableAt: string | undefined
  readonly createdAt: string | undefined
  readonly order: readonly OrderBy[]
  readonly onExpiry: 'reap' | 'claimable'
  readonly leased: Sql | undefined
  readonly attempts: Attempts | undefined
  /** Either a policy, or the delays by attempt. */
  readonly retry: RetryPolicy | readonly number[]
  readonly ordering: Ordering | undefined
  readonly groups: string | undefined
  readonly bytes: Sql | undefined
  readonly writes: { readonly claim: Assignments; readonly release: Assignments; readonly reap: Assignments }
  /** `retry` and `dead` with what the kernel itself writes in them. */
  readonly outcomes: Readonly<Record<Name, OutcomeSql>>
  readonly expired: Readonly<Record<string, Sql>>
  readonly columns: readonly string[] | undefined
}

/** One more than a counter that may be null. A statement leaves the `coalesce` out where the column is NOT NULL. */
export function oneMore(column: Sql): Sql {
  return `coalesce(${column}, 0) + 1`
}

/** From this many expiries on a row is a suspect: a process runs at most one suspect at a time (D10). */
export const SUSPECT_EXPIRIES = 2

/** What is true of a leased row, as far as the table says so. One whose expired lease is claimable stays claimable. */
export function leasedCondition(table: LeaseTable): Sql | undefined {
  return table.leased ?? (table.onExpiry === 'claimable' ? table.claimable : undefined)
}

/** Whether a row can be told to rest: then the end of a lease means something without an owner, too. */
export function canRest(table: LeaseTable): boolean {
  return Object.values<OutcomeSql>(table.outcomes).some(({ rest }) => rest !== undefined)
}

/** The name a person would write. */
export function tableName(table: Pick<LeaseTable, 'schema' | 'name'>): string {
  return `${table.schema}.${table.name}`
}

const ARGUMENT = /\$([a-z_]\w*)/gi

/** The names of the `$name` arguments in an expression. */
export function argumentsIn(expression: Sql): string[] {
  return [...expression.matchAll(ARGUMENT)].map(([, argument = '']) => argument)
}

/** Replaces each `$name` by what stands for it in the statement. */
export function replaceArguments(expression: Sql, replacement: (argument: string) => Sql): Sql {
  return expression.replaceAll(ARGUMENT, (_, argument: string) => replacement(argument))
}
