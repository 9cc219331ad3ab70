import type { Queryable } from '../postgres/queryable.ts'
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

/** Sends the statements of one table, for one owner. Each statement concerns one bucket. */
export class StatementRunner {
  readonly table: LeaseTable
  readonly t: TableSql
  readonly statements: LeaseStatements
  readonly owner: string
  readonly #db: Queryable
  readonly #shape: TableShape
  /** What is the same in every statement. */
  readonly #values: Values

  constructor(db: Queryable, table: LeaseTable, shape: TableShape, owner: string) {
    this.table = table
    this.t = tableSql(table, shape)
    this.statements = leaseStatements(table, shape)
    this.owner = owner
    this.#db = db
    this.#shape = shape
    const backoffMs = isSchedule(table.retry) ? table.retry : backoffSteps(table.retry)
    this.#values = { owner, backoffMs }
  }

  async run<Result extends object>(
    statement: LeaseStatement,
    values: Values,
    { tx, rowMode }: { readonly tx?: Queryable | undefined; readonly rowMode?: 'array' } = {},
  ): Promise<Result[]> {
    const bound: Values = { ...this.#values, ...values }
    const { rows } = await (tx ?? this.#db).query<Result>({
      // In a transaction of the caller's, nobody knows whether there is a pooler without prepared statements.
      ...(tx === undefined ? { name: statement.name } : {}),
      text: statement.text,
      values: statement.parameters.map((parameter) => bound[parameter]),
      ...(rowMode === undefined ? {} : { rowMode }),
    })
    return rows
  }

  /** Row ids as the arrays that the statements take, one for each id column. */
  idArrays(name: 'id' | 'excluded' | 'freed', ids: readonly string[]): Values {
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
