import type { Queryable } from './queryable.ts'

/**
 * How many seconds ago the oldest transaction began, of those in this database, that prevents VACUUM from removing dead
 * rows; 0 when there is none. Undefined where this role may not see the transactions of others (`pg_read_all_stats`).
 * Replication slots and the feedback of standby servers are not included: they have an age in transactions, not in time.
 */
export async function oldestSnapshotAge(db: Queryable): Promise<number | undefined> {
  const { rows } = await db.query<{ age: number | null }>({
    text: `/* leasehold:oldest snapshot */
select case when pg_has_role('pg_read_all_stats', 'usage')
  then greatest(0, coalesce(extract(epoch from clock_timestamp() - min(since)), 0))::float8
end as age
from (
  select xact_start as since
  from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
    and (backend_xmin is not null or backend_xid is not null)
  union all
  select prepared from pg_prepared_xacts where database = current_database()
) as transactions`,
  })
  return rows[0]?.age ?? undefined
}
