import { expect } from 'vitest'
import type { Database } from '../../src/postgres/index.ts'

/**
 * A checksum of the rows of each table of Leasehold, apart from when a key was last used, and one of the columns of all
 * tables: what is equal before and after has changed nothing.
 */
export async function checksums(db: Database): Promise<Readonly<Record<string, string>>> {
  const { rows } = await db.query<{ name: string; sum: string }>({
    text: `select table_name as name, query_to_xml(format(
  'select md5(string_agg(line, chr(10) order by line)) from (select (to_jsonb(t) - ''last_used_at'')::text as line from leasehold.%I as t) as lines',
  table_name), true, false, '')::text as sum
from information_schema.tables where table_schema = 'leasehold' and table_type = 'BASE TABLE'
union all
select 'columns', md5(string_agg(format('%I.%I.%I %s', table_schema, table_name, column_name, data_type), chr(10) order by table_schema, table_name, column_name))
from information_schema.columns where table_schema not in ('pg_catalog', 'information_schema')
order by 1`,
  })
  expect(rows.length).toBeGreaterThan(10)
  return Object.fromEntries(rows.map(({ name, sum }) => [name, sum]))
}
