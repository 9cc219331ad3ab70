import { sql as drizzleSql } from 'drizzle-orm'
import { drizzle as drizzleOnPg } from 'drizzle-orm/node-postgres'
import { drizzle as drizzleOnPostgresJs } from 'drizzle-orm/postgres-js'
import knexOf from 'knex'
import { CamelCasePlugin, Kysely, PostgresDialect } from 'kysely'
import { Client, Pool, type PoolClient } from 'pg'
import postgres from 'postgres'
import { DataSource } from 'typeorm'
import { beforeAll } from 'vitest'
import {
  fromDrizzle,
  fromKnex,
  fromKysely,
  fromPg,
  fromPostgresJs,
  fromPrisma,
  fromQueryable,
  fromTypeOrm,
} from '../../src/transactions/adapters.ts'
import type { PrismaWriter, Writer } from '../../src/transactions/writer.ts'
import { openDatabase } from '../../src/postgres/database.ts'

/** A database library whose transactions users pass to Leasehold. */
export interface Producer {
  readonly name: string
  /** Runs the work in a transaction of the library: it commits, or rolls back when the work throws. */
  readonly transaction: (work: (tx: Writer) => Promise<void>) => Promise<void>
  /** The library's object outside a transaction. */
  readonly root: Writer
  close(): Promise<void>
}

/** Each library once directly, recognised by its shape, and once through its adapter. */
export function openProducers(url: string): readonly Producer[] {
  return [
    ...pgProducers(url),
    leaseholdProducer(url),
    ...postgresJsProducers(url),
    ...kyselyProducers(url),
    ...drizzleProducers(url),
    ...knexProducers(url),
    ...prismaShapes(url),
    ...typeOrmProducers(url),
  ]
}

async function inTransaction(client: Client | PoolClient, work: () => Promise<void>): Promise<void> {
  await client.query('begin')
  try {
    await work()
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    throw error
  }
}

function pgProducers(url: string): Producer[] {
  const pool = new Pool({ connectionString: url, max: 2 })
  const onClient = (name: string, as: (client: Client | PoolClient) => Writer): Producer => ({
    name,
    async transaction(work) {
      const client = await pool.connect()
      try {
        await inTransaction(client, async () => work(as(client)))
      } finally {
        client.release()
      }
    },
    root: pool,
    close: async () => undefined,
  })
  return [
    { ...onClient('a PoolClient of pg', (client) => client), close: async () => pool.end() },
    onClient('fromPg', fromPg),
    onClient('any { query(text, values) }', (client) => ({
      query: async (text: string, values: unknown[]) => client.query(text, values),
    })),
    onClient('any { query(text, values = []) }', (client) => ({
      // oxlint-disable-next-line typescript/no-useless-default-assignment -- one parameter, as JavaScript counts
      query: async (text: string, values: unknown[] = []) => client.query(text, values),
    })),
    onClient('any { query(…) } that resolves to the rows', (client) => ({
      query: async (text: string, values: unknown[]) => (await client.query(text, values)).rows,
    })),
    {
      name: 'a Client of pg',
      async transaction(work) {
        const client = new Client({ connectionString: url })
        await client.connect()
        try {
          await inTransaction(client, async () => work(client))
        } finally {
          await client.end()
        }
      },
      root: pool,
      close: async () => undefined,
    },
  ]
}

function leaseholdProducer(url: string): Producer {
  const db = openDatabase({ url })
  return {
    name: 'a transaction of the Database of Leasehold',
    transaction: async (work) => db.transaction(async (tx) => work(tx)),
    root: fromQueryable(db),
    close: async () => db.close(),
  }
}

function postgresJsProducers(url: string): Producer[] {
  const open = (name: string, options: object, as: (sql: postgres.TransactionSql) => Writer): Producer => {
    const sql = postgres(url, { max: 2, ...options })
    return {
      name,
      async transaction(work) {
        await sql.begin(async (tx) => work(as(tx)))
      },
      root: sql,
      close: async () => sql.end(),
    }
  }
  return [
    open('postgres.js', {}, (sql) => sql),
    open('postgres.js that renames columns', { transform: postgres.camel, prepare: false }, (sql) => sql),
    open('fromPostgresJs', {}, fromPostgresJs),
  ]
}

function kyselyProducers(url: string): Producer[] {
  const dialect = new PostgresDialect({ pool: new Pool({ connectionString: url, max: 2 }) })
  const db = new Kysely<object>({ dialect })
  const renaming = db.withPlugin(new CamelCasePlugin())
  return [
    {
      name: 'Kysely',
      transaction: async (work) => db.transaction().execute(async (trx) => work(trx)),
      root: db,
      close: async () => db.destroy(),
    },
    {
      name: 'Kysely that renames columns',
      transaction: async (work) => renaming.transaction().execute(async (trx) => work(trx)),
      root: renaming,
      close: async () => undefined,
    },
    {
      name: 'fromKysely',
      transaction: async (work) => db.transaction().execute(async (trx) => work(fromKysely(trx))),
      root: fromKysely(db),
      close: async () => undefined,
    },
  ]
}

function drizzleProducers(url: string): Producer[] {
  const pool = new Pool({ connectionString: url, max: 2 })
  const onPg = drizzleOnPg(pool)
  const client = postgres(url, { max: 2 })
  const onPostgresJs = drizzleOnPostgresJs(client)
  return [
    {
      name: 'Drizzle on pg',
      transaction: async (work) => onPg.transaction(async (tx) => work(tx)),
      root: onPg,
      close: async () => pool.end(),
    },
    {
      name: 'Drizzle on postgres.js',
      transaction: async (work) => onPostgresJs.transaction(async (tx) => work(tx)),
      root: onPostgresJs,
      close: async () => client.end(),
    },
    {
      name: 'fromDrizzle with its sql, on pg',
      transaction: async (work) => onPg.transaction(async (tx) => work(fromDrizzle(tx, drizzleSql))),
      root: fromDrizzle(onPg, drizzleSql),
      close: async () => undefined,
    },
    {
      name: 'fromDrizzle with its sql, on postgres.js',
      transaction: async (work) => onPostgresJs.transaction(async (tx) => work(fromDrizzle(tx, drizzleSql))),
      root: fromDrizzle(onPostgresJs, drizzleSql),
      close: async () => undefined,
    },
  ]
}

function knexProducers(url: string): Producer[] {
  const knex = knexOf({ client: 'pg', connection: url, pool: { min: 0, max: 2 } })
  return [
    {
      name: 'Knex',
      transaction: async (work) => knex.transaction(async (trx) => work(trx)),
      root: knex,
      close: async () => knex.destroy(),
    },
    {
      name: 'fromKnex',
      transaction: async (work) => knex.transaction(async (trx) => work(fromKnex(trx))),
      root: fromKnex(knex),
      close: async () => undefined,
    },
  ]
}

/** The shape of Prisma's client, implemented with pg. Its engine would have to be downloaded. */
function prismaShapes(url: string): Producer[] {
  const pool = new Pool({ connectionString: url, max: 2 })
  const prismaOn = (client: Pool | PoolClient): PrismaWriter => ({
    $queryRawUnsafe: async (text: string, ...values: unknown[]) => (await client.query(text, values)).rows,
  })
  const shape = (name: string, as: (tx: PrismaWriter) => Writer): Producer => ({
    name,
    async transaction(work) {
      const client = await pool.connect()
      try {
        await inTransaction(client, async () => work(as(prismaOn(client))))
      } finally {
        client.release()
      }
    },
    root: { ...prismaOn(pool), $connect: async () => undefined } as PrismaWriter,
    close: async () => undefined,
  })
  return [
    { ...shape('the shape of Prisma (not its engine)', (tx) => tx), close: async () => pool.end() },
    shape('fromPrisma (its shape, not its engine)', fromPrisma),
  ]
}

function typeOrmProducers(url: string): Producer[] {
  const dataSource = new DataSource({ type: 'postgres', url, extra: { max: 2 } })
  // It does not connect by itself.
  beforeAll(async () => void (await dataSource.initialize()))
  return [
    {
      name: 'an EntityManager of TypeORM',
      transaction: async (work) => dataSource.transaction(async (manager) => work(manager)),
      root: dataSource,
      close: async () => dataSource.destroy(),
    },
    {
      name: 'a QueryRunner of TypeORM, through fromTypeOrm',
      async transaction(work) {
        const runner = dataSource.createQueryRunner()
        await runner.startTransaction()
        try {
          await work(fromTypeOrm(runner))
          await runner.commitTransaction()
        } catch (error) {
          await runner.rollbackTransaction()
          throw error
        } finally {
          await runner.release()
        }
      },
      root: fromTypeOrm(dataSource.manager),
      close: async () => undefined,
    },
  ]
}
