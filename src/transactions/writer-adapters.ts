import type { Queryable, Statement } from '../postgres/queryable.ts'
import type {
  AdaptedWriter,
  DrizzleQuery,
  DrizzleTag,
  DrizzleWriter,
  KnexWriter,
  KyselyWriter,
  PostgresJsWriter,
  PrismaWriter,
  TextQueryable,
  WriterRow,
} from './writer-types.ts'

/**
 * The statements that come through here are ours. They are written so that every driver can carry them: each value is a
 * string and is cast where it stands (`$1::text`), they contain no question mark, and the columns they return are single
 * lower-case words, which plugins that rename columns leave alone.
 */
type Run = (text: string, values: string[]) => PromiseLike<unknown>

/** For a `pg` Client, PoolClient or Pool, and whatever else has `query(text, values)`. */
export function fromPg(client: TextQueryable): AdaptedWriter {
  return adapted(
    async (text, values) => client.query(text, values),
    async () => {
      if (isPool(client)) return false
      const status = transactionStatus(client)
      if (status !== 'I') return status === undefined ? undefined : true
      // A BEGIN that nobody waited for is still on its way: once this is answered, so is that.
      await client.query('select 1', [])
      return transactionStatus(client) !== 'I'
    },
  )
}

/** For Leasehold's own `Database` and its transactions, and whatever else has `query({ text, values })`. */
export function fromQueryable(db: Queryable): AdaptedWriter {
  // `(text, values = []) => pool.query(text, values)` has one parameter too, as JavaScript counts: `enqueue` brings it
  // here, and `pg` understands this call as well. Others ignore the second argument.
  const query = db.query.bind(db) as (statement: Statement, values: string[]) => PromiseLike<unknown>
  return adapted(
    async (text, values) => query({ text, values }, values),
    async () => (has(db, 'transaction') ? false : undefined),
  )
}

/** For postgres.js: the `sql` that `sql.begin(async (sql) => …)` hands over. */
export function fromPostgresJs(sql: PostgresJsWriter): AdaptedWriter {
  return adapted(
    async (text, values) => sql.unsafe(text, values),
    async () => {
      if (has(sql, 'savepoint')) return true
      // A connection that was reserved has neither; whoever holds it may have begun a transaction by hand.
      return has(sql, 'begin') ? false : undefined
    },
  )
}

/** For Kysely: the `trx` of `db.transaction().execute(async (trx) => …)`. */
export function fromKysely(trx: KyselyWriter): AdaptedWriter {
  return adapted(
    async (text, values) => {
      const compiled = {
        sql: text,
        parameters: values,
        query: { kind: 'RawNode', sqlFragments: [text], parameters: [] },
        queryId: { queryId: 'leasehold' },
      }
      // What Kysely's CompiledQuery.raw() makes; importing it would make Kysely a dependency of everyone.
      return trx.executeQuery(compiled as never)
    },
    async () => trx.isTransaction,
  )
}

/**
 * For Drizzle: the `tx` of `db.transaction(async (tx) => …)`. `enqueue` recognises it by itself; with Drizzle's `sql`
 * given, as in `fromDrizzle(tx, sql)`, nothing is used but what Drizzle documents.
 */
export function fromDrizzle(tx: DrizzleWriter, sql?: DrizzleTag): AdaptedWriter {
  return adapted(
    async (text, values) =>
      tx.execute(sql === undefined ? drizzleQuery(text, values) : tagged(sql, text, values)),
    async () => {
      if (has(tx, 'rollback')) return true
      return transactionOf(property(tx, '$client'))
    },
  )
}

/** For Prisma: the `tx` of `prisma.$transaction(async (tx) => …)`. */
export function fromPrisma(tx: PrismaWriter): AdaptedWriter {
  return adapted(
    async (text, values) => tx.$queryRawUnsafe(text, ...values),
    // The client that Prisma hands to a transaction can neither connect nor disconnect.
    async () => !has(tx, '$connect'),
  )
}

/** For Knex: the `trx` of `knex.transaction(async (trx) => …)`. */
export function fromKnex(trx: KnexWriter): AdaptedWriter {
  return adapted(
    async (text, values) => {
      const inOrder: string[] = []
      const withMarks = text.replaceAll(PARAMETER, (_, number: string) => {
        inOrder.push(values[Number(number) - 1] ?? '')
        return '?'
      })
      return trx.raw(withMarks, inOrder)
    },
    async () => property(trx, 'isTransaction') === true,
  )
}

/** A property of something whose type does not mention it. */
export function property(of: unknown, name: string): unknown {
  if ((typeof of !== 'object' && typeof of !== 'function') || of === null) return undefined
  return Reflect.get(of, name)
}

/** Whether it has a method of this name. */
export function has(of: unknown, name: string): boolean {
  return typeof property(of, name) === 'function'
}

const PARAMETER = /\$(\d+)/g

function adapted(run: Run, inTransaction: AdaptedWriter['inTransaction']): AdaptedWriter {
  return {
    query: async (text, values) => ({ rows: rowsOf(await run(text, values)) }),
    inTransaction,
  }
}

function rowsOf(answer: unknown): readonly WriterRow[] {
  const rows = Array.isArray(answer) ? answer : property(answer, 'rows')
  // Rows are objects, whatever the driver.
  return Array.isArray(rows) ? (rows as readonly WriterRow[]) : []
}

/** What Drizzle's dialect asks of an SQL object: to turn itself into a text and its parameters. */
function drizzleQuery(text: string, values: readonly string[]): DrizzleQuery {
  return { getSQL: () => ({ toQuery: () => ({ sql: text, params: values }) }) }
}

function tagged(sql: DrizzleTag, text: string, values: readonly string[]): DrizzleQuery {
  const inOrder = [...text.matchAll(PARAMETER)].map((match) => values[Number(match[1]) - 1] ?? '')
  const strings = text.split(/\$\d+/)
  // What the compiler makes of a template: its parts, and the same again under `raw`.
  return sql(Object.assign(strings, { raw: strings }), ...inOrder)
}

/** Of the driver that a Drizzle database was made with. */
async function transactionOf(client: unknown): Promise<boolean | undefined> {
  if (has(client, 'unsafe')) return has(client, 'begin') ? false : undefined
  if (!has(client, 'query')) return undefined
  if (isPool(client)) return false
  const status = transactionStatus(client)
  return status === undefined ? undefined : status !== 'I'
}

/** By its looks: there may be several copies of `pg`. */
function isPool(client: unknown): boolean {
  return typeof property(client, 'totalCount') === 'number' && has(client, 'connect')
}

/** What the server said last: `I` is outside a transaction. `undefined`: this client does not tell. */
function transactionStatus(client: unknown): unknown {
  if (!has(client, 'getTransactionStatus')) return undefined
  // It was just seen to be a method without parameters.
  return (client as { getTransactionStatus(): unknown }).getTransactionStatus() ?? undefined
}
