import { z } from 'zod'
import { LeaseholdError } from '../errors.ts'
import { retryPolicy } from './retry-policy.ts'
import {
  argumentsIn,
  type Assignments,
  type Attempts,
  type LeaseTable,
  type LeaseTableDeclaration,
  type OrderBy,
  type Outcome,
  type OutcomeDeclaration,
} from './table.ts'

const name = z.string().min(1)
const sql = z.string().trim().min(1)
const assignments = z.record(name, sql)
const RETRY_FIELDS = { firstMs: z.number(), factor: z.number(), longestMs: z.number(), jitter: z.number() }

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
  attempts: z
    .union([
      name,
      z.strictObject({
        column: name.optional(),
        max: z.union([z.number().int().min(1), name]).optional(),
        expiries: name.optional(),
      }),
    ])
    .optional(),
  retry: z.union([z.array(z.number().min(0)), z.strictObject(RETRY_FIELDS).partial()]).optional(),
  ordering: z.strictObject({ key: name, unfinished: sql }).optional(),
  groups: name.optional(),
  bytes: sql.optional(),
  writes: z.strictObject({ claim: assignments.optional(), release: assignments.optional() }).optional(),
  outcomes: z
    .record(
      name,
      z.strictObject({
        set: assignments,
        args: z.record(z.string().regex(/^[a-z_]\w*$/i), sql).optional(),
        when: sql.optional(),
        otherwise: name.optional(),
        rest: sql.optional(),
      }),
    )
    .optional(),
  expired: assignments.optional(),
  columns: z.array(name).nonempty().optional(),
})

/** Declares a lease table. The table itself is looked at when a store is opened on it. */
export function leaseTable<const Name extends string>(
  declaration: LeaseTableDeclaration<Name>,
): LeaseTable<Name> {
  const parsed = declarationSchema.safeParse(declaration)
  if (!parsed.success) throw invalid(declaration, z.prettifyError(parsed.error))

  const { lease, writes, retry } = declaration
  const table: LeaseTable<Name> = {
    ...qualifiedName(declaration.table),
    key: typeof declaration.id === 'string' ? [declaration.id] : declaration.id,
    bucket: declaration.bucket,
    lease: { owner: lease.owner, until: lease.until, token: lease.token },
    claimable: declaration.claimable,
    availableAt: declaration.availableAt,
    order: declaration.order.map(orderBy),
    onExpiry: declaration.onExpiry,
    held: declaration.held,
    attempts: attemptsOf(declaration.attempts),
    retry: isSchedule(retry) ? retry : retryPolicy(retry),
    ordering: declaration.ordering,
    groups: declaration.groups,
    bytes: declaration.bytes,
    writes: { claim: writes?.claim ?? {}, release: writes?.release ?? {} },
    outcomes: complete(declaration.outcomes),
    expired: { error: EXPIRED, ...declaration.expired },
    columns: declaration.columns,
  }
  refuseContradictions(declaration, table)
  return table
}

/** What is written as the error of a row whose lease expired, unless the table says otherwise. */
const EXPIRED = "'the lease expired: its worker died, or lost the database'"

function attemptsOf(attempts: LeaseTableDeclaration['attempts']): Attempts | undefined {
  return typeof attempts === 'string' ? { column: attempts } : attempts
}

function isSchedule(retry: LeaseTableDeclaration['retry']): retry is readonly number[] {
  return Array.isArray(retry)
}

/** The two parts of a table's name. */
export function qualifiedName(table: LeaseTableDeclaration['table']): { schema: string; name: string } {
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

function complete<Name extends string>(
  outcomes: Readonly<Record<Name, OutcomeDeclaration>> | undefined,
): Readonly<Record<Name, Outcome>> {
  const entries = Object.entries<OutcomeDeclaration>(outcomes ?? {})
  return Object.fromEntries(
    entries.map(([name, { set, args = {}, when, otherwise, rest }]) => [
      name,
      { set, args, when, otherwise, rest },
    ]),
    // Object.fromEntries forgets which keys it was given.
  ) as Record<Name, Outcome>
}

/** A column has one writer: the lease's own columns belong to the kernel, the key to nobody. */
function refuseContradictions(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const { owner, until, token } = table.lease
  const { ordering, attempts } = table
  const given = [table.bucket, token, ordering?.key, table.groups]
  const named = [...table.key, owner, until, ...given.filter((column) => column !== undefined)]
  if (ordering !== undefined) refuseUnorderable(declaration, table)
  if (attempts?.max !== undefined) refuseEndlessAttempts(declaration, table)
  refuseMissingColumns(declaration, table)
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
  refuseUnknownArguments(declaration, table)
  for (const [outcome, { when, otherwise }] of Object.entries<Outcome>(table.outcomes)) {
    if ((when === undefined) !== (otherwise === undefined))
      throw invalid(declaration, `outcomes.${outcome} needs both \`when\` and \`otherwise\`, or neither`)
    const outcomes: Readonly<Record<string, Outcome>> = table.outcomes
    const other = otherwise === undefined ? undefined : outcomes[otherwise]
    if (otherwise !== undefined && (other === undefined || Object.keys(other.args).length > 0))
      throw invalid(
        declaration,
        `outcomes.${outcome}.otherwise names ${otherwise}, which is no outcome without arguments`,
      )
  }
}

/** The order of a key is that of one id, and which row is in flight must be visible in the row. */
function refuseUnorderable(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  if (table.key.length !== 1) throw invalid(declaration, '`ordering` needs an `id` of one column')
  if (table.held === undefined) throw invalid(declaration, '`ordering` needs `held`')
}

/** What a worker reads from a claimed row besides what the handler wants. */
function refuseMissingColumns(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const { columns, attempts, ordering, groups } = table
  const max = typeof attempts?.max === 'string' ? attempts.max : undefined
  const needed = [attempts?.column, max, ordering?.key, groups]
  const missing = needed.find((column) => column !== undefined && columns?.includes(column) === false)
  if (missing !== undefined)
    throw invalid(declaration, `\`columns\` lacks ${missing}, which the worker reads from every row`)
}

/** A limit needs a counter, and something that happens when it is reached. */
function refuseEndlessAttempts(declaration: LeaseTableDeclaration, { attempts, outcomes }: LeaseTable): void {
  if (attempts?.column === undefined) throw invalid(declaration, '`attempts.max` needs `attempts.column`')
  if (!('dead' in outcomes)) throw invalid(declaration, '`attempts.max` needs an outcome `dead`')
}

function refuseUnknownArguments(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const given: readonly [string, Assignments, object][] = [
    ['writes.claim', table.writes.claim, {}],
    ['writes.release', table.writes.release, { delay_ms: 'float8' }],
    ...Object.entries(table.outcomes).map(
      ([outcome, { set, args, when, rest }]): [string, Assignments, object] => [
        `outcomes.${outcome}`,
        { ...set, when: when ?? 'true', rest: rest ?? 'null' },
        args,
      ],
    ),
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

function invalid(declaration: LeaseTableDeclaration, what: string): LeaseholdError {
  const declared: unknown = declaration?.table
  const shown = typeof declared === 'string' ? declared : JSON.stringify(declared)
  return new LeaseholdError('LEASE_TABLE_INVALID', `The lease table ${shown} is declared wrongly: ${what}.`)
}
