import type { Client, Pool, PoolClient } from 'pg'
import { expectTypeOf, it } from 'vitest'
import type { Database } from './database.ts'
import type { Queryable } from './queryable.ts'

it("a Queryable is whatever the user has: pg's pool, client, pooled client, or our database", () => {
  expectTypeOf<Pool>().toExtend<Queryable>()
  expectTypeOf<Client>().toExtend<Queryable>()
  expectTypeOf<PoolClient>().toExtend<Queryable>()
  expectTypeOf<Database>().toExtend<Queryable>()
  expectTypeOf<{ query(text: number): void }>().not.toExtend<Queryable>()
})
