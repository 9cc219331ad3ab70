/**
 * Adapters for the user's transaction. `writerOf` recognises what it is given by its methods; the `from…` functions are
 * for whoever wants to say it explicitly. No driver is imported: which ones are installed, and in how many copies, is up
 * to the user.
 *
 * All statements that pass through here are Leasehold's own. They are written so that every driver can carry them: each
 * value is a string or null and is cast in the statement (`$1::text`), they contain no question mark, and the columns they return
 * are single lower-case words, which plugins that rename columns leave alone.
 */
import { LeaseholdError } from '../errors.ts'
import { explainRefusal, isPermissionDenied } from '../postgres/permissions.ts'
import type { Queryable, Statement } from '../postgres/queryable.ts'
import { answeredBy, nameOn, type Often } from './naming.ts'
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
  Writer,
  WriterRow,
} from './writer.ts'

const ACCEPTED = [
  'a pg Client, PoolClient or Pool',
  'a transaction of Leasehold’s own Database',
  'the sql of postgres.js',
  'a Kysely, Drizzle, Prisma, Knex or TypeORM transaction',
  'any { query(text, values) }',
].join('; ')

/** The adapter for what was given; refuses what none fits. */
export function writerOf(given: Writer): AdaptedWriter {
  const adapt = SHAPES.find(({ fits }) => fits(given))?.adapt
  if (adapt !== undefined) return adapt(given)
  throw new LeaseholdError('WRITER_INVALID', `Nothing can be written with ${described(given)}.`, {
    remedy: `Give ${ACCEPTED}.`,
  })
}

/** As `writerOf`, for callers whose statements make sense only inside a transaction. */
export async function transactionOf(given: Writer, caller: string): Promise<AdaptedWriter> {
  const writer = writerOf(given)
  if ((await writer.inTransaction()) !== false) return writer
  throw new LeaseholdError(
    'WRITER_INVALID',
    `${caller} was given ${described(given)}, which is not in a transaction.`,
    {
      remedy:
        'Begin a transaction and give what holds it, so that everything in it happens together or not at all.',
    },
  )
}

interface Shape {
  readonly fits: (given: unknown) => boolean
  readonly adapt: (given: Writer) => AdaptedWriter
}

/* Each cast below is what the `fits` of the same entry has just established. */
const SHAPES: readonly Shape[] = [
  {
    fits: (given) => hasMethod(given, 'query') && hasMethod(given, 'inTransaction'),
    adapt: (given) => given as AdaptedWriter,
  },
  {
    fits: (given) => hasMethod(given, '$queryRawUnsafe'),
    adapt: (given) => fromPrisma(given as PrismaWriter),
  },
  { fits: (given) => hasMethod(given, 'executeQuery'), adapt: (given) => fromKysely(given as KyselyWriter) },
  // Neon's driver has an unsafe() that sends nothing, and a query().
  {
    fits: (given) => hasMethod(given, 'unsafe') && !hasMethod(given, 'query'),
    adapt: (given) => fromPostgresJs(given as PostgresJsWriter),
  },
  {
    fits: (given) => hasMethod(given, 'raw') && property(given, 'client') !== undefined,
    adapt: (given) => fromKnex(given as KnexWriter),
  },
  {
    fits: (given) => hasMethod(given, 'execute') && hasMethod(property(given, 'dialect'), 'sqlToQuery'),
    adapt: (given) => fromDrizzle(given as DrizzleWriter),
  },
  { fits: isTypeOrm, adapt: (given) => fromTypeOrm(given as TextQueryable) },
  { fits: takesStatementObject, adapt: (given) => fromQueryable(given as Queryable) },
  { fits: (given) => hasMethod(given, 'query'), adapt: (given) => fromPg(given as TextQueryable) },
]

/**
 * Leasehold's `Queryable.query` has one parameter; that of `pg` has three, and one that was patched by a tracer reports
 * none.
 */
function takesStatementObject(given: unknown): boolean {
  const query = property(given, 'query')
  return typeof query === 'function' && query.length === 1
}

/** For a `pg` Client, PoolClient or Pool, and whatever else has `query(text, values)`. */
export function fromPg(client: TextQueryable): AdaptedWriter {
  return adapted(
    client,
    async (text, values, often) => {
      if (often === undefined || often.prepare === false) return client.query(text, values)
      const name = often.prepare === true && takesNames(client) ? often.name : nameOn(client, often.name)
      // The cast is what has just been established: it is a client or pool of `pg`.
      if (name !== undefined) return (client as unknown as NamingClient).query({ name, text, values })
      const result = await client.query(text, values)
      answeredBy(client, often.processIdIn(rowsOf(result)))
      return result
    },
    async () => isPgInTransaction(client),
  )
}

/** For Leasehold's own `Database` and its transactions, and whatever else has `query({ text, values })`. */
export function fromQueryable(db: Queryable): AdaptedWriter {
  // JavaScript also counts one parameter for `(text, values = []) => pool.query(text, values)`, so such a function ends
  // up here. `pg` understands this call as well; others ignore the second argument.
  const query = db.query.bind(db) as (statement: Statement, values: (string | null)[]) => PromiseLike<unknown>
  return adapted(
    db,
    async (text, values, often) =>
      query(often?.prepare === true ? { name: often.name, text, values } : { text, values }, values),
    async () => (hasMethod(db, 'transaction') ? false : undefined),
  )
}

/** For postgres.js: the `sql` that `sql.begin(async (sql) => …)` passes to its callback. */
export function fromPostgresJs(sql: PostgresJsWriter): AdaptedWriter {
  return adapted(
    sql,
    // It names only what the user's own statements are named as well: `prepare` is a setting of the connection.
    async (text, values, often) =>
      often === undefined || often.prepare === false
        ? sql.unsafe(text, values)
        : sql.unsafe(text, values, { prepare: true }),
    async () => {
      if (hasMethod(sql, 'savepoint')) return true
      // A reserved connection has neither method; a transaction may have been begun on it by hand.
      return hasMethod(sql, 'begin') ? false : undefined
    },
  )
}

/** For Kysely: the `trx` of `db.transaction().execute(async (trx) => …)`. */
export function fromKysely(trx: KyselyWriter): AdaptedWriter {
  return adapted(
    trx,
    async (text, values) => {
      const compiled = {
        sql: text,
        parameters: values,
        query: { kind: 'RawNode', sqlFragments: [text], parameters: [] },
        queryId: { queryId: 'leasehold' },
      }
      // The same object as Kysely's CompiledQuery.raw() returns; importing that would make Kysely a dependency.
      return trx.executeQuery(compiled as never)
    },
    async () => trx.isTransaction,
  )
}

/**
 * For Drizzle: the `tx` of `db.transaction(async (tx) => …)`. `enqueue` recognises it by itself. With Drizzle's `sql`
 * given, as in `fromDrizzle(tx, sql)`, only what Drizzle documents is used.
 */
export function fromDrizzle(tx: DrizzleWriter, sql?: DrizzleTag): AdaptedWriter {
  return adapted(
    tx,
    async (text, values) =>
      tx.execute(sql === undefined ? drizzleQuery(text, values) : tagged(sql, text, values)),
    async () => {
      if (hasMethod(tx, 'rollback')) return true
      return isClientInTransaction(property(tx, '$client'))
    },
  )
}

/** For Prisma: the `tx` of `prisma.$transaction(async (tx) => …)`. */
export function fromPrisma(tx: PrismaWriter): AdaptedWriter {
  return adapted(
    tx,
    async (text, values) => tx.$queryRawUnsafe(text, ...values),
    // The client that Prisma passes to a transaction can neither connect nor disconnect.
    async () => !hasMethod(tx, '$connect'),
  )
}

/** For Knex: the `trx` of `knex.transaction(async (trx) => …)`. */
export function fromKnex(trx: KnexWriter): AdaptedWriter {
  return adapted(
    trx,
    async (text, values, often) => {
      const inOrder: (string | null)[] = []
      const withMarks = text.replaceAll(PARAMETER, (_, number: string) => {
        inOrder.push(values[Number(number) - 1] ?? null)
        return '?'
      })
      const raw = trx.raw(withMarks, inOrder)
      return often?.prepare === true && hasMethod(raw, 'options')
        ? // The cast is what has just been established.
          (raw as unknown as KnexRaw).options({ name: often.name })
        : raw
    },
    async () => property(trx, 'isTransaction') === true,
  )
}

/**
 * For TypeORM: the `manager` of `dataSource.transaction(async (manager) => …)`, a `QueryRunner`, or a repository of either.
 */
export function fromTypeOrm(manager: TextQueryable): AdaptedWriter {
  return adapted(
    manager,
    async (text, values) => {
      const result: unknown = await manager.query(text, values)
      // Of an UPDATE or DELETE it returns the rows and their number.
      return Array.isArray(result) && Array.isArray(result[0]) ? result[0] : result
    },
    async () => {
      const runner = queryRunnerOf(manager)
      if (runner === undefined) return false
      if (property(runner, 'isTransactionActive') === true) return true
      // A query runner holds one connection, from its first statement on; a transaction may have been begun on it by hand.
      const connection = property(runner, 'databaseConnection')
      if (connection === undefined) return false
      // The cast is what the condition has just established.
      return hasMethod(connection, 'query') ? isPgInTransaction(connection as TextQueryable) : undefined
    },
  )
}

const PARAMETER = /\$(\d+)/g

/** A client or pool of `pg`. */
interface NamingClient {
  query(statement: Statement): PromiseLike<unknown>
}

/** What `knex.raw` returns. */
interface KnexRaw {
  options(options: { readonly name: string }): PromiseLike<unknown>
}

function takesNames(client: TextQueryable): boolean {
  return isPool(client) || typeof property(client, 'processID') === 'number'
}

function adapted(
  given: unknown,
  run: (text: string, values: (string | null)[], often?: Often) => PromiseLike<unknown>,
  inTransaction: AdaptedWriter['inTransaction'],
): AdaptedWriter {
  return {
    async query(text, values, often) {
      try {
        return { rows: rowsOf(await run(text, values, often)) }
      } catch (error) {
        const refusal = refusalIn(error)
        if (!isPermissionDenied(refusal)) throw error
        throw explainRefusal(refusal, { text, role: databaseRoleOf(given), needs: 'producer' })
      }
    },
    inTransaction,
  }
}

/** Drizzle and others wrap the error of the driver. */
function refusalIn(error: unknown): unknown {
  const cause = property(error, 'cause')
  return !isPermissionDenied(error) && isPermissionDenied(cause) ? cause : error
}

/** The role that a `pg` Client or Pool, or postgres.js, connects as; others do not tell, and a failed transaction cannot be asked. */
function databaseRoleOf(given: unknown): string | undefined {
  const role = property(given, 'user') ?? property(property(given, 'options'), 'user')
  return typeof role === 'string' ? role : undefined
}

function rowsOf(result: unknown): readonly WriterRow[] {
  const rows = Array.isArray(result) ? result : property(result, 'rows')
  // Rows are objects, whatever the driver.
  return Array.isArray(rows) ? (rows as readonly WriterRow[]) : []
}

/** What Drizzle's dialect expects of an SQL object: that it can turn itself into a text and its parameters. */
function drizzleQuery(text: string, values: readonly (string | null)[]): DrizzleQuery {
  return { getSQL: () => ({ toQuery: () => ({ sql: text, params: values }) }) }
}

function tagged(sql: DrizzleTag, text: string, values: readonly (string | null)[]): DrizzleQuery {
  const inOrder = [...text.matchAll(PARAMETER)].map((match) => values[Number(match[1]) - 1] ?? null)
  const strings = text.split(/\$\d+/)
  // What the compiler makes of a template: its parts, and the same parts under `raw`.
  return sql(Object.assign(strings, { raw: strings }), ...inOrder)
}

async function isPgInTransaction(client: TextQueryable): Promise<boolean | undefined> {
  if (isPool(client)) return false
  const status = transactionStatus(client)
  if (status !== 'I') return status === undefined ? undefined : true
  // A BEGIN that was sent and not awaited has not been answered yet. Answers come in order, so after this one the
  // status is current.
  await client.query('select 1', [])
  return transactionStatus(client) !== 'I'
}

/** Of the driver that a Drizzle database was made with. */
async function isClientInTransaction(client: unknown): Promise<boolean | undefined> {
  if (hasMethod(client, 'unsafe')) return hasMethod(client, 'begin') ? false : undefined
  if (!hasMethod(client, 'query')) return undefined
  if (isPool(client)) return false
  const status = transactionStatus(client)
  return status === undefined ? undefined : status !== 'I'
}

/** A DataSource, EntityManager, Repository or QueryRunner. */
function isTypeOrm(given: unknown): boolean {
  if (!hasMethod(given, 'query')) return false
  return (
    isQueryRunner(given) ||
    hasMethod(given, 'getRepository') ||
    hasMethod(property(given, 'manager'), 'getRepository')
  )
}

function isQueryRunner(given: unknown): boolean {
  return typeof property(given, 'isTransactionActive') === 'boolean'
}

/** What holds the connection. A manager outside a transaction has none and takes any connection of the pool. */
function queryRunnerOf(given: unknown): unknown {
  if (isQueryRunner(given)) return given
  return property(property(given, 'manager') ?? given, 'queryRunner')
}

/** Recognised by its members, not its class: several copies of `pg` may be installed. */
function isPool(client: unknown): boolean {
  return typeof property(client, 'totalCount') === 'number' && hasMethod(client, 'connect')
}

/** The last status the server reported: `I` is outside a transaction. `undefined`: this client does not expose it. */
function transactionStatus(client: unknown): unknown {
  if (!hasMethod(client, 'getTransactionStatus')) return undefined
  // The line above has established that it is a method.
  return (client as { getTransactionStatus(): unknown }).getTransactionStatus() ?? undefined
}

/** A property of something whose type does not mention it. */
function property(of: unknown, name: string): unknown {
  if ((typeof of !== 'object' && typeof of !== 'function') || of === null) return undefined
  return Reflect.get(of, name)
}

function hasMethod(of: unknown, name: string): boolean {
  return typeof property(of, name) === 'function'
}

/** Names the kind of value without its contents, which may include a password. */
function described(given: unknown): string {
  if (typeof given === 'function') return `the function ${given.name || '(without a name)'}`
  if (typeof given !== 'object' || given === null)
    return `a value of type ${given === null ? 'null' : typeof given}`
  const name: unknown = property(property(given, 'constructor'), 'name')
  return typeof name === 'string' && name !== 'Object' && name !== ''
    ? `an object of class ${name}`
    : `an object with ${Object.keys(given).slice(0, 8).join(', ') || 'nothing in it'}`
}
