import { hasCode, messageOf } from '../errors.ts'
import type { Database } from '../postgres/database.ts'
import { endsConnection, isServerError } from '../postgres/failures.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { timeoutOf } from '../postgres/waiting.ts'
import { describeValue } from '../rules.ts'
import type { Mismatch, TableShape } from './inspect.ts'
import { allStatements, leaseStatements } from './statements.ts'
import type { LeaseStatement } from './statement.ts'
import { argumentsIn, type Assignments, type LeaseTable, type Sql } from './table.ts'

/**
 * Has PostgreSQL parse every statement of a table, and plan the claims and the reap, which touch all columns that the
 * others do, without running any: a fragment of the declaration that is not SQL is found here, and so is a missing
 * privilege. What the plans look like is nobody's business here, because statistics may change it.
 */
export async function statementMismatches(
  db: Database,
  table: LeaseTable,
  shape: TableShape,
): Promise<readonly Mismatch[]> {
  const statements = leaseStatements(table, shape)
  return db.transaction(async (tx) => {
    const isolation = await otherIsolation(tx)
    if (isolation !== undefined) return [isolation]
    await tx.query({ text: SAVEPOINT })
    const refused = await refusedStatements(tx, allStatements(statements))
    // Most are in several statements, of which no user knows the names.
    const fragments = refused.length === 0 ? [] : await refusedFragments(tx, table)
    if (refused.length > 0) return fragments.length > 0 ? fragments : refused
    for (const statement of [
      ...[...statements.scans.values()].map(({ claim }) => claim),
      statements.reap.expired,
    ]) {
      // Parsing does not check privileges, and planning does.
      const forbidden = await refusalOf(tx, statement, async () => explain(tx, statement))
      if (forbidden !== undefined) return [forbidden]
    }
    return []
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
    if (!isServerError(error) || endsConnection(error) || timeoutOf(error) !== undefined) throw error
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

/** Plans a statement, with values that mean nothing. */
async function explain(tx: Queryable, statement: LeaseStatement): Promise<void> {
  const samples: Readonly<Record<string, unknown>> = {
    owner: '',
    leaseMs: 1,
    limit: 1,
    steps: 1,
    rows: 1,
    alone: true,
    bytes: 1,
    bucket: 0,
    tokens: '{}',
    groups: [],
    rooms: [],
    groupCursors: [],
  }
  await tx.query({
    text: `explain ${statement.text}`,
    values: statement.parameters.map((parameter) => samples[parameter] ?? null),
  })
}
