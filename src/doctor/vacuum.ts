/** Dead rows, and what keeps PostgreSQL from removing them. */
import { counted } from '../figures.ts'
import { quoteLiteral, quoteQualified } from '../postgres/identifiers.ts'
import { heldSnapshots } from '../postgres/snapshots.ts'
import type { Check, Examination, Problem } from './check.ts'
import { autovacuumOptions } from './schema/drift.ts'

/** PostgreSQL stops taking writes at about 2.1 billion transactions, and warns from 40 million before on. */
const WRAPAROUND_ERROR = 1_600_000_000

/** Schema and name of each table: ours, and those of the user's workers. */
function tableNames({
  schema,
  ownTables,
  declaredTables,
}: Examination): [schemas: string[], names: string[]] {
  const all = [
    ...ownTables.map(({ table }) => table),
    ...declaredTables.map(({ table }) => table),
    ...['inbox', 'workers', 'audit', 'webhook_endpoints', 'sync_job_chunks'].map((name) => ({
      schema,
      name,
    })),
  ]
  return [all.map((table) => table.schema), all.map(({ name }) => name)]
}

async function deadRowProblems(x: Examination): Promise<Problem[]> {
  const { rows } = await x.read(async (tx) =>
    tx.query<{ schema: string; name: string; dead: number; live: number; vacuumed: Date | null }>({
      text: `select schemaname as schema, relname as name, n_dead_tup::float8 as dead, n_live_tup::float8 as live,
  greatest(last_vacuum, last_autovacuum) as vacuumed
from pg_stat_all_tables
where (schemaname, relname) in (select * from unnest($1::text[], $2::text[]))
  and n_dead_tup >= $3::float8 and n_dead_tup >= 0.2 * n_live_tup
  and coalesce(greatest(last_vacuum, last_autovacuum) < now() - $4::float8 * interval '1 millisecond', true)
order by n_dead_tup desc`,
      values: [...tableNames(x), x.thresholds.deadRows, x.thresholds.vacuumedMs],
    }),
  )
  return rows.map(({ schema, name, dead, live, vacuumed }) => ({
    severity: 'warning',
    text: `The table ${schema}.${name} has ${counted(dead, 'dead row')} and ${counted(live, 'live row')}, and was ${vacuumed === null ? 'never vacuumed' : `last vacuumed at ${vacuumed.toISOString()}`}.`,
    remedy:
      'Vacuum it, and find out why autovacuum does not: the other checks of vacuum name what holds it back.',
    repair: [`vacuum (analyze) ${quoteQualified(schema, name)}`],
  }))
}

async function autovacuumProblems(x: Examination): Promise<Problem[]> {
  const { rows } = await x.read(async (tx) =>
    tx.query<{ autovacuum: string }>({ text: `select current_setting('autovacuum') as autovacuum` }),
  )
  const off: Problem[] =
    rows[0]?.autovacuum === 'off'
      ? [
          {
            severity: 'error',
            text: 'autovacuum is off: dead rows stay, and claims become slower with every row.',
            remedy: 'Turn it on.',
            repair: ['alter system set autovacuum = on', 'select pg_reload_conf()'],
          },
        ]
      : []
  return [...off, ...(await autovacuumOptions(x))]
}

interface StandbyRow {
  readonly application: string
  readonly address: string | null
  readonly age: number
}

/** A prepared transaction holds a snapshot too, and has a check of its own. */
async function snapshotProblems(x: Examination): Promise<Problem[]> {
  const { sessions, standbys, seesAll } = await x.read(async (tx) => {
    const { holders, seesAll: all } = await heldSnapshots(tx)
    const feedback = await tx.query<StandbyRow>({
      text: `select s.application_name as application, host(s.client_addr) as address,
  greatest(age(s.backend_xmin), age(slot.xmin))::float8 as age
from pg_stat_activity as s left join pg_replication_slots as slot on slot.active_pid = s.pid
where s.backend_type = 'walsender' and greatest(age(s.backend_xmin), age(slot.xmin)) >= $1::float8
order by 3 desc`,
      values: [x.thresholds.standbyTransactions],
    })
    return { sessions: holders.filter(({ pid }) => pid !== null), standbys: feedback.rows, seesAll: all }
  })
  if (!seesAll && sessions.some(({ since }) => since === null))
    x.notSeen(
      'since when the transactions of other roles are open: GRANT pg_read_all_stats to this role to see it',
    )
  const old = sessions
    .filter(({ heldForMs }) => heldForMs !== null && heldForMs >= x.thresholds.oldTransactionMs)
    .map((session): Problem => ({
      severity: 'warning',
      text: `The session with pid ${session.pid} (${session.application ?? 'no application name'}, role ${session.role}, ${session.state}) has held a snapshot since ${session.since?.toISOString()}, and started its last statement at ${session.queryStart?.toISOString()}. Row versions that died since then cannot be removed, in any table, so claims may have to skip them.`,
      remedy:
        'End its transaction there. If nobody can, terminate the session; what it did not commit is rolled back.',
      repair: [`select pg_terminate_backend(${session.pid})`],
    }))
  return [
    ...old,
    ...standbys.map(({ application, address, age }): Problem => ({
      severity: 'warning',
      text: `The standby ${application} (${address ?? 'on this machine'}) says that it needs rows of ${age} transactions ago (hot_standby_feedback). Row versions that died since then cannot be removed, in any table, so claims may have to skip them.`,
      remedy:
        'End the long query there, or set max_standby_streaming_delay in place of hot_standby_feedback.',
    })),
  ]
}

async function preparedProblems({ read, thresholds }: Examination): Promise<Problem[]> {
  const { rows } = await read(async (tx) =>
    tx.query<{ id: string; owner: string; prepared: Date }>({
      text: `select gid as id, owner, prepared from pg_prepared_xacts
where database = current_database() and prepared <= now() - $1::float8 * interval '1 millisecond'
order by prepared limit 20`,
      values: [thresholds.oldTransactionMs],
    }),
  )
  return rows.map(({ id, owner, prepared }) => ({
    severity: 'warning',
    text: `The transaction ${quoteLiteral(id).trim()} of ${owner} has been prepared since ${prepared.toISOString()}, and keeps its locks and its snapshot until somebody ends it.`,
    remedy: `Ask its transaction manager whether it was to be committed, and run COMMIT PREPARED or ROLLBACK PREPARED ${quoteLiteral(id).trim()}.`,
  }))
}

/** A consumer that is restarted is inactive for a while; only what its slot keeps does harm. */
async function slotProblems({ read, thresholds }: Examination): Promise<Problem[]> {
  const { rows } = await read(async (tx) =>
    tx.query<{ name: string; type: string; retained: number | null; age: number }>({
      text: `select * from (
  select slot_name as name, slot_type as type, wal_status, coalesce(age(xmin), 0)::float8 as age,
    case when not pg_is_in_recovery() then pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8 end as retained
  from pg_replication_slots
  where not active and restart_lsn is not null
) as inactive
where retained >= $1::float8 or age >= $2::float8 or wal_status in ('extended', 'unreserved')
order by retained desc nulls last limit 20`,
      values: [thresholds.slotBytes, thresholds.standbyTransactions],
    }),
  )
  return rows.map(({ name, type, retained, age }) => ({
    severity: 'warning',
    text: `The ${type} replication slot ${name} is not in use. It keeps ${retained === null ? 'the log' : `${Math.round(retained / 1_048_576)} MB of the log`}${age > 0 ? `, and the rows that died in the last ${age} transactions` : ''}, and more with every write.`,
    remedy: `Start its consumer. Only if it will never come back, and nobody needs the slot, let an administrator drop it with pg_drop_replication_slot(${quoteLiteral(name).trim()}).`,
  }))
}

async function wraparoundProblems({ read, thresholds }: Examination): Promise<Problem[]> {
  const { rows } = await read(async (tx) =>
    tx.query<{ name: string; age: number }>({
      text: `select datname as name, greatest(age(datfrozenxid), mxid_age(datminmxid))::float8 as age
from pg_database where datname = current_database()`,
    }),
  )
  const [{ name, age } = { name: '', age: 0 }] = rows
  if (age < thresholds.transactionAge) return []
  return [
    {
      severity: age < WRAPAROUND_ERROR ? 'warning' : 'error',
      text: `The oldest transaction id of the database ${name} is ${age} transactions old. At about 2.1 billion PostgreSQL takes no more writes.`,
      remedy:
        'End what holds back vacuum (old snapshots, prepared transactions, replication slots), and vacuum the database.',
      repair: ['vacuum (freeze)'],
    },
  ]
}

export const VACUUM_CHECKS: readonly Check[] = [
  {
    id: 'vacuum-dead-rows',
    title: 'dead rows and the last vacuum of each table',
    needs: 'tables',
    run: deadRowProblems,
  },
  {
    id: 'vacuum-settings',
    title: 'autovacuum, and its settings for each table',
    needs: 'tables',
    run: autovacuumProblems,
  },
  { id: 'vacuum-snapshots', title: 'old snapshots', needs: 'server', run: snapshotProblems },
  {
    id: 'vacuum-prepared-transactions',
    title: 'prepared transactions',
    needs: 'server',
    run: preparedProblems,
  },
  { id: 'vacuum-replication-slots', title: 'inactive replication slots', needs: 'server', run: slotProblems },
  {
    id: 'vacuum-wraparound',
    title: 'age of the oldest transaction id',
    needs: 'server',
    run: wraparoundProblems,
  },
]
