/** Who keeps VACUUM from removing dead rows: for the gauge, the overview, explanations and `leasehold doctor` alike. */
import type { Queryable } from './queryable.ts'

/** A session, or a prepared transaction, that holds a snapshot or has written. Null: this role may not see it. */
export interface SnapshotHolder {
  /** Null: it is a prepared transaction. */
  readonly pid: number | null
  /** Of a prepared transaction. */
  readonly gid: string | null
  readonly role: string | null
  /** Null: it has no name. */
  readonly application: string | null
  readonly state: string | null
  readonly since: Date | null
  readonly heldForMs: number | null
  readonly queryStart: Date | null
  /** How many transactions have begun since. */
  readonly transactions: number | null
}

export interface HeldSnapshots {
  /** Those that hold back VACUUM furthest come first. */
  readonly holders: readonly SnapshotHolder[]
  /** Whether this role sees the transactions of others (`pg_read_all_stats`). */
  readonly seesAll: boolean
}

/**
 * The transactions of this database that hold a snapshot, apart from this one. Those of other databases keep no row of this
 * one, and neither does a VACUUM. Replication slots and the feedback of standby servers are not included: they have an age
 * in transactions, not in time.
 */
export async function heldSnapshots(tx: Queryable): Promise<HeldSnapshots> {
  const { rows } = await tx.query<SnapshotHolder & { seesAll: boolean }>({
    text: `/* leasehold:held snapshots */
select pg_has_role('pg_read_all_stats', 'usage') as "seesAll", pid, gid, role, application, state, since, "queryStart",
  greatest(0, extract(epoch from clock_timestamp() - since) * 1000)::float8 as "heldForMs", transactions
from (values (true)) as always left join (
  select pid, null as gid, usename as role, nullif(application_name, '') as application, state, xact_start as since,
    query_start as "queryStart", greatest(age(backend_xmin), age(backend_xid))::float8 as transactions
  from pg_stat_activity
  where (backend_xmin is not null or backend_xid is not null) and pid <> pg_backend_pid() and datname = current_database()
    -- Of the sessions of others, a role without pg_read_all_stats does not see of which type they are.
    and (backend_type = 'client backend' or (backend_type is null and usesysid is not null))
    and pid not in (select pid from pg_stat_progress_vacuum)
  union all
  select null, gid, owner, null, null, prepared, null, age(transaction)::float8
  from pg_prepared_xacts where database = current_database()
) as held on true
order by transactions desc nulls last, since`,
  })
  // Without any holder there is one row, in which only the privilege is told.
  const holders = rows.filter(({ pid, gid }) => pid !== null || gid !== null)
  return { holders, seesAll: rows[0]?.seesAll === true }
}

/**
 * How many seconds ago the oldest transaction began that holds a snapshot; 0 when there is none. Undefined where this role
 * may not see the transactions of others.
 */
export async function oldestSnapshotAge(db: Queryable): Promise<number | undefined> {
  const { holders, seesAll } = await heldSnapshots(db)
  return seesAll ? Math.max(0, ...holders.map(({ heldForMs }) => heldForMs ?? 0)) / 1_000 : undefined
}
