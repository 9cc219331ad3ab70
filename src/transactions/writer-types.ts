import type { Queryable } from '../postgres/queryable.ts'

/** What a driver answers: a result that has rows, or the rows themselves. */
export type Answer = { readonly rows: readonly unknown[] } | readonly unknown[]

/** Anything that takes a statement with `$1`, `$2`, … and its values. A `pg` client or pool is one. */
export interface TextQueryable {
  query(text: string, values: string[]): PromiseLike<Answer>
}

/** postgres.js: `sql`, or what `sql.begin` hands over. */
export interface PostgresJsWriter {
  unsafe(text: string, values: string[]): PromiseLike<readonly unknown[]>
}

/** Kysely: a `Transaction`, or the `Kysely` itself. */
export interface KyselyWriter {
  readonly isTransaction: boolean
  // Its parameter is a tree of Kysely's own; `never` is what every such method can be called with.
  executeQuery(query: never): PromiseLike<{ readonly rows: readonly unknown[] }>
}

/** Drizzle on PostgreSQL, with any driver: the `tx` of `db.transaction`, or the `db` itself. */
export interface DrizzleWriter {
  execute(query: DrizzleQuery | string): PromiseLike<unknown>
}

/** What Drizzle calls an `SQLWrapper`. */
export interface DrizzleQuery {
  getSQL(): unknown
}

/** Drizzle's `sql`. */
export type DrizzleTag = (strings: TemplateStringsArray, ...values: unknown[]) => DrizzleQuery

/** Prisma: the `tx` of `prisma.$transaction(async (tx) => …)`, or the client itself. */
export interface PrismaWriter {
  $queryRawUnsafe(text: string, ...values: string[]): PromiseLike<unknown>
}

/** Knex: a transaction, or the `knex` itself. */
export interface KnexWriter {
  raw(text: string, values: string[]): PromiseLike<unknown>
}

/** What the adapters (`fromKnex` and the others) make: one shape for all drivers. */
export interface AdaptedWriter extends TextQueryable {
  query(text: string, values: string[]): Promise<{ readonly rows: readonly WriterRow[] }>
  /** Whether its statements are part of one transaction; `undefined` where that cannot be seen. */
  inTransaction(): Promise<boolean | undefined>
}

export type WriterRow = Readonly<Record<string, unknown>>

/**
 * What events can be written with: whatever holds the transaction they are to be part of.
 *
 * A `pg` client or pool, a transaction of Leasehold's own `Database`, postgres.js, Kysely, Drizzle, Prisma, Knex, or any
 * `{ query(text, values) }`. Given a pool, or anything else outside a transaction, a call is a transaction by itself.
 */
export type Writer =
  | TextQueryable
  | Queryable
  | PostgresJsWriter
  | KyselyWriter
  | DrizzleWriter
  | PrismaWriter
  | KnexWriter
