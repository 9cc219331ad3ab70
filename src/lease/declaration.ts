/** How a lease table is declared: the fields, their defaults, and what is refused before anything is sent. */
import { isLeaseholdError, LeaseholdError } from '../errors.ts'
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { describeValue, isRecord, isText, listed, problemsWith, type Rule, type Rules } from '../rules.ts'
import { isSchedule, type RetryPolicy, retryPolicy } from './retry-policy.ts'
import {
  argumentsIn,
  type Assignments,
  type Attempts,
  type LeaseTable,
  oneMore,
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
  /** A `timestamptz` column: when the row was written. From then on its end-to-end latency is measured. */
  readonly createdAt?: string
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
    /** What a reap writes instead of what the outcome of the row does; it has the arguments of `retry`. */
    readonly reap?: Assignments
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
const EXPIRED =
  "'the lease expired: its worker died, lost the database connection, or took longer than maxLeases allows'"

const COLUMN: Rule = { holds: isText, text: 'the name of a column' }
const COLUMN_OR_NONE: Rule = {
  holds: (value) => value === false || isText(value),
  text: 'the name of a column, or false if there is none',
}
const CONDITION: Rule = { holds: isText, text: 'an SQL condition, such as "status = \'pending\'"' }
const ASSIGNMENTS: Rule = { holds: isRecord, text: "column → SQL, such as { sent_at: 'now()' }" }
const EXPRESSION: Rule = { holds: isText, text: "SQL, such as 'now()' or \"'sent'\"" }

const FIELDS: Rules<LeaseTableDeclaration> = {
  table: {
    required: true,
    holds: (value) => isText(value) || (isRecord(value) && isText(value['schema']) && isText(value['name'])),
    text: "'schema.table', 'table' or { schema, name }",
  },
  claimable: { ...CONDITION, required: true },
  id: {
    holds: (value) => isText(value) || isListOf(isText, value),
    text: 'the name of a column, or a list of them',
  },
  lease: { holds: isRecord, text: "{ owner: 'column', until: 'column', token: 'column' }" },
  availableAt: COLUMN,
  createdAt: COLUMN,
  order: {
    holds: (value) => isListOf(isOrder, value),
    text: "a list such as ['priority desc', 'created_at', 'id']",
  },
  onExpiry: {
    holds: (value) => value === 'claimable' || value === 'reap',
    text: "'claimable' or 'reap'",
  },
  leased: CONDITION,
  attempts: { holds: isRecord, text: 'an object such as {} or { max: 5 }, or left out to count nothing' },
  retry: {
    holds: (value) => isRecord(value) || (Array.isArray(value) && value.every(isDelay)),
    text: 'a policy such as { firstMs: 1000, factor: 2 }, or a list of delays in milliseconds from 0',
  },
  outcomes: { holds: isRecord, text: "an object such as { done: { sent_at: 'now()' } }" },
  ordering: { holds: isRecord, text: "{ key: 'column', unfinished: 'condition' }" },
  groups: COLUMN,
  bytes: { holds: isText, text: "SQL for a number of bytes, such as 'pg_column_size(payload)'" },
  writes: { holds: isRecord, text: "{ claim: { column: 'SQL' }, release: { column: 'SQL' } }" },
  columns: { holds: (value) => isListOf(isText, value), text: 'a list of the names of columns' },
  expired: ASSIGNMENTS,
  bucket: COLUMN,
}

const LEASE_FIELDS: Rules<LeaseColumns> = {
  owner: { ...COLUMN, required: true },
  until: { ...COLUMN, required: true },
  token: COLUMN,
}

const ATTEMPTS_FIELDS: Rules<AttemptsDeclaration> = {
  max: {
    holds: (value) => isText(value) || (Number.isInteger(value) && Number(value) >= 1),
    text: 'a whole number from 1, or the name of the column that holds it',
  },
  column: COLUMN_OR_NONE,
  expiries: COLUMN_OR_NONE,
  error: COLUMN_OR_NONE,
}

const NUMBER: Rule = { holds: (value) => typeof value === 'number', text: 'a number' }
const RETRY_FIELDS: Rules<RetryPolicy> = {
  firstMs: { ...NUMBER, text: 'a number of milliseconds from 0' },
  factor: { ...NUMBER, text: 'a number from 1' },
  longestMs: { ...NUMBER, text: 'a number of milliseconds, at least firstMs' },
  jitter: { ...NUMBER, text: 'a number from 0 to 1' },
}

const ORDERING_FIELDS: Rules<Ordering> = {
  key: { ...COLUMN, required: true },
  unfinished: { ...CONDITION, required: true },
}

const WRITES_FIELDS: Rules<NonNullable<LeaseTableDeclaration['writes']>> = {
  claim: ASSIGNMENTS,
  release: ASSIGNMENTS,
  reap: ASSIGNMENTS,
}

const OUTCOME_FIELDS: Rules<OutcomeDeclaration> = {
  set: { ...ASSIGNMENTS, required: true },
  args: {
    holds: (value) =>
      isRecord(value) &&
      Object.entries(value).every(([name, type]) => /^[a-z_]\w*$/i.test(name) && isText(type)),
    text: "argument → SQL type, such as { reason: 'text' }",
  },
  when: CONDITION,
  otherwise: { holds: isText, text: 'the name of an outcome without arguments' },
  rest: { holds: isText, text: 'an SQL interval, such as "interval \'1 minute\'"' },
}

/** What each option must be, by its path. docs/guides/own-table.md has the same table, and a test compares them. */
export const OPTION_TEXTS: ReadonlyMap<string, string> = new Map(
  Object.entries({
    '': FIELDS,
    'lease.': LEASE_FIELDS,
    'attempts.': ATTEMPTS_FIELDS,
    'retry.': RETRY_FIELDS,
    'outcomes.<name>.': OUTCOME_FIELDS,
    'ordering.': ORDERING_FIELDS,
    'writes.': WRITES_FIELDS,
  }).flatMap(([path, rules]) => Object.entries(rules).map(([field, { text }]) => [`${path}${field}`, text])),
)

/** Every problem with the shape of a declaration, in words that name the option and its value. */
function shapeProblems(given: Readonly<Record<string, unknown>>): string[] {
  const { lease, attempts, retry, ordering, writes, outcomes, expired } = given
  return [
    ...problemsWith(given, FIELDS),
    ...nested('lease', lease, LEASE_FIELDS),
    ...nested('attempts', attempts, ATTEMPTS_FIELDS),
    ...nested('retry', retry, RETRY_FIELDS),
    ...nested('ordering', ordering, ORDERING_FIELDS),
    ...nested('writes', writes, WRITES_FIELDS),
    ...Object.entries(isRecord(writes) ? writes : {}).flatMap(([verb, set]) =>
      assignmentProblems(`writes.${verb}`, set),
    ),
    ...Object.entries(isRecord(outcomes) ? outcomes : {}).flatMap(([outcome, value]) =>
      outcomeProblems(`outcomes.${outcome}`, value),
    ),
    ...assignmentProblems('expired', expired),
  ]
}

function nested(field: string, value: unknown, rules: Readonly<Record<string, Rule>>): string[] {
  return isRecord(value) ? problemsWith(value, rules, { path: `${field}.` }) : []
}

function outcomeProblems(path: string, value: unknown): string[] {
  if (!isRecord(value)) return [`${path} is ${describeValue(value)}, but must be ${ASSIGNMENTS.text}`]
  if (!isFullForm(value)) return assignmentProblems(path, value)
  return [
    ...problemsWith(value, OUTCOME_FIELDS, { path: `${path}.` }),
    ...assignmentProblems(`${path}.set`, value.set),
  ]
}

function assignmentProblems(path: string, value: unknown): string[] {
  if (!isRecord(value)) return []
  const rules = Object.fromEntries(
    Object.keys(value).map((column) => [column, { ...EXPRESSION, required: true }]),
  )
  return problemsWith(value, rules, { path: `${path}.` })
}

function isListOf(holds: (value: unknown) => boolean, value: unknown): boolean {
  return Array.isArray(value) && value.length > 0 && value.every(holds)
}

function isOrder(value: unknown): boolean {
  if (!isRecord(value)) return isText(value)
  const { column, direction = 'asc', ...others } = value
  return isText(column) && (direction === 'asc' || direction === 'desc') && Object.keys(others).length === 0
}

function isDelay(value: unknown): boolean {
  return typeof value === 'number' && value >= 0 && Number.isFinite(value)
}

/** Declares a lease table. The table itself is checked when a store is opened on it. */
export function leaseTable<const Name extends string>(
  declaration: LeaseTableDeclaration<Name> &
    ({ readonly availableAt: string } | { readonly attempts: AttemptsDeclaration }),
): LeaseTable<Name | 'retry'>
export function leaseTable<const Name extends string>(
  declaration: LeaseTableDeclaration<Name>,
): LeaseTable<Name>
export function leaseTable(declaration: LeaseTableDeclaration): LeaseTable {
  refuse(declaration, isRecord(declaration) ? shapeProblems(declaration) : [NO_DECLARATION])
  const { availableAt, retry, writes, lease = DEFAULT_LEASE, id = 'id' } = declaration
  const idColumns = typeof id === 'string' ? [id] : id
  const order = declaration.order ?? [...(availableAt === undefined ? [] : [availableAt]), ...idColumns]
  const table: LeaseTable = {
    ...qualifiedName(declaration.table),
    id: idColumns,
    bucket: declaration.bucket,
    lease: { owner: lease.owner, until: lease.until, token: lease.token },
    claimable: declaration.claimable,
    availableAt,
    createdAt: declaration.createdAt,
    order: order.map(orderBy),
    onExpiry: declaration.onExpiry ?? 'claimable',
    leased: declaration.leased,
    attempts: attemptsOf(declaration.attempts),
    retry: isSchedule(retry) ? retry : policyOf(declaration, retry),
    ordering: declaration.ordering,
    groups: declaration.groups,
    bytes: declaration.bytes,
    writes: { claim: writes?.claim ?? {}, release: writes?.release ?? {}, reap: writes?.reap ?? {} },
    outcomes: {},
    expired: { error: EXPIRED, ...declaration.expired },
    columns: declaration.columns,
  }
  const complete = { ...table, outcomes: outcomesOf(declaration.outcomes ?? {}, table) }
  refuse(declaration, contradictions(declaration, complete))
  return complete
}

function policyOf(declaration: LeaseTableDeclaration, retry: Partial<RetryPolicy> | undefined): RetryPolicy {
  try {
    return retryPolicy(retry)
  } catch (error) {
    if (!isLeaseholdError(error, 'SETTING_INVALID')) throw error
    throw invalid(declaration, [error.message.replaceAll(/^The retry policy cannot work: |\.$/g, '')])
  }
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
    ...(column === undefined ? {} : { [column]: oneMore(quote(column)) }),
    ...(error === undefined ? {} : { [error]: '$error' }),
    ...(isRetry && availableAt !== undefined
      ? { [availableAt]: "now() + coalesce($delay_ms, 0) * interval '1 millisecond'" }
      : {}),
  }
}

/** What each column of the table is for. A column has one purpose, and one writer. */
function rolesOf({
  id,
  bucket,
  lease,
  ordering,
  groups,
  availableAt,
  attempts,
}: LeaseTable): [string, string][] {
  const roles: [string, string | number | undefined][] = [
    ...id.map((column): [string, string] => ['id', column]),
    ['bucket', bucket],
    ['lease.owner', lease.owner],
    ['lease.until', lease.until],
    ['lease.token', lease.token],
    ['ordering.key', ordering?.key],
    ['groups', groups],
    ['availableAt', availableAt],
    ['attempts.column', attempts?.column],
    ['attempts.max', attempts?.max],
    ['attempts.expiries', attempts?.expiries],
    ['attempts.error', attempts?.error],
  ]
  return roles.filter((role): role is [string, string] => typeof role[1] === 'string')
}

/** The lease's own columns belong to the kernel, and those that identify and group a row to nobody. */
const RESERVED_ROLES = new Set([
  'id',
  'bucket',
  'lease.owner',
  'lease.until',
  'lease.token',
  'ordering.key',
  'groups',
])

/** Every way in which the fields of a declaration contradict each other. */
function contradictions(declaration: LeaseTableDeclaration, table: LeaseTable): string[] {
  return [
    ...unorderable(table),
    ...undistributable(table),
    ...endlessAttempts(table),
    ...missingColumns(table),
    ...sharedColumns(declaration, table),
    ...reservedWrites(table),
    ...unknownArguments(table),
    ...unknownAlternatives(table),
    ...stranding(table),
    ...unusedDelay(declaration, table),
  ]
}

function sharedColumns(declaration: LeaseTableDeclaration, table: LeaseTable): string[] {
  const roles = rolesOf(table)
  return roles.flatMap(([field, column], i) => {
    const other = roles.slice(0, i).find(([, each]) => each === column)?.[0]
    if (other === undefined) return []
    if (other === field) return [`\`${field}\` names the column ${column} twice: name it once`]
    const byDefault = [other, field].find((each) => !isGiven(declaration, each))
    const origin = byDefault === undefined ? '' : ` (\`${byDefault}\` does by default)`
    return [
      `\`${other}\` and \`${field}\` both name the column ${column}${origin}: name another column in one of them`,
    ]
  })
}

/** Whether the declaration itself names the column of this role; otherwise it has its default name. */
function isGiven(declaration: LeaseTableDeclaration, field: string): boolean {
  const [first = '', second] = field.split('.')
  const value: unknown = Reflect.get(declaration, first)
  return second === undefined || !isRecord(value) ? value !== undefined : value[second] !== undefined
}

function reservedWrites(table: LeaseTable): string[] {
  const reserved = new Map(
    rolesOf(table).flatMap(([field, column]) => (RESERVED_ROLES.has(field) ? [[column, field]] : [])),
  )
  const sets: readonly [string, Assignments][] = [
    ...Object.entries(table.writes).map(([verb, set]): [string, Assignments] => [`writes.${verb}`, set]),
    ...Object.entries(table.outcomes).map(([outcome, { set }]): [string, Assignments] => [
      `outcomes.${outcome}`,
      set,
    ]),
  ]
  return sets.flatMap(([where, set]) =>
    Object.keys(set)
      .filter((column) => reserved.has(column))
      .map((column) =>
        reserved.get(column)?.startsWith('lease.') === true
          ? `${where} writes ${column}, which only the kernel writes (\`${reserved.get(column)}\`): remove it there`
          : `${where} writes ${column}, which nobody may change while the row is leased (\`${reserved.get(column)}\`): remove it there`,
      ),
  )
}

/** What a claim changes about being claimable, a release and a retry have to change back: else the row is stranded. */
function stranding({ claimable, writes, outcomes }: LeaseTable): string[] {
  const decisive = Object.keys(writes.claim).filter((column) => mentions(claimable, column))
  const writers: readonly [string, Assignments | undefined][] = [
    ['writes.release', writes.release],
    ['outcomes.retry', outcomes['retry']?.set],
  ]
  return writers.flatMap(([where, set]) =>
    decisive
      .filter((column) => set !== undefined && !(column in set))
      .map(
        (column) =>
          `\`writes.claim\` changes ${column}, on which \`claimable\` depends, and \`${where}\` does not change it back, so that the row could never be claimed again: assign ${column} in \`${where}\``,
      ),
  )
}

function mentions(condition: Sql, column: string): boolean {
  return new RegExp(`(?<![\\w$])${column.replaceAll(/[^\w]/g, '\\$&')}(?![\\w$])`).test(condition)
}

/** A retry policy that nothing applies would be ignored in silence. */
function unusedDelay(declaration: LeaseTableDeclaration, { outcomes }: LeaseTable): string[] {
  const { retry } = outcomes
  if (declaration.retry === undefined || retry === undefined || 'delay_ms' in retry.args) return []
  return [
    '`retry` says how long a failed row waits, and nothing makes it wait: declare `availableAt`, or use `$delay_ms` in `outcomes.retry` (in `set` or `rest`)',
  ]
}

/** The order of a key is that of one id, and which row is in flight must be visible in the row. */
function unorderable({ ordering, id, leased }: LeaseTable): string[] {
  if (ordering === undefined) return []
  return [
    ...(id.length === 1
      ? []
      : ['`ordering` needs an `id` of one column, by which the rows of a key are ordered']),
    ...(leased === undefined
      ? [
          '`ordering` needs `leased`, the condition that is true of leased rows, such as "status = \'CLAIMED\'"',
        ]
      : []),
  ]
}

/** Without a token column the token is the time of the claim, by a function that Citus refuses in an UPDATE. */
function undistributable({ bucket, lease }: LeaseTable): string[] {
  if (bucket === undefined || lease.token !== undefined) return []
  return [
    '`bucket` needs `lease.token`, the name of a bigint column: without one, a claim calls a volatile function, which a distributed table refuses',
  ]
}

/** What a worker reads from a claimed row besides what the handler wants. */
function missingColumns({ columns, createdAt, attempts, ordering, groups }: LeaseTable): string[] {
  const max = typeof attempts?.max === 'string' ? attempts.max : undefined
  const named = [createdAt, attempts?.column, max, ordering?.key, groups]
  const needed = named.filter((column) => column !== undefined)
  return needed
    .filter((column) => columns?.includes(column) === false)
    .map((column) => {
      const or = column === attempts?.column ? ', or set `attempts.column` to false' : ''
      return `\`columns\` lacks ${column}, which the worker reads from every row: add it${or}`
    })
}

/** A limit needs a counter, and something that happens when it is reached. */
function endlessAttempts({ attempts, outcomes }: LeaseTable): string[] {
  if (attempts?.max === undefined) return []
  return [
    ...(attempts.column === undefined
      ? ['`attempts.max` needs `attempts.column`, which counts the attempts: name it there']
      : []),
    ...('dead' in outcomes
      ? []
      : [
          "`attempts.max` needs an outcome `dead`, which the row has after the last attempt: declare `outcomes.dead`, such as { failed_at: 'now()' }",
        ]),
  ]
}

function unknownArguments(table: LeaseTable): string[] {
  const given: readonly [string, readonly Sql[], object][] = [
    ['writes.claim', Object.values(table.writes.claim), {}],
    ['writes.release', Object.values(table.writes.release), { delay_ms: 'float8' }],
    ['writes.reap', Object.values(table.writes.reap), table.outcomes['retry']?.args ?? {}],
    ...Object.entries(table.outcomes).map(
      ([outcome, { set, args, when = '', rest = '' }]): [string, readonly Sql[], object] => [
        `outcomes.${outcome}`,
        [...Object.values(set), when, rest],
        args,
      ],
    ),
  ]
  return given.flatMap(([where, expressions, args]) => {
    const used = new Set(expressions.flatMap(argumentsIn))
    const known = Object.keys(args).join(', ') || 'none'
    return [...used]
      .filter((argument) => !(argument in args))
      .map((argument) => {
        const remedy = where.startsWith('outcomes.') ? `: give it one in \`${where}.args\`` : ''
        return `${where} uses $${argument}, but nothing gives it a type (the arguments are ${known})${remedy}`
      })
  })
}

function unknownAlternatives({ outcomes }: LeaseTable): string[] {
  return Object.entries(outcomes).flatMap(([outcome, { when, otherwise }]) => {
    if ((when === undefined) !== (otherwise === undefined))
      return [`outcomes.${outcome} needs both \`when\` and \`otherwise\`, or neither`]
    const other = otherwise === undefined ? undefined : outcomes[otherwise]
    return otherwise !== undefined && (other === undefined || Object.keys(other.args).length > 0)
      ? [`outcomes.${outcome}.otherwise names ${otherwise}, which is no outcome without arguments`]
      : []
  })
}

const NO_DECLARATION = "the declaration must be an object such as { table: 'jobs', claimable: 'not done' }"

function refuse(declaration: LeaseTableDeclaration, problems: readonly string[]): void {
  if (problems.length > 0) throw invalid(declaration, problems)
}

function invalid(declaration: LeaseTableDeclaration, problems: readonly string[]): LeaseholdError {
  const declared: unknown = declaration?.table
  const name = typeof declared === 'string' ? declared : JSON.stringify(declared)
  const subject = declared === undefined ? 'A lease table' : `The lease table ${name}`
  return new LeaseholdError('LEASE_TABLE_INVALID', `${subject} is declared wrongly:${listed(problems)}`)
}
