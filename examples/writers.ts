// Writing events with whatever holds the transaction. docs/guides/outbox.md shows what is between the marks; a test compares
// the two and runs this file.
import type { Database, Queryable } from 'leasehold'
import { createOutbox, enqueue, type Enqueued, type NewEvent } from 'leasehold/outbox'
import type { NodePgDatabase } from 'drizzle-orm/node-postgres'
import type { Knex } from 'knex'
import type { Kysely } from 'kysely'
import type { Sql } from 'postgres'
import { z } from 'zod'

export interface Libraries {
  readonly db: Database
  readonly sql: Sql
  readonly kysely: Kysely<object>
  readonly drizzle: NodePgDatabase
  readonly knex: Knex
  readonly prisma: PrismaLike
}

/** As much of a PrismaClient as is used here. The client itself is in examples/prisma. */
export interface PrismaLike {
  $transaction<Result>(work: (tx: PrismaTransaction) => Promise<Result>): Promise<Result>
}

interface PrismaTransaction {
  $queryRawUnsafe(text: string, ...values: string[]): PromiseLike<unknown>
}

/** The same call, whatever you have. */
export async function writeWithEach(libraries: Libraries, event: NewEvent): Promise<void> {
  const { db, sql, kysely, drizzle, knex, prisma } = libraries
  // begin
  await sql.begin(async (tx) => enqueue(tx, event)) // postgres.js
  await kysely.transaction().execute(async (trx) => enqueue(trx, event))
  await drizzle.transaction(async (tx) => enqueue(tx, event))
  await knex.transaction(async (trx) => enqueue(trx, event))
  await prisma.$transaction(async (tx) => enqueue(tx, event))
  await db.transaction(async (tx) => enqueue(tx, event)) // Leasehold's own
  // end
}

/** Types and checks from one source. */
export async function writeChecked(tx: Queryable, order: string, total: number): Promise<Enqueued> {
  // begin
  const outbox = createOutbox({
    events: {
      'order.paid': z.object({ order: z.uuid(), total: z.number().int() }),
      'order.shipped': z.object({ order: z.uuid() }),
    },
    maxPayloadBytes: 65_536,
    maxAttempts: 10,
  })
  return outbox.enqueue(tx, { type: 'order.paid', payload: { order, total }, orderingKey: order })
  // end
}

/** All in one statement, all or none. */
export async function writeMany(tx: Queryable, orders: readonly string[]): Promise<readonly Enqueued[]> {
  // begin
  const events = orders.map((order) => ({ type: 'order.placed', payload: { order }, orderingKey: order }))
  const enqueued = await enqueue(tx, events)
  // [{ id: '1', eventId: '0199…', duplicate: false }, …] in the order given
  // end
  return enqueued
}
