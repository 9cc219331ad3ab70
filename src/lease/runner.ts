import type { Database } from '../postgres/database.ts'
import type { Queryable, Statement } from '../postgres/queryable.ts'
import type { TableShape } from './inspect.ts'
import { idValues, type Lease } from './lease.ts'
import { backoffSteps, isSchedule } from './retry-policy.ts'
import type { LeaseStatement } from './statement.ts'
import { type LeaseStatements, leaseStatements } from './statements.ts'
import type { LeaseTable } from './table.ts'
import { type TableSql, tableSql } from './table-sql.ts'

/** Types whose values need no quotes in an array, which `pg` would look for character by character. */
const UNQUOTED = new Set(['smallint', 'integer', 'bigint', 'uuid'])

/** The values of a statement's parameters, by their names. */
export type Values = Readonly<Record<string, unknown>>

/** A row as PostgreSQL returns it: values by position, because objects would be built twice. */
export type AnswerRow = readonly unknown[]

/** Sends the statements of one table, for one owner. Each statement concerns one bucket. */
export class StatementRunner {
  readonly table: LeaseTable
  readonly t: TableSql
  readonly statements: LeaseStatements
  readonly owner: string
  /** Each bucket is on one of several nodes, and so is what is sent together. */
  readonly isDistributed: boolean
  readonly #db: Queryable & Partial<Pick<Database, 'pipeline'>>
  readonly #shape: TableShape
  /** What is the same in every statement. */
  readonly #values: Values

  constructor(
    db: Queryable & Partial<Pick<Database, 'pipeline'>>,
    table: LeaseTable,
    shape: TableShape,
    owner: string,
  ) {
    this.table = table
    this.t = tableSql(table, shape)
    this.statements = leaseStatements(table, shape)
    this.owner = owner
    this.isDistributed = shape.distributed
    this.#db = db
    this.#shape = shape
    const backoffMs = isSchedule(table.retry) ? table.retry : backoffSteps(table.retry)
    this.#values = { owner, backoffMs }
  }

  /** The statement with its values, as it is sent. */
  bind(statement: LeaseStatement, values: Values): Statement {
    const bound: Values = { ...this.#values, ...values }
    return {
      name: statement.name,
      text: statement.text,
      values: statement.parameters.map((parameter) => bound[parameter]),
      rowMode: 'array',
    }
  }

  /** Sends statements in one round trip and one transaction. Without a database of ours: one after the other. */
  async send(statements: readonly Statement[]): Promise<readonly (readonly AnswerRow[])[]> {
    const results =
      this.#db.pipeline === undefined
        ? await inOrder(this.#db, statements)
        : await this.#db.pipeline<AnswerRow[][]>(statements)
    return results.map(({ rows }) => rows as readonly AnswerRow[])
  }

  /** Sends one statement by itself. */
  async run(
    statement: LeaseStatement,
    values: Values,
    { tx }: { readonly tx?: Queryable | undefined } = {},
  ): Promise<readonly AnswerRow[]> {
    const bound = this.bind(statement, values)
    if (tx === undefined) return (await this.send([bound]))[0] ?? []
    // In a transaction of the caller's, nobody knows whether there is a pooler without prepared statements.
    const { name: _, ...unnamed } = bound
    return (await tx.query<AnswerRow>(unnamed)).rows
  }

  /** Row ids as the arrays that the statements take, one for each id column. */
  idArrays(name: 'id' | 'excluded', ids: readonly string[]): Values {
    const rows = ids.map((id) => idValues(this.table, id))
    return Object.fromEntries(
      this.table.id.map((column, i) => {
        const values = rows.map((row) => row[i])
        const isPlain = UNQUOTED.has(this.#shape.columns.get(column)?.type ?? '')
        return [`${name}${i + 1}`, isPlain ? `{${values.join(',')}}` : values]
      }),
    )
  }

  /** The leases of a batch, by their ids and tokens. */
  leaseArrays(leases: readonly Lease[]): Values {
    const ids = leases.map(({ id }) => id)
    return { ...this.idArrays('id', ids), tokens: `{${leases.map(({ token }) => token).join(',')}}` }
  }
}

async function inOrder(
  db: Queryable,
  statements: readonly Statement[],
): Promise<{ readonly rows: readonly object[] }[]> {
  const results: { readonly rows: readonly object[] }[] = []
  for (const statement of statements) {
    const { name: _, ...unnamed } = statement
    results.push(await db.query(unnamed))
  }
  return results
}
