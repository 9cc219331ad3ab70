import { hasCode, messageOf } from '../errors.ts'
import type { Database } from '../postgres/database.ts'
import { endsConnection, isServerError } from '../postgres/failures.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { describeValue } from '../rules.ts'
import type { Mismatch, TableIndex, TableShape } from './inspect.ts'
import { allStatements, leaseStatements } from './statements.ts'
import type { LeaseStatement } from './statement.ts'
import { argumentsIn, type Assignments, type LeaseTable, type Sql, SUSPECT_EXPIRIES } from './table.ts'
import { tableSql } from './table-sql.ts'

/** One node of `EXPLAIN (FORMAT JSON)`, as far as we read it. */
export interface PlanNode {
  readonly 'Node Type': string
  readonly 'Subplan Name'?: string
  readonly 'Relation Name'?: string
  readonly 'Index Name'?: string
  readonly 'Index Cond'?: string
  readonly Plans?: readonly PlanNode[]
}

/**
 * Prepares every statement without running it, and plans the claims and the reap, which touch all that the others do: a
 * fragment that is not SQL is found here, and so is a missing privilege, and a claim or a reap that no index serves.
 * Sequential scans are switched off meanwhile, so that an empty table is planned like a full one: if the planner still
 * reads the whole table, no index serves the statement.
 */
export async function planMismatches(
  db: Database,
  table: LeaseTable,
  shape: TableShape,
): Promise<readonly Mismatch[]> {
  const statements = leaseStatements(table, shape)
  return db.transaction(async (tx) => {
    const isolation = await otherIsolation(tx)
    if (isolation !== undefined) return [isolation]
    await tx.query({ text: `set local enable_seqscan = off; ${SAVEPOINT}` })
    const refused = await refusedStatements(tx, allStatements(statements))
    // Most are in several statements, of which no user knows the names.
    const fragments = refused.length === 0 ? [] : await refusedFragments(tx, table)
    if (refused.length > 0) return fragments.length > 0 ? fragments : refused
    const plans = new Map<LeaseStatement, PlanNode>()
    const { expired } = statements.reap
    for (const statement of [...[...statements.ways.values()].map(({ claim }) => claim), expired]) {
      // Parsing does not check privileges, and planning does.
      const forbidden = await refusalOf(tx, statement, async () =>
        plans.set(statement, await planOf(tx, statement)),
      )
      if (forbidden !== undefined) return [forbidden]
    }
    // A plan says nothing of an index that PostgreSQL does not use yet, nor of those of another node.
    if (shape.distributed || shape.indexes.some(({ waits }) => waits)) return []
    const missing = new Map<string, string>()
    for (const [way, { claim }] of statements.ways) {
      const plan = plans.get(claim)
      if (way !== 'key' && !isServed(shape, subplan(plan, 'CTE next'), narrowsClaim(table, shape)))
        missing.set('no index serves the claim, which would read every row', claimIndex(table, shape))
      if (way === 'key' && !hasArrivalIndex(table, shape))
        missing.set(
          'no index serves the claim by ordering key, which would read every row that has one',
          arrivalIndex(table, shape),
        )
      if (!isServed(shape, subplan(plan, way === 'key' ? 'CTE heads' : 'CTE walk'), findsHeads(table)))
        missing.set(
          'no index serves the search for the head of an ordering key, which would read every row',
          keyIndex(table, shape),
        )
    }
    if (!hasSuspectIndex(table, shape)) {
      missing.set(
        'no index serves the scan for suspects, which every claim makes and which would read every row',
        `${suspectIndex(table, shape)} Or set \`attempts.expiries\` to false to count no expiries.`,
      )
    }
    if (!(await servesReap(tx, table, shape, subplan(plans.get(expired), 'CTE taken_back'))))
      missing.set('no index serves the reaper, which would read every row', reapIndex(table, shape))
    return [...missing].map(([what, index]) => ({ what, remedy: `Run: ${index}` }))
  })
}

/** A claim that meets a concurrent commit continues with the next row in READ COMMITTED, and fails at any other level. */
async function otherIsolation(tx: Queryable): Promise<Mismatch | undefined> {
  const { rows } = await tx.query<{ level: string }>({
    text: "select current_setting('transaction_isolation') as level",
  })
  const level = rows[0]?.level ?? ''
  if (level === 'read committed') return undefined
  return {
    what: `transactions of this role are ${level}, in which claims at the same time fail each other`,
    remedy: "Run: ALTER ROLE CURRENT_USER SET default_transaction_isolation = 'read committed';",
  }
}

/** What PostgreSQL says of the statements that it refuses. A wrong fragment is in many of them, and is reported once. */
async function refusedStatements(tx: Queryable, statements: readonly LeaseStatement[]): Promise<Mismatch[]> {
  const refused = new Map<string, Mismatch>()
  for (const statement of statements) {
    const prepare = `prepare leasehold_fit as ${statement.text}; deallocate leasehold_fit`
    const mismatch = await refusalOf(tx, statement, async () => tx.query({ text: prepare }))
    const reason = messageOf(mismatch?.cause)
    if (mismatch !== undefined && !refused.has(reason)) refused.set(reason, mismatch)
  }
  return [...refused.values()]
}

/** The conditions and assignments of the declaration that PostgreSQL refuses even by themselves, by the option that has them. */
async function refusedFragments(tx: Queryable, table: LeaseTable): Promise<Mismatch[]> {
  const { ordering, writes, outcomes } = table
  const conditions = [
    ['claimable', table.claimable],
    ['leased', table.leased],
    ['ordering.unfinished', ordering?.unfinished],
    ...Object.entries(outcomes).map(([name, { when }]) => [`outcomes.${name}.when`, when] as const),
  ] as const
  const values = [
    ['bytes', table.bytes],
    ...Object.entries(writes).flatMap(([verb, set]) => assigned(`writes.${verb}`, set)),
    ...Object.entries(outcomes).flatMap(([name, { set }]) => assigned(`outcomes.${name}`, set)),
  ] as const
  const from = `from ${quoteQualified(table.schema, table.name)}`
  const texts = [
    ...conditions.map(([option, sql]) => [option, sql, `select ${from} where (${sql})`] as const),
    ...values.map(([option, sql]) => [option, sql, `select (${sql}) ${from}`] as const),
  ]
  const refused: Mismatch[] = []
  for (const [option, sql, text] of texts) {
    // The type of an argument is only known to the statements.
    if (sql === undefined || argumentsIn(sql).length > 0) continue
    const error = await errorOf(tx, async () =>
      tx.query({ text: `prepare leasehold_fit as ${text}; deallocate leasehold_fit` }),
    )
    if (error === undefined) continue
    refused.push({
      what: `PostgreSQL refuses \`${option}\`, which is ${describeValue(sql)} (${messageOf(error)})`,
      remedy: `Correct \`${option}\`.${quotesFor(error)}`,
      cause: error,
    })
  }
  return refused
}

function assigned(option: string, set: Assignments): (readonly [string, Sql])[] {
  return Object.entries(set).map(([column, sql]) => [`${option}.${column}`, sql])
}

/** To which the transaction returns after a statement that PostgreSQL refuses. */
const SAVEPOINT = 'savepoint leasehold_fit'

/** What PostgreSQL has against this work, if it refuses it. */
async function refusalOf(
  tx: Queryable,
  statement: LeaseStatement,
  work: () => Promise<unknown>,
): Promise<Mismatch | undefined> {
  const error = await errorOf(tx, work)
  if (error === undefined) return undefined
  return {
    what: `PostgreSQL refuses the statement \`${statement.name}\` generated from it (${messageOf(error)})`,
    remedy: `Correct the SQL fragment of the declaration that the message speaks of.${quotesFor(error)}`,
    cause: error,
  }
}

/** The error with which PostgreSQL refuses this work, if it does; the transaction then continues from the savepoint. */
async function errorOf(tx: Queryable, work: () => Promise<unknown>): Promise<Error | undefined> {
  try {
    await work()
    return undefined
  } catch (error) {
    if (!isServerError(error) || endsConnection(error)) throw error
    await tx.query({ text: `rollback to ${SAVEPOINT}` })
    return error
  }
}

function quotesFor(error: Error): string {
  return hasCode(error, UNDEFINED_COLUMN)
    ? ' A text in SQL has quotes of its own: { status: "\'sent\'" }.'
    : ''
}

const UNDEFINED_COLUMN = '42703'

/** The plan of a statement, with values that mean nothing. */
async function planOf(tx: Queryable, statement: LeaseStatement): Promise<PlanNode> {
  const samples: Readonly<Record<string, unknown>> = {
    owner: '',
    leaseMs: 1,
    limit: 1,
    steps: 1,
    overlapMs: 0,
    rows: 0,
    oldestFirst: false,
    suspects: 1,
    bytes: 1,
    bucket: 0,
    tokens: '{}',
    groups: [],
    rooms: [],
    groupCursors: [],
  }
  const { rows } = await tx.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>({
    text: `explain (format json) ${statement.text}`,
    values: statement.parameters.map((parameter) => samples[parameter] ?? null),
  })
  const plan = rows[0]?.['QUERY PLAN'][0].Plan
  if (plan === undefined) throw new Error('EXPLAIN returned no plan')
  return plan
}

/** Whether every scan of this part of the plan goes through an index that leaves most rows out. */
function isServed(shape: TableShape, part: PlanNode | undefined, narrows: Narrows): boolean {
  const nodes = part === undefined ? [] : nodesOf(part)
  return (
    !nodes.some((node) => node['Node Type'] === 'Seq Scan') &&
    nodes
      .filter((node) => node['Index Name'] !== undefined)
      .every((node) =>
        narrows({
          condition: node['Index Cond'] ?? '',
          index: shape.indexes.find(({ name }) => name === node['Index Name']),
        }),
      )
  )
}

interface Use {
  readonly condition: string
  readonly index: TableIndex | undefined
}

type Narrows = (use: Use) => boolean

/**
 * Reading a whole index in order is no better than a scan, and sorting all that is pending for each claim is little
 * better: it takes a condition on more than the bucket, or a partial index in the order of the claim. On a tiny table
 * every index costs the planner the same, so such an index will do whichever it names in its plan.
 */
function narrowsClaim(table: LeaseTable, shape: TableShape): Narrows {
  const order = [
    ...(table.groups === undefined ? [] : [table.groups]),
    ...table.order.map(({ column }) => column),
  ]
  const hasOrderedIndex = shape.indexes.some(({ columns, predicate }) => {
    const withoutBucket = columns[0] === table.bucket ? columns.slice(1) : columns
    return predicate !== undefined && order.every((column, i) => withoutBucket[i] === column)
  })
  return ({ condition, index }) =>
    hasOrderedIndex ||
    (index?.columns ?? []).some(
      (column) =>
        column !== undefined &&
        column !== table.bucket &&
        // PostgreSQL prints a name in quotes where it needs them.
        (condition.includes(column) || condition.includes(quote(column))),
    )
}

/**
 * A backlog of a million rows without a lease must not be read to find the few with one. So the index has to know of the
 * lease, or its predicate has to be true of leased rows and not of claimable ones. On an empty table every index costs the
 * planner the same, so any that knows of the lease will do, whichever it names in its plan.
 */
async function servesReap(
  tx: Queryable,
  table: LeaseTable,
  shape: TableShape,
  part: PlanNode | undefined,
): Promise<boolean> {
  const nodes = part === undefined ? [] : nodesOf(part)
  if (nodes.some((node) => node['Node Type'] === 'Seq Scan')) return false
  if (shape.indexes.some((index) => knowsOfLease(table, index))) return true
  const used = new Set(nodes.map((node) => node['Index Name']))
  for (const { predicate } of shape.indexes.filter(({ name }) => used.has(name)))
    if (predicate === undefined || (await isTrueOfClaimable(tx, table, predicate))) return false
  return true
}

function knowsOfLease({ lease, leased }: LeaseTable, { columns, predicate = '' }: TableIndex): boolean {
  if (leased !== undefined && normalized(predicate) === normalized(leased)) return true
  // "owner IS NULL" is the predicate of an index for claims.
  const others = predicate.replaceAll(/\(?("[^"]*"|\w+) IS NULL\)?/gi, '')
  return [lease.owner, lease.until].some((column) => columns.includes(column) || mentions(others, column))
}

/** Whether a predicate names the column, as PostgreSQL prints it: in quotes where it needs them. */
function mentions(predicate: Sql, column: string): boolean {
  return predicate.split(/("(?:[^"]|"")*"|\w+)/).some((word) => word === column || word === quote(column))
}

/** Whether PostgreSQL can prove that every claimable row is in an index with this predicate. */
async function isTrueOfClaimable(tx: Queryable, table: LeaseTable, predicate: Sql): Promise<boolean> {
  await tx.query({ text: 'set local constraint_exclusion = on' })
  const { rows } = await tx.query<{ 'QUERY PLAN': [{ Plan: PlanNode }] }>({
    text: `explain (format json) select from ${quoteQualified(table.schema, table.name)}
      where (${table.claimable}) and (${predicate}) is not true`,
  })
  // A contradiction is planned as a result without a scan.
  const plan = rows[0]?.['QUERY PLAN'][0].Plan
  return plan?.['Node Type'] === 'Result' && plan.Plans === undefined
}

/** A condition without the casts, parentheses and spaces that PostgreSQL adds when it prints one. */
export function normalized(condition: Sql): string {
  return condition
    .toLowerCase()
    .replaceAll(/::\w+(?: varying| with(?:out)? time zone)?/g, '')
    .replaceAll(/[\s()"]/g, '')
}

export function nodesOf(plan: PlanNode): PlanNode[] {
  return [plan, ...(plan.Plans ?? []).flatMap(nodesOf)]
}

export function subplan(plan: PlanNode | undefined, name: string): PlanNode | undefined {
  return (plan === undefined ? [] : nodesOf(plan)).find((node) => node['Subplan Name'] === name)
}

function claimIndex(table: LeaseTable, shape: TableShape): string {
  return createIndex(table, shape, 'claim', claimColumns(table), claimableRows(table))
}

function arrivalIndex(table: LeaseTable, shape: TableShape): string {
  const where = `(${table.claimable}) AND ${quote(table.ordering?.key ?? '')} IS NOT NULL`
  return createIndex(table, shape, 'arrivals', arrivalColumns(table).map(quote), where)
}

function arrivalColumns({ availableAt, id }: LeaseTable): string[] {
  return [...(availableAt === undefined ? [] : [availableAt]), ...id]
}

function suspectIndex(table: LeaseTable, shape: TableShape): string {
  const { expiries = '' } = tableSql(table, shape)
  const where = `${claimableRows(table)} AND ${expiries} >= ${SUSPECT_EXPIRIES}`
  return createIndex(table, shape, 'suspects', claimColumns(table), where)
}

function claimColumns(table: LeaseTable): string[] {
  const order = table.order.map(({ column, direction }) =>
    direction === 'asc' ? quote(column) : `${quote(column)} DESC`,
  )
  return [...(table.groups === undefined ? [] : [quote(table.groups)]), ...order]
}

/** In a table with an ordering key, rows that have one are found by it. */
function claimableRows({ claimable, ordering }: LeaseTable): Sql {
  return ordering === undefined ? claimable : `(${claimable}) AND ${quote(ordering.key)} IS NULL`
}

/** Rows with an ordering key, and no others, in the order in which they become due. */
function hasArrivalIndex(table: LeaseTable, { indexes }: TableShape): boolean {
  const columns = [...(table.bucket === undefined ? [] : [table.bucket]), ...arrivalColumns(table)]
  return indexes.some(
    (index) =>
      mentions(index.predicate ?? '', table.ordering?.key ?? '') &&
      columns.every((column, i) => index.columns[i] === column),
  )
}

/** Suspects are few, and are found by an index that has nothing else in it. */
function hasSuspectIndex({ attempts }: LeaseTable, { indexes }: TableShape): boolean {
  const expiries = attempts?.expiries
  return expiries === undefined || indexes.some(({ predicate = '' }) => mentions(predicate, expiries))
}

/** The head of a key is found by one probe of an index on the key. */
function findsHeads({ ordering }: LeaseTable): Narrows {
  return ({ index }) => ordering === undefined || index?.columns.includes(ordering.key) === true
}

function keyIndex(table: LeaseTable, shape: TableShape): string {
  const { key = '', unfinished = 'true' } = table.ordering ?? {}
  const columns = [...(table.groups === undefined ? [] : [table.groups]), key, ...table.id].map(quote)
  return createIndex(table, shape, 'keys', columns, `${quote(key)} IS NOT NULL AND (${unfinished})`)
}

/** The lease's end itself stays out of the index, so that a renewal is a HOT update. */
function reapIndex(table: LeaseTable, shape: TableShape): string {
  const where = table.leased ?? `${quote(table.lease.owner)} IS NOT NULL`
  return createIndex(table, shape, 'leased', table.id.map(quote), where)
}

function createIndex(
  table: LeaseTable,
  shape: TableShape,
  purpose: string,
  columns: readonly string[],
  where: string,
): string {
  // PostgreSQL builds no index concurrently over partitions.
  const concurrently = shape.partitioned ? '' : 'CONCURRENTLY '
  const bucket = table.bucket === undefined ? [] : [quote(table.bucket)]
  const name = quote(`${table.name}_${purpose}`.slice(0, 63))
  return `CREATE INDEX ${concurrently}${name} ON ${quoteQualified(table.schema, table.name)} (${[...bucket, ...columns].join(', ')}) WHERE ${where};`
}
