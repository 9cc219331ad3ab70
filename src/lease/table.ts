import type { RetryPolicy } from './retry-policy.ts'

/** SQL over the columns of the row, written by the developer who declares the table; never by its users. */
export type Sql = string

/** Column → SQL expression. In an outcome, `$name` stands for the row's argument of that name. */
export type Assignments = Readonly<Record<string, Sql>>

/** One way a row can be settled: what is written, and the SQL types of the arguments it needs. */
export interface OutcomeDeclaration {
  readonly set: Assignments
  readonly args?: Readonly<Record<string, Sql>>
  /** What must still be true of the row, besides that it is ours: a compare-and-set on its status, say. */
  readonly when?: Sql
  /** The outcome of a row that is ours and of which `when` is no longer true. */
  readonly otherwise?: string
  /** An interval for which nobody claims the row: the end of the lease stays set for it, without an owner. */
  readonly rest?: Sql
}

/** One with its defaults. */
export interface Outcome {
  readonly set: Assignments
  readonly args: Readonly<Record<string, Sql>>
  readonly when: Sql | undefined
  readonly otherwise: string | undefined
  readonly rest: Sql | undefined
}

/**
 * Rows that share a key are processed one at a time, in the order of their ids. With `groups`, keys are told apart
 * within a group. The table needs two indexes: `(key, id)` over unfinished rows, which claims walk from key to key,
 * and a unique one on the key over leased rows, which makes "one row of a key in flight" a constraint.
 */
export interface Ordering {
  /** The column with the ordering key; null: the row is in no order. */
  readonly key: string
  /** What is true of a row as long as the rows after it have to wait, while it is leased too. */
  readonly unfinished: Sql
}

/** What is counted when an attempt fails, and when the row is dead. */
export interface Attempts {
  /** Counts failed attempts, expired leases included (D4). */
  readonly column?: string | undefined
  /** Failed attempts after which a row is dead: a number, or the column that holds it. Default: no limit. */
  readonly max?: number | string | undefined
  /** Counts leases that ended because their process died or lost them (D10). */
  readonly expiries?: string | undefined
}

export interface LeaseTableDeclaration<Name extends string = string> {
  /** `'schema.table'`, `'table'` (then in `public`), or the two parts where a name contains a dot. */
  readonly table: string | { readonly schema: string; readonly name: string }
  /** The column, or columns, that identify a row: its primary key or another unique key. */
  readonly id: string | readonly string[]
  /** The distribution column. A store serves one bucket, and every statement names it. */
  readonly bucket?: string
  /** Where the lease is stored. Without a token column the token is carried inside the owner value. */
  readonly lease: { readonly owner: string; readonly until: string; readonly token?: string }
  /** Which rows may be claimed. Use immutable expressions only, so that a partial index can have it as predicate. */
  readonly claimable: Sql
  /** A `timestamptz` column: the row is not claimed before this moment. */
  readonly availableAt?: string
  /** Which row comes first: `'created_at'`, `'priority desc'`, or the two parts. */
  readonly order: readonly (string | { readonly column: string; readonly direction?: 'asc' | 'desc' })[]
  /** Whether an expired lease waits for the reaper or can be claimed at once (D5). */
  readonly onExpiry: 'reap' | 'claimable'
  /** What is true of a row as long as it is leased: guards the renewal, and selects what the reaper reads. */
  readonly held?: Sql
  /** The attempt counter, or the counter with its limit and the counter of expiries. */
  readonly attempts?: string | Attempts
  /** How long a failed row waits. Also applies to a row whose lease expired for the second time and later. */
  readonly retry?: Partial<RetryPolicy> | readonly number[]
  /** Rows that share a key are processed one at a time, in the order of their ids. */
  readonly ordering?: Ordering
  /**
   * The column that names a row's group: rows with a shared concurrency or rate limit, such as the deliveries of one
   * endpoint. A claim then says from which groups it wants how many rows, so that a full or slow group delays no other.
   */
  readonly groups?: string
  /** The size of a row in bytes, for claims with a byte budget, e.g. `pg_column_size(payload)`. */
  readonly bytes?: Sql
  /** What the verbs write besides the lease itself. */
  readonly writes?: {
    readonly claim?: Assignments
    /** `$delay_ms` stands for how long the row is to wait before it can be claimed again; 0 unless given. */
    readonly release?: Assignments
  }
  /**
   * How a row can be settled. Without any it is only ever released. An expired lease gets the outcome `retry` (without
   * one it ends as if released) or, when the attempts are used up, `dead`.
   */
  readonly outcomes?: Readonly<Record<Name, OutcomeDeclaration>>
  /** SQL for the arguments of `retry` and `dead` when the lease expired; others are null. Default: `error`, a text. */
  readonly expired?: Readonly<Record<string, Sql>>
  /** The columns a claim returns; all of them by default. */
  readonly columns?: readonly string[]
}

export interface OrderBy {
  readonly column: string
  readonly direction: 'asc' | 'desc'
}

/** A declaration with its shorthands resolved: what the rest of the kernel reads. */
export interface LeaseTable<Name extends string = string> {
  readonly schema: string
  readonly name: string
  readonly key: readonly string[]
  readonly bucket: string | undefined
  readonly lease: { readonly owner: string; readonly until: string; readonly token: string | undefined }
  readonly claimable: Sql
  readonly availableAt: string | undefined
  readonly order: readonly OrderBy[]
  readonly onExpiry: 'reap' | 'claimable'
  readonly held: Sql | undefined
  readonly attempts: Attempts | undefined
  /** Either a policy, or the delays by attempt. */
  readonly retry: RetryPolicy | readonly number[]
  readonly ordering: Ordering | undefined
  readonly groups: string | undefined
  readonly bytes: Sql | undefined
  readonly writes: { readonly claim: Assignments; readonly release: Assignments }
  readonly outcomes: Readonly<Record<Name, Outcome>>
  readonly expired: Readonly<Record<string, Sql>>
  readonly columns: readonly string[] | undefined
}

/** From this many expiries on a row is a suspect: a process runs at most one suspect at a time (D10). */
export const SUSPECT_EXPIRIES = 2

/** What is true of a leased row. One whose expired lease is claimable stays in its claimable state. */
export function heldOf(table: LeaseTable): Sql | undefined {
  return table.held ?? (table.onExpiry === 'claimable' ? table.claimable : undefined)
}

/** Whether a row can be told to rest: then the end of a lease means something without an owner, too. */
export function canRest(table: LeaseTable): boolean {
  return Object.values<Outcome>(table.outcomes).some(({ rest }) => rest !== undefined)
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
