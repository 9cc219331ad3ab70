/** The shapes of transactions that events and jobs can be written with. No driver is imported for them. */
import type { Queryable } from '../postgres/queryable.ts'
import type { Often } from './naming.ts'

/**
 * What events can be written with: whatever holds the transaction they are to be part of.
 *
 * A `pg` client or pool, a transaction of Leasehold's own `Database`, postgres.js, Kysely, Drizzle, Prisma, Knex, TypeORM, or
 * any `{ query(text, values) }`. Given a pool, or anything else outside a transaction, each call is a transaction of its own.
 */
export type Writer =
  | TextQueryable
  | Queryable
  | PostgresJsWriter
  | KyselyWriter
  | DrizzleWriter
  | PrismaWriter
  | KnexWriter

/**
 * Anything that takes a statement with `$1`, `$2`, … and its values: a `pg` client or pool, or an `EntityManager`,
 * `QueryRunner`, repository or `DataSource` of TypeORM.
 */
export interface TextQueryable {
  query(text: string, values: (string | null)[]): PromiseLike<QueryResult>
}

/** What a driver returns: a result that has rows, or the rows themselves. */
type QueryResult = { readonly rows: readonly unknown[] } | readonly unknown[]

/** postgres.js: `sql`, or what `sql.begin` passes to its callback. */
export interface PostgresJsWriter {
  unsafe(
    text: string,
    values: (string | null)[],
    options?: { readonly prepare: boolean },
  ): PromiseLike<readonly unknown[]>
}

/** Kysely: a `Transaction`, or the `Kysely` itself. */
export interface KyselyWriter {
  readonly isTransaction: boolean
  // The parameter is a tree of Kysely's own; `never` is what every such method can be called with.
  executeQuery(query: never): PromiseLike<{ readonly rows: readonly unknown[] }>
}

/** Drizzle on PostgreSQL, with any driver: the `tx` of `db.transaction`, or the `db` itself. */
export interface DrizzleWriter {
  execute(query: DrizzleQuery | string): PromiseLike<unknown>
}

/** Drizzle's `SQLWrapper`. */
export interface DrizzleQuery {
  getSQL(): unknown
}

/** Drizzle's `sql`. */
export type DrizzleTag = (strings: TemplateStringsArray, ...values: unknown[]) => DrizzleQuery

/** Prisma: the `tx` of `prisma.$transaction(async (tx) => …)`, or the client itself. */
export interface PrismaWriter {
  $queryRawUnsafe(text: string, ...values: (string | null)[]): PromiseLike<unknown>
}

/** Knex: a transaction, or the `knex` itself. */
export interface KnexWriter {
  raw(text: string, values: (string | null)[]): PromiseLike<unknown>
}

/** What every adapter (`fromKnex` and the others) returns: one shape for all drivers. */
export interface AdaptedWriter extends TextQueryable {
  query(
    text: string,
    values: (string | null)[],
    often?: Often,
  ): Promise<{ readonly rows: readonly WriterRow[] }>
  /** Whether its statements are part of one transaction; `undefined` where that cannot be detected. */
  inTransaction(): Promise<boolean | undefined>
}

export type WriterRow = Readonly<Record<string, unknown>>
