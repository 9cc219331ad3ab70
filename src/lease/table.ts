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
  /** An interval for which nobody claims the row: it stands where the end of the lease stood. */
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

/** One line for each key. docs/decisions/006-ordering.md has the protocol. */
export interface Ordering {
  /** The column that names the line a row stands in; null: in none. */
  readonly key: string
  /** A `boolean` column, the kernel's own: this row was seen waiting behind another of its key. */
  readonly behind: string
  /** What is true of a row as long as those behind it have to wait, its lease included. */
  readonly waitedFor: Sql
  /** What is true of a row in a line while it is leased, in the words of the index. Default: `held`. */
  readonly inFlight?: Sql
}

/**
 * A table beside this one with a note for each claim, so that no index needs to know which rows are leased and a
 * settlement can be a HOT update. It has the columns `id` (a `bigint` that nobody gives twice), `rows` (an array of
 * ids) and the bucket, where there are buckets. docs/decisions/013-notes-of-claims.md has the rules.
 */
export interface Notes {
  readonly table: string | { readonly schema: string; readonly name: string }
  /** A `bigint` column of the row, written by every claim: the `id` of its note. */
  readonly column: string
}

/**
 * A table beside this one that says which rows may be claimable, in bundles of their ids, so that no index needs to know
 * it and a claim can be a HOT update, too. It has the columns `id` (a `bigint` that nobody gives twice), `at` (a
 * `timestamptz`: when the first of them is due), `rows` (an array of ids) and the bucket, where there are buckets; an
 * index leads to them by `at` and `id`. Triggers of the leased table write a bundle whenever a row becomes claimable, in
 * whatever way: what is in no bundle is never claimed. docs/decisions/014-bundles.md has the rules.
 */
export interface Bundles {
  readonly table: string | { readonly schema: string; readonly name: string }
}

export interface LeaseTableDeclaration<Name extends string = string> {
  /** `'schema.table'`, `'table'` (then in `public`), or the two parts where a name contains a dot. */
  readonly table: string | { readonly schema: string; readonly name: string }
  /** The column, or columns, that identify a row: its primary key or another unique key. */
  readonly id: string | readonly string[]
  /** The distribution column. A store serves one bucket, and every statement names it. */
  readonly bucket?: string
  /** Where the lease is kept. Without a token column the token travels inside the owner value. */
  readonly lease: { readonly owner: string; readonly until: string; readonly token?: string }
  /** Which rows may be claimed. Keep it immutable, so that a partial index can carry it. */
  readonly claimable: Sql
  /** A `timestamptz` column: the row is not claimed before this moment. */
  readonly availableAt?: string
  /** Which row comes first: `'created_at'`, `'priority desc'`, or the two parts. */
  readonly order: readonly (string | { readonly column: string; readonly direction?: 'asc' | 'desc' })[]
  /** Whether an expired lease waits for the reaper or can be claimed at once (D5). */
  readonly onExpiry: 'reap' | 'claimable'
  /** What is true of a row as long as it is leased: guards the renewal, and is where the reaper looks. */
  readonly held?: Sql
  /** The counter that grows by one when a lease expires (D4). */
  readonly attempts?: string
  /** True when one more expiry is one too many: such a row is no longer claimable, only reaped. */
  readonly exhausted?: Sql
  /** Rows that share a key are processed one at a time, in the order of their ids. */
  readonly ordering?: Ordering
  /**
   * The column that says in which lane a row is: of an endpoint, of a customer. A claim then says from which lanes it
   * wants how many, so that a lane that is slow, or full, or shut is in nobody's way, however many rows wait in it.
   */
  readonly lanes?: string
  /** Where claims are noted, instead of an index on what is leased. */
  readonly notes?: Notes
  /** Where claims find the rows, instead of along an index on what is claimable. */
  readonly bundles?: Bundles
  /** What the verbs write besides the lease itself. */
  readonly writes?: {
    readonly claim?: Assignments
    /** `$delay_ms` stands for how long the row is to wait before it can be claimed again; 0 unless told. */
    readonly release?: Assignments
    readonly reap?: Assignments
  }
  /** How a row can be settled. Without any it is only ever released; an application may add its own. */
  readonly outcomes?: Readonly<Record<Name, OutcomeDeclaration>>
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
  readonly attempts: string | undefined
  readonly exhausted: Sql | undefined
  readonly ordering: Ordering | undefined
  readonly lanes: string | undefined
  readonly notes: { readonly schema: string; readonly name: string; readonly column: string } | undefined
  readonly bundles: { readonly schema: string; readonly name: string } | undefined
  readonly writes: { readonly claim: Assignments; readonly release: Assignments; readonly reap: Assignments }
  readonly outcomes: Readonly<Record<Name, Outcome>>
  readonly columns: readonly string[] | undefined
}

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
