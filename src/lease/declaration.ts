import { z } from 'zod'
import { LeaseholdError } from '../errors.ts'
import {
  argumentsIn,
  canRest,
  type Assignments,
  type LeaseTable,
  type LeaseTableDeclaration,
  type OrderBy,
  type Outcome,
  type OutcomeDeclaration,
} from './table.ts'

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
  ordering: z.strictObject({ key: name, behind: name, waitedFor: sql, inFlight: sql.optional() }).optional(),
  lanes: name.optional(),
  notes: z
    .strictObject({ table: z.union([name, z.strictObject({ schema: name, name })]), column: name })
    .optional(),
  bundles: z.strictObject({ table: z.union([name, z.strictObject({ schema: name, name })]) }).optional(),
  writes: z
    .strictObject({
      claim: assignments.optional(),
      release: assignments.optional(),
      reap: assignments.optional(),
    })
    .optional(),
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
  columns: z.array(name).nonempty().optional(),
})

/** Declares a lease table. The table itself is looked at when a store is opened on it. */
export function leaseTable<const Name extends string>(
  declaration: LeaseTableDeclaration<Name>,
): LeaseTable<Name> {
  const parsed = declarationSchema.safeParse(declaration)
  if (!parsed.success) throw invalid(declaration, z.prettifyError(parsed.error))

  const { lease, writes, bucket, notes, bundles } = declaration
  const table: LeaseTable<Name> = {
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
    ordering: declaration.ordering,
    lanes: declaration.lanes,
    notes: notes === undefined ? undefined : { ...qualifiedName(notes.table), column: notes.column },
    bundles: bundles === undefined ? undefined : qualifiedName(bundles.table),
    writes: { claim: writes?.claim ?? {}, release: writes?.release ?? {}, reap: writes?.reap ?? {} },
    outcomes: complete(declaration.outcomes),
    columns: declaration.columns,
  }
  refuseContradictions(declaration, table)
  return table
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
  const kernelColumns = [owner, until, ...(token === undefined ? [] : [token])]
  const { ordering } = table
  const named = [
    ...table.key,
    ...(table.bucket === undefined ? [] : [table.bucket]),
    ...kernelColumns,
    ...(ordering === undefined ? [] : [ordering.key, ordering.behind]),
    ...(table.lanes === undefined ? [] : [table.lanes]),
    ...(table.notes === undefined ? [] : [table.notes.column]),
  ]
  if (ordering !== undefined) refuseUnorderable(declaration, table)
  if (table.notes !== undefined) refuseUnnotable(declaration, table)
  if (table.bundles !== undefined) refuseUnbundleable(declaration, table)
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
  for (const [outcome, { when, otherwise }] of Object.entries<Outcome>(table.outcomes)) {
    // A note goes with the settlement of its rows, and such a row may not be settled by it.
    if (when !== undefined && table.notes !== undefined)
      throw invalid(declaration, `outcomes.${outcome} has \`when\`, which does not go with \`notes\``)
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

/** A line is ordered by one id, and who is in flight has to show. */
function refuseUnorderable(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  if (table.key.length !== 1) throw invalid(declaration, '`ordering` needs an `id` of one column')
  if (table.held === undefined) throw invalid(declaration, '`ordering` needs `held`')
}

/** A note names rows by one id, and only the reaper reads it. */
function refuseUnnotable(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  if (table.key.length !== 1) throw invalid(declaration, '`notes` needs an `id` of one column')
  if (table.onExpiry !== 'reap') throw invalid(declaration, "`notes` needs onExpiry 'reap'")
}

/** A bundle names rows by one id, for one moment; a row that becomes claimable as time goes by would be in none. */
function refuseUnbundleable(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const { key, availableAt, order, onExpiry } = table
  if (key.length !== 1) throw invalid(declaration, '`bundles` needs an `id` of one column')
  if (onExpiry !== 'reap') throw invalid(declaration, "`bundles` needs onExpiry 'reap'")
  if (table.lanes !== undefined) throw invalid(declaration, '`bundles` does not go with `lanes`')
  if (canRest(table)) throw invalid(declaration, '`bundles` does not go with an outcome that has `rest`')
  const ordered = order.map(({ column, direction }) => `${column} ${direction}`).join(', ')
  if (availableAt === undefined || ordered !== `${availableAt} asc, ${key[0] ?? ''} asc`)
    throw invalid(declaration, '`bundles` needs `availableAt`, and `order` to be that column and the `id`')
}

function refuseUnknownArguments(declaration: LeaseTableDeclaration, table: LeaseTable): void {
  const given: readonly [string, Assignments, object][] = [
    ['writes.claim', table.writes.claim, {}],
    ['writes.reap', table.writes.reap, {}],
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
