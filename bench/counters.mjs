// What the server says about its own work: statements, disk space and HOT updates.
import { withClient } from './client.mjs'

export async function resetStatements(client) {
  await client.query('create extension if not exists pg_stat_statements')
  await client.query('select pg_stat_statements_reset()')
}

/** Calls and milliseconds of each statement of this database since the last reset, without those of the bench, the longest first. */
export async function readStatements(client) {
  const { rows } = await client.query(
    `select queryid::text as id, calls::int as calls, total_exec_time as ms, rows::int as rows, query
     from pg_stat_statements
     where dbid = (select oid from pg_database where datname = current_database())
       and query not like '%pg_stat_statements%' and query !~ 'bench\\.write|bench_question'
     order by total_exec_time desc`,
  )
  return rows.map(({ query, ...numbers }) => ({ ...numbers, statement: shortened(query) }))
}

const SHOWN_CHARACTERS = 90

function shortened(query) {
  return query.replaceAll(/\s+/g, ' ').slice(0, SHOWN_CHARACTERS)
}

/** Updates of the tables of a schema. Complete once the connections that made them are closed. */
export async function readUpdates(url, schema) {
  return withClient(url, async (client) => {
    const { rows } = await client.query(
      `select coalesce(sum(n_tup_upd), 0)::float8 as updates, coalesce(sum(n_tup_hot_upd), 0)::float8 as hot
       from pg_stat_user_tables where schemaname = $1`,
      [schema],
    )
    return rows[0]
  })
}

/** Bytes of all tables of a schema with their indexes and TOAST, of the tables alone, and how full those are. */
export async function readDisk(url, schema, table) {
  return withClient(url, async (client) => {
    const { rows } = await client.query(
      `select sum(pg_total_relation_size(oid))::float8 as total, sum(pg_relation_size(oid))::float8 as heap,
         sum(pg_indexes_size(oid))::float8 as indexes
       from pg_class where relnamespace = $1::regnamespace and relkind in ('r', 'm')`,
      [schema],
    )
    await client.query('create extension if not exists pgstattuple')
    const fill = await client.query(
      'select tuple_percent as live, free_percent as free from pgstattuple($1)',
      [table],
    )
    return { ...rows[0], livePercent: fill.rows[0].live, freePercent: fill.rows[0].free }
  })
}
