import { Client } from 'pg'
import { expect, it } from 'vitest'

import { useDatabase } from './database.ts'

const database = useDatabase()

it('every test file has its own database on a real PostgreSQL', async () => {
  const client = new Client({ connectionString: database.url })
  await client.connect()
  const { rows } = await client.query<{ name: string }>('select current_database() as name')
  await client.end()
  expect(rows).toEqual([{ name: database.name }])
})
