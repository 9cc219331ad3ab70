// Which statements the server spent its time on, by pg_stat_statements.
import { withClient } from './client.mjs'

export async function resetStatements(url) {
  await withClient(url, async (client) => {
    await client.query('create extension if not exists pg_stat_statements')
    await client.query('select pg_stat_statements_reset()')
  })
}

const TOP = 8

export async function topStatements(url) {
  const { rows } = await withClient(url, async (client) =>
    client.query(
      `select round(total_exec_time)::int as ms, calls::int as calls, rows::int as rows, query
       from pg_stat_statements where dbid = (select oid from pg_database where datname = current_database())
       order by total_exec_time desc limit $1`,
      [TOP],
    ),
  )
  return rows.map(({ query, ...numbers }) => ({
    ...numbers,
    statement: query.replaceAll(/\s+/g, ' ').slice(0, 90),
  }))
}
