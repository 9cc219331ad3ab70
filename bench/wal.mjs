// What the server writes to its log while something happens, by kinds of records (pg_walinspect).
import { withClient } from './client.mjs'

/** Once in a database, before anything is counted. */
export async function prepareWal(url) {
  await withClient(url, async (client) => client.query('create extension if not exists pg_walinspect'))
}

/** An entry of a leaf page of a B-tree: inserted, split off a posting list, or inserted while its page was split. */
const INDEX_ENTRY = /^Btree\/(INSERT_LEAF|INSERT_POST|SPLIT_[LR])$/
const UPDATE = /^Heap\/(HOT_)?UPDATE/
const HOT_UPDATE = /^Heap\/HOT_UPDATE/

/** Bytes, without full-page images, and records of the whole server during the work. */
export async function measureWal(url, work) {
  const from = await position(url)
  await work()
  const to = await position(url)
  return withClient(url, async (client) => {
    // What has not been flushed cannot be inspected.
    await client.query('select pg_switch_wal() as bench_question')
    const { rows } = await client.query(
      `select "resource_manager/record_type" as type, count::int as count, combined_size::float8 as bytes,
         fpi_size::float8 as images, pg_wal_lsn_diff($2, $1)::float8 as bench_question
       from pg_get_wal_stats($1, $2, true) where count > 0 order by combined_size desc`,
      [from, to],
    )
    if (rows.length === 0) throw new Error('nothing was written to the WAL')
    const images = rows.reduce((sum, one) => sum + one.images, 0)
    const counted = (kind) =>
      rows.filter(({ type }) => kind.test(type)).reduce((sum, { count }) => sum + count, 0)
    return {
      bytes: rows[0].bench_question - images,
      indexEntries: counted(INDEX_ENTRY),
      updates: counted(UPDATE),
      hotUpdates: counted(HOT_UPDATE),
    }
  })
}

async function position(url) {
  const question = 'select pg_current_wal_insert_lsn()::text as bench_question'
  return withClient(url, async (client) => (await client.query(question)).rows[0].bench_question)
}
