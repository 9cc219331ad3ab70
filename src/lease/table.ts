import { z } from 'zod'
import { LeaseholdError } from '../errors.ts'

/** SQL over the columns of the row, written by the developer who declares the table; never by its users. */
export type Sql = string

/** Column → SQL expression. In an outcome, `$name` stands for the row's argument of that name. */
export type Assignments = Readonly<Record<string, Sql>>

/** One way a row can be settled: what is written, and the SQL types of the arguments it needs. */
export interface OutcomeDeclaration {
  readonly set: Assignments
  readonly args?: Readonly<Record<string, Sql>>
}

export interface LeaseTableDeclaration<Outcome extends string = string> {
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
  /** What the verbs write besides the lease itself. */
  readonly writes?: {
    readonly claim?: Assignments
    /** `$delay_ms` stands for how long the row is to wait before it can be claimed again; 0 unless told. */
    readonly release?: Assignments
    readonly reap?: Assignments
  }
  readonly outcomes: Readonly<Record<Outcome, OutcomeDeclaration>>
  /** The columns a claim returns; all of them by default. */
  readonly columns?: readonly string[]
}

export interface OrderBy {
  readonly column: string
  readonly direction: 'asc' | 'desc'
}

/** A declaration with its shorthands resolved: what the rest of the kernel reads. */
export interface LeaseTable<Outcome extends string = string> {
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
  readonly writes: { readonly claim: Assignments; readonly release: Assignments; readonly reap: Assignments }
  readonly outcomes: Readonly<Record<Outcome, Required<OutcomeDeclaration>>>
  readonly columns: readonly string[] | undefined
}

const name = z.string().min(1)
const sql = z.string().trim().min(1)
const assignments = z.record(name, sql)

const declarationSchema = z.strictObject({
  table: z.union([name, z.strictObject({ schema: name, name })]),
  id: z.union([name, z.array(name).nonempty()]),
  bucket: name.optional(),
  lease: z.strictObject({ owner: name, until: name, token: name.optional() }),
  claimable: sql,
  availableAt: name.optional(),
  order: z
    .array(
      z.union([name, z.strictObject({ column: name, direction: z.enum(['asc', 'desc']).default('asc') })]),
    )
    .nonempty(),
  onExpiry: z.enum(['reap', 'claimable']),
  held: sql.optional(),
  attempts: name.optional(),
  exhausted: sql.optional(),
  writes: z
    .strictObject({
      claim: assignments.optional(),
      release: assignments.optional(),
      reap: assignments.optional(),
    })
    .optional(),
  outcomes: z.record(
    name,
    z.strictObject({ set: assignments, args: z.record(z.string().regex(/^[a-z_]\w*$/i), sql).optional() }),
  ),
  columns: z.array(name).nonempty().optional(),
})

/** Declares a lease table. The table itself is looked at when a store is opened on it. */
export function leaseTable<const Outcome extends string>(
  declaration: LeaseTableDeclaration<Outcome>,
): LeaseTable<Outcome> {
  const parsed = declarationSchema.safeParse(declaration)
  if (!parsed.success) throw invalid(declaration, z.prettifyError(parsed.error))

  const { lease, writes, bucket } = declaration
  const table: LeaseTable<Outcome> = {
    ...qualifiedName(declaration.table),
    key: typeof declaration.id === 'string' ? [declaration.id] : declaration.id,
    bucket,
    lease: { owner: lease.owner, until: lease.until, token: lease.token },
    claimable: declaration.claimable,
    availableAt: declaration.availableAt,
    order: declaration.order.map(orderBy),
    onExpiry: declaration.onExpiry,
    held: declaration.held,
    attempts: declaration.attempts,
    exhausted: declaration.exhausted,
    writes: { claim: writes?.claim ?? {}, release: writes?.release ?? {}, reap: writes?.reap ?? {} },
    outcomes: withArgs(declaration.outcomes),
    columns: declaration.columns,
  }
  refuseContradictions(declaration, table)
  return table
}

/** What is true of a leased row. One whose expired lease is claimable stays in its claimable state. */
export function heldOf(table: LeaseTable): Sql | undefined {
  return table.held ?? (table.onExpiry === 'claimable' ? table.claimable : undefined)
}

/** The name a person would write. */
export function tableName(table: Pick<LeaseTable, 'schema' | 'name'>): string {
  return `${table.schema}.${table.name}`
}

function qualifiedName(table: LeaseTableDeclaration['table']): { schema: string; name: string } {
  if (typeof table !== 'string') return { schema: table.schema, name: table.name }
  const dot = table.indexOf('.')
  return dot < 0
    ? { schema: 'public', name: table }
    : { schema: table.slice(0, dot), name: table.slice(dot + 1) }
}

function orderBy(order: LeaseTableDeclaration['order'][number]): OrderBy {
  if (typeof order !== 'string') return { column: order.column, direction: order.direction ?? 'asc' }
  const [, column = order, direction = 'asc'] = /^(.+?)(?:\s+(asc|desc))?$/i.exec(order) ?? []
  return { column, direction: direction.toLowerCase() === 'desc' ? 'desc' : 'asc' }
}

function withArgs<Outcome extends string>(
  outcomes: Readonly<Record<Outcome, OutcomeDeclaration>>,
): Readonly<Record<Outcome, Required<OutcomeDeclaration>>> {
  const entries = Object.entries<OutcomeDeclaration>(outcomes)
  return Object.fromEntries(
    entries.map(([outcome, { set, args }]) => [outcome, { set, args: args ?? {} }]),
    // Object.fromEntries forgets which keys it was given.
  ) as Record<Outcome, Required<OutcomeDeclaration>>
}

/** A column has one writer: the lease's own columns belong to the kernel, the key to nobody. */
function refuseContradictions(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const { owner, until, token } = table.lease
  const kernelColumns = [owner, until, ...(token === undefined ? [] : [token])]
  const named = [...table.key, ...(table.bucket === undefined ? [] : [table.bucket]), ...kernelColumns]
  const twice = named.find((column, index) => named.indexOf(column) !== index)
  if (twice !== undefined) throw invalid(declaration, `the column ${twice} has two roles`)

  const written: readonly [string, Assignments][] = [
    ...Object.entries(table.writes).map(([verb, set]): [string, Assignments] => [`writes.${verb}`, set]),
    ...Object.entries(table.outcomes).map(([outcome, { set }]): [string, Assignments] => [
      `outcomes.${outcome}.set`,
      set,
    ]),
  ]
  for (const [where, set] of written) {
    const reserved = Object.keys(set).find((column) => named.includes(column))
    if (reserved !== undefined) {
      throw invalid(declaration, `${where} writes ${reserved}, which only the kernel writes or nobody may`)
    }
  }
  if (table.attempts !== undefined && table.attempts in table.writes.reap) {
    throw invalid(
      declaration,
      `writes.reap sets ${table.attempts}, which the reaper already raises as \`attempts\``,
    )
  }
  refuseUnknownArguments(declaration, table)
}

function refuseUnknownArguments(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const given: readonly [string, Assignments, object][] = [
    ['writes.claim', table.writes.claim, {}],
    ['writes.reap', table.writes.reap, {}],
    ['writes.release', table.writes.release, { delay_ms: 'float8' }],
    ...Object.entries(table.outcomes).map(([outcome, { set, args }]): [string, Assignments, object] => [
      `outcomes.${outcome}`,
      set,
      args,
    ]),
  ]
  for (const [where, set, args] of given) {
    const used = Object.values(set).flatMap((expression) => argumentsIn(expression))
    const unknown = used.find((argument) => !(argument in args))
    if (unknown !== undefined) {
      throw invalid(
        declaration,
        `${where} uses $${unknown}, but nothing gives it a type: the arguments are ${Object.keys(args).join(', ') || 'none'}`,
      )
    }
  }
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

function invalid(declaration: LeaseTableDeclaration, what: string): LeaseholdError {
  const declared: unknown = declaration?.table
  const shown = typeof declared === 'string' ? declared : JSON.stringify(declared)
  return new LeaseholdError('LEASE_TABLE_INVALID', `The lease table ${shown} is declared wrongly: ${what}.`)
}
