/** How a lease table is declared: the fields, their defaults, and what is refused before anything is sent. */
import { z } from 'zod'
import { LeaseholdError } from '../errors.ts'
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { isSchedule, type RetryPolicy, retryPolicy } from './retry-policy.ts'
import {
  argumentsIn,
  type Assignments,
  type Attempts,
  type LeaseTable,
  type OrderBy,
  type Ordering,
  type OutcomeSql,
  type Sql,
} from './table.ts'

/** Where the lease is stored. Without a token column the token is carried inside the owner value. */
export interface LeaseColumns {
  readonly owner: string
  readonly until: string
  readonly token?: string
}

/** What is written when an attempt fails. Each column has a default name; `false` means that the table has none. */
export interface AttemptsDeclaration {
  /** Counts failed attempts, expired leases included (D4). Default `attempts`. */
  readonly column?: string | false
  /** Failed attempts after which a row is dead: a number, or the column that holds it. Default: no limit. */
  readonly max?: number | string
  /** Counts leases that ended because their process died or lost them (D10). Default `expiries`. */
  readonly expiries?: string | false
  /** Gets the text of the last error. Default `last_error`. */
  readonly error?: string | false
}

/** The full form of an outcome. */
export interface OutcomeDeclaration {
  /** What is written besides the end of the lease. */
  readonly set: Assignments
  /** The SQL types of its arguments, which `$name` stands for. `$error` and `$delay_ms` have theirs by themselves. */
  readonly args?: Readonly<Record<string, Sql>>
  /** What must still be true of the row, besides that it is ours: a compare-and-set on its status, say. */
  readonly when?: Sql
  /** The outcome of a row that is ours and of which `when` is no longer true. */
  readonly otherwise?: string
  /** An interval for which nobody claims the row: the end of the lease stays set for it, without an owner. */
  readonly rest?: Sql
}

export interface LeaseTableDeclaration<Name extends string = string> {
  /** `'schema.table'`, `'table'` (then in `public`), or the two parts where a name contains a dot. */
  readonly table: string | { readonly schema: string; readonly name: string }
  /** The column, or columns, that identify a row: its primary key or another unique key. Default `id`. */
  readonly id?: string | readonly string[]
  /** The distribution column. A store serves one bucket, and every statement names it. */
  readonly bucket?: string
  /** Default `lease_owner`, `lease_until` and `lease_token`. */
  readonly lease?: LeaseColumns
  /** Which rows may be claimed. Use immutable expressions only, so that a partial index can have it as predicate. */
  readonly claimable: Sql
  /** A `timestamptz` column: the row is not claimed before this moment. */
  readonly availableAt?: string
  /** Which row comes first: `'created_at'`, `'priority desc'`, or the two parts. Default: `availableAt`, then `id`. */
  readonly order?: readonly (string | { readonly column: string; readonly direction?: 'asc' | 'desc' })[]
  /** Whether an expired lease waits for the reaper or can be claimed at once (D5). Default `claimable`. */
  readonly onExpiry?: 'reap' | 'claimable'
  /** What is true of a row as long as it is leased: guards the renewal, and selects what the reaper reads. */
  readonly leased?: Sql
  /** `{}` for all the defaults. Without this field nothing is counted. */
  readonly attempts?: AttemptsDeclaration
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
    /** `$delay_ms` stands for how long the row is to wait before it can be claimed; 0 unless given. */
    readonly release?: Assignments
  }
  /**
   * How a row can be settled: what is written besides the end of the lease, as column → SQL, or in the full form.
   *
   * To `retry` and `dead` the kernel adds one more attempt and the text of the error (`attempts`), and to `retry` also the
   * delay (`availableAt`) and no expiries. A column that the outcome assigns itself is left to it. Where `retry` is not
   * declared, and the table has `attempts` or `availableAt`, it writes what `writes.release` does, and these.
   *
   * An expired lease gets the outcome `retry` (without one it ends as if released) or, when the attempts are used up,
   * `dead`. Without any outcome a row is only ever released.
   */
  readonly outcomes?: Readonly<Record<Name, Assignments | OutcomeDeclaration>>
  /** SQL for the arguments of `retry` and `dead` when the lease expired; others are null. Default: `error`, a text. */
  readonly expired?: Readonly<Record<string, Sql>>
  /** The columns a claim returns; all of them by default. */
  readonly columns?: readonly string[]
}

const DEFAULT_LEASE: LeaseColumns = { owner: 'lease_owner', until: 'lease_until', token: 'lease_token' }

/** What is written as the error of a row whose lease expired, unless the table says otherwise. */
const EXPIRED = "'the lease expired: its worker died, or lost the database'"

const name = z.string().min(1)
const sql = z.string().trim().min(1)
const assignments = z.record(name, sql)
const columnOrNone = z.union([name, z.literal(false)], { error: 'expected the name of a column, or false' })

const declarationSchema = z.strictObject({
  table: z.union([name, z.strictObject({ schema: name, name })]),
  id: z.union([name, z.array(name).nonempty()]).optional(),
  bucket: name.optional(),
  lease: z.strictObject({ owner: name, until: name, token: name.optional() }).optional(),
  claimable: sql,
  availableAt: name.optional(),
  order: z
    .array(z.union([name, z.strictObject({ column: name, direction: z.enum(['asc', 'desc']).optional() })]))
    .nonempty()
    .optional(),
  onExpiry: z.enum(['reap', 'claimable']).optional(),
  leased: sql.optional(),
  attempts: z
    .strictObject({
      column: columnOrNone.optional(),
      max: z.union([z.number().int().min(1), name]).optional(),
      expiries: columnOrNone.optional(),
      error: columnOrNone.optional(),
    })
    .optional(),
  retry: z
    .union([
      z.array(z.number().min(0)),
      z
        .strictObject({ firstMs: z.number(), factor: z.number(), longestMs: z.number(), jitter: z.number() })
        .partial(),
    ])
    .optional(),
  ordering: z.strictObject({ key: name, unfinished: sql }).optional(),
  groups: name.optional(),
  bytes: sql.optional(),
  writes: z.strictObject({ claim: assignments.optional(), release: assignments.optional() }).optional(),
  outcomes: z
    .record(
      name,
      z.preprocess(
        (given) => (isFullForm(given) ? given : { set: given }),
        z.strictObject({
          set: assignments,
          args: z.record(z.string().regex(/^[a-z_]\w*$/i), sql).optional(),
          when: sql.optional(),
          otherwise: name.optional(),
          rest: sql.optional(),
        }),
      ),
    )
    .optional(),
  expired: assignments.optional(),
  columns: z.array(name).nonempty().optional(),
})

/** Declares a lease table. The table itself is checked when a store is opened on it. */
export function leaseTable<const Name extends string>(
  declaration: LeaseTableDeclaration<Name> &
    ({ readonly availableAt: string } | { readonly attempts: AttemptsDeclaration }),
): LeaseTable<Name | 'retry'>
export function leaseTable<const Name extends string>(
  declaration: LeaseTableDeclaration<Name>,
): LeaseTable<Name>
export function leaseTable(declaration: LeaseTableDeclaration): LeaseTable {
  const parsed = declarationSchema.safeParse(declaration)
  if (!parsed.success) throw invalid(declaration, z.prettifyError(parsed.error))

  const { availableAt, retry, lease = DEFAULT_LEASE, id = 'id' } = declaration
  const idColumns = typeof id === 'string' ? [id] : id
  const order = declaration.order ?? [...(availableAt === undefined ? [] : [availableAt]), ...idColumns]
  const table: LeaseTable = {
    ...qualifiedName(declaration.table),
    id: idColumns,
    bucket: declaration.bucket,
    lease: { owner: lease.owner, until: lease.until, token: lease.token },
    claimable: declaration.claimable,
    availableAt,
    order: order.map(orderBy),
    onExpiry: declaration.onExpiry ?? 'claimable',
    leased: declaration.leased,
    attempts: attemptsOf(declaration.attempts),
    retry: isSchedule(retry) ? retry : retryPolicy(retry),
    ordering: declaration.ordering,
    groups: declaration.groups,
    bytes: declaration.bytes,
    writes: { claim: declaration.writes?.claim ?? {}, release: declaration.writes?.release ?? {} },
    outcomes: {},
    expired: { error: EXPIRED, ...declaration.expired },
    columns: declaration.columns,
  }
  const complete = { ...table, outcomes: outcomesOf(declaration.outcomes ?? {}, table) }
  refuseContradictions(declaration, complete)
  return complete
}

/** The two parts of a table's name. */
export function qualifiedName(table: LeaseTableDeclaration['table']): { schema: string; name: string } {
  if (typeof table !== 'string') return { schema: table.schema, name: table.name }
  const dot = table.indexOf('.')
  return dot < 0
    ? { schema: 'public', name: table }
    : { schema: table.slice(0, dot), name: table.slice(dot + 1) }
}

function orderBy(order: NonNullable<LeaseTableDeclaration['order']>[number]): OrderBy {
  if (typeof order !== 'string') return { column: order.column, direction: order.direction ?? 'asc' }
  const [, column = order, direction = 'asc'] = /^(.+?)(?:\s+(asc|desc))?$/i.exec(order) ?? []
  return { column, direction: direction.toLowerCase() === 'desc' ? 'desc' : 'asc' }
}

function attemptsOf(declared: AttemptsDeclaration | undefined): Attempts | undefined {
  if (declared === undefined) return undefined
  const { column = 'attempts', max, expiries = 'expiries', error = 'last_error' } = declared
  return { column: column || undefined, max, expiries: expiries || undefined, error: error || undefined }
}

/** In plain assignments every value is a string; the full form has an object in `set`. */
function isFullForm(outcome: unknown): outcome is OutcomeDeclaration {
  return (
    typeof outcome === 'object' && outcome !== null && 'set' in outcome && typeof outcome.set === 'object'
  )
}

function outcomesOf(
  declared: NonNullable<LeaseTableDeclaration['outcomes']>,
  table: LeaseTable,
): Record<string, OutcomeSql> {
  const outcomes: Record<string, OutcomeSql> = {}
  for (const [outcome, given] of Object.entries(declared))
    outcomes[outcome] = outcomeOf(outcome, isFullForm(given) ? given : { set: given }, table)
  if (!('retry' in declared) && (table.attempts !== undefined || table.availableAt !== undefined))
    outcomes['retry'] = outcomeOf(
      'retry',
      { set: { ...table.writes.release, ...written('retry', table) } },
      table,
    )
  return outcomes
}

/** The arguments that a worker knows. */
const KNOWN_ARGS: Readonly<Record<string, Readonly<Record<string, Sql>>>> = {
  retry: { error: 'text', delay_ms: 'float8' },
  dead: { error: 'text' },
}

function outcomeOf(outcome: string, declared: OutcomeDeclaration, table: LeaseTable): OutcomeSql {
  const { when, otherwise, rest } = declared
  const set = { ...written(outcome, table), ...declared.set }
  const used = new Set([...Object.values(set), when ?? '', rest ?? ''].flatMap(argumentsIn))
  const known = Object.entries(KNOWN_ARGS[outcome] ?? {}).filter(([argument]) => used.has(argument))
  return { set, args: { ...Object.fromEntries(known), ...declared.args }, when, otherwise, rest }
}

/**
 * What the kernel itself writes of a failed attempt. A handler that comes back with a failure proves that the row does not
 * kill its process, so `retry` sets the expiries to 0; the reaper counts them instead (D10).
 */
function written(outcome: string, { attempts, availableAt }: LeaseTable): Assignments {
  if (outcome !== 'retry' && outcome !== 'dead') return {}
  const { column, expiries, error } = attempts ?? {}
  const isRetry = outcome === 'retry'
  return {
    ...(isRetry && expiries !== undefined ? { [expiries]: '0' } : {}),
    ...(column === undefined ? {} : { [column]: `coalesce(${quote(column)}, 0) + 1` }),
    ...(error === undefined ? {} : { [error]: '$error' }),
    ...(isRetry && availableAt !== undefined
      ? { [availableAt]: "now() + coalesce($delay_ms, 0) * interval '1 millisecond'" }
      : {}),
  }
}

/** A column has one writer: the lease's own columns belong to the kernel, the id to nobody. */
function refuseContradictions(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const { owner, until, token } = table.lease
  const optional = [table.bucket, token, table.ordering?.key, table.groups]
  const reserved = [...table.id, owner, until, ...optional.filter((column) => column !== undefined)]
  if (table.ordering !== undefined) refuseUnorderable(declaration, table)
  if (table.attempts?.max !== undefined) refuseEndlessAttempts(declaration, table)
  refuseMissingColumns(declaration, table)
  const twice = reserved.find((column, index) => reserved.indexOf(column) !== index)
  if (twice !== undefined) throw invalid(declaration, `the column ${twice} has two roles`)

  const sets: readonly [string, Assignments][] = [
    ...Object.entries(table.writes).map(([verb, set]): [string, Assignments] => [`writes.${verb}`, set]),
    ...Object.entries(table.outcomes).map(([outcome, { set }]): [string, Assignments] => [
      `outcomes.${outcome}`,
      set,
    ]),
  ]
  for (const [where, set] of sets) {
    const column = Object.keys(set).find((each) => reserved.includes(each))
    if (column !== undefined)
      throw invalid(declaration, `${where} writes ${column}, which only the kernel writes or nobody may`)
  }
  refuseUnknownArguments(declaration, table)
  refuseUnknownAlternatives(declaration, table)
  refuseStranding(declaration, table)
  refuseUnusedDelay(declaration, table)
}

/** What a claim changes about being claimable, a release and a retry have to change back: else the row is stranded. */
function refuseStranding(
  declaration: LeaseTableDeclaration,
  { claimable, writes, outcomes }: LeaseTable,
): void {
  const decisive = Object.keys(writes.claim).filter((column) => mentions(claimable, column))
  const writers: readonly [string, Assignments | undefined][] = [
    ['writes.release', writes.release],
    ['outcomes.retry', outcomes['retry']?.set],
  ]
  for (const [where, set] of writers) {
    const column = decisive.find((each) => set !== undefined && !(each in set))
    if (column !== undefined)
      throw invalid(
        declaration,
        `\`writes.claim\` changes ${column}, on which \`claimable\` depends, and \`${where}\` does not change it back: the row could never be claimed again. Assign ${column} in \`writes.release\`${where === 'writes.release' ? '' : ' and in `outcomes.retry`'}`,
      )
  }
}

function mentions(condition: Sql, column: string): boolean {
  return new RegExp(`(?<![\\w$])${column.replaceAll(/[^\w]/g, '\\$&')}(?![\\w$])`).test(condition)
}

/** A retry policy that nothing applies would be ignored in silence. */
function refuseUnusedDelay(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const { retry } = table.outcomes
  if (declaration.retry === undefined || retry === undefined || 'delay_ms' in retry.args) return
  throw invalid(
    declaration,
    '`retry` says how long a failed row waits, and nothing makes it wait: declare `availableAt`, or use `$delay_ms` in `outcomes.retry` (in `set` or `rest`)',
  )
}

/** The order of a key is that of one id, and which row is in flight must be visible in the row. */
function refuseUnorderable(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  if (table.id.length !== 1) throw invalid(declaration, '`ordering` needs an `id` of one column')
  if (table.leased === undefined)
    throw invalid(declaration, '`ordering` needs `leased`, the condition that is true of leased rows')
}

/** What a worker reads from a claimed row besides what the handler wants. */
function refuseMissingColumns(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const { columns, attempts, ordering, groups } = table
  const max = typeof attempts?.max === 'string' ? attempts.max : undefined
  const needed = [attempts?.column, max, ordering?.key, groups]
  const missing = needed.find((column) => column !== undefined && columns?.includes(column) === false)
  if (missing === undefined) return
  const remedy = missing === attempts?.column ? ': add it, or set `attempts.column` to false' : ''
  throw invalid(declaration, `\`columns\` lacks ${missing}, which the worker reads from every row${remedy}`)
}

/** A limit needs a counter, and something that happens when it is reached. */
function refuseEndlessAttempts(declaration: LeaseTableDeclaration, { attempts, outcomes }: LeaseTable): void {
  if (attempts?.column === undefined) throw invalid(declaration, '`attempts.max` needs `attempts.column`')
  if (!('dead' in outcomes)) throw invalid(declaration, '`attempts.max` needs an outcome `dead`')
}

function refuseUnknownArguments(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const given: readonly [string, readonly Sql[], object][] = [
    ['writes.claim', Object.values(table.writes.claim), {}],
    ['writes.release', Object.values(table.writes.release), { delay_ms: 'float8' }],
    ...Object.entries(table.outcomes).map(
      ([outcome, { set, args, when = '', rest = '' }]): [string, readonly Sql[], object] => [
        `outcomes.${outcome}`,
        [...Object.values(set), when, rest],
        args,
      ],
    ),
  ]
  for (const [where, expressions, args] of given) {
    const unknown = expressions.flatMap(argumentsIn).find((argument) => !(argument in args))
    if (unknown === undefined) continue
    const known = Object.keys(args).join(', ') || 'none'
    throw invalid(
      declaration,
      `${where} uses $${unknown}, but nothing gives it a type: the arguments are ${known}`,
    )
  }
}

function refuseUnknownAlternatives(declaration: LeaseTableDeclaration, { outcomes }: LeaseTable): void {
  for (const [outcome, { when, otherwise }] of Object.entries(outcomes)) {
    if ((when === undefined) !== (otherwise === undefined))
      throw invalid(declaration, `outcomes.${outcome} needs both \`when\` and \`otherwise\`, or neither`)
    const other = otherwise === undefined ? undefined : outcomes[otherwise]
    if (otherwise !== undefined && (other === undefined || Object.keys(other.args).length > 0))
      throw invalid(
        declaration,
        `outcomes.${outcome}.otherwise names ${otherwise}, which is no outcome without arguments`,
      )
  }
}

function invalid(declaration: LeaseTableDeclaration, what: string): LeaseholdError {
  const declared: unknown = declaration?.table
  const name = typeof declared === 'string' ? declared : JSON.stringify(declared)
  return new LeaseholdError('LEASE_TABLE_INVALID', `The lease table ${name} is declared wrongly: ${what}.`)
}
