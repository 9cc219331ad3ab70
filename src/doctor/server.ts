/** The server: its version, its settings, its clock, the way to it, and what it has room for. */
import { counted } from '../figures.ts'
import { ORDERING_KEY_LOCKS } from '../outbox/enqueue/sql.ts'
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import { routeOf } from '../postgres/pooler.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { listWorkers } from '../worker/index.ts'
import { type Check, type Examination, NotApplicable, type Problem } from './check.ts'

/** Older ones lack what the migrations use; newer ones were never tested. */
const OLDEST_MAJOR = 15
const NEWEST_MAJOR = 18

/** The longest statements of workers are given up after this. */
const STATEMENT_MS = 10_000

/** What a process opens at most (docs/operations/connections.md). */
const CONNECTIONS_PER_PROCESS = 12

type Settings = Readonly<Record<string, string | null>>

/** As text, in the units of \`SHOW\`; null where this version does not have the setting. */
async function settingsOf(tx: Queryable, names: readonly string[]): Promise<Settings> {
  const { rows } = await tx.query<{ name: string; value: string | null }>({
    text: 'select name, current_setting(name, true) as value from unnest($1::text[]) as name',
    values: [names],
  })
  return Object.fromEntries(rows.map(({ name, value }) => [name, value]))
}

/** The role whose settings a session has, quoted: an administrator may run the statement. */
async function loginRole(read: Examination['read']): Promise<string> {
  const { rows } = await read(async (tx) =>
    tx.query<{ role: string }>({ text: 'select session_user as role' }),
  )
  return quote(rows[0]?.role ?? '')
}

async function versionProblems({ read }: Examination): Promise<Problem[]> {
  const { server_version_num: number, server_version: shown } = await read(async (tx) =>
    settingsOf(tx, ['server_version_num', 'server_version']),
  )
  const major = Math.floor(Number(number) / 10_000)
  if (major < OLDEST_MAJOR)
    return [
      {
        severity: 'error',
        text: `The server is PostgreSQL ${shown}, which Leasehold does not support.`,
        remedy: `Upgrade it to a version from ${OLDEST_MAJOR} to ${NEWEST_MAJOR}.`,
      },
    ]
  if (major <= NEWEST_MAJOR) return []
  return [
    {
      severity: 'warning',
      text: `The server is PostgreSQL ${shown}, and this release was tested on ${OLDEST_MAJOR} to ${NEWEST_MAJOR}.`,
      remedy: 'Use a release of Leasehold that was tested on it.',
    },
  ]
}

async function durabilityProblems({ read }: Examination): Promise<Problem[]> {
  const settings = await read(async (tx) =>
    settingsOf(tx, ['fsync', 'full_page_writes', 'synchronous_commit']),
  )
  const problems: Problem[] = []
  for (const name of ['fsync', 'full_page_writes'])
    if (settings[name] === 'off')
      problems.push({
        severity: 'error',
        text: `${name} is off: after a crash of the machine the database may be damaged.`,
        remedy: 'Turn it on.',
        repair: [`alter system set ${name} = on`, 'select pg_reload_conf()'],
      })
  if (settings['synchronous_commit'] === 'off')
    problems.push({
      severity: 'warning',
      text: 'synchronous_commit is off for this role: after a crash of the server the last transactions may be gone, and with them events that were written and settlements, whose rows are then processed once more.',
      remedy: 'Turn it on for the roles of producers and workers.',
      repair: [`alter role ${await loginRole(read)} set synchronous_commit = on`],
    })
  return problems
}

async function transactionProblems({ read }: Examination): Promise<Problem[]> {
  const { rows } = await read(async (tx) =>
    tx.query<{ isolation: string; read_only: string; recovering: boolean }>({
      text: `select current_setting('default_transaction_isolation') as isolation,
  current_setting('default_transaction_read_only') as read_only, pg_is_in_recovery() as recovering`,
    }),
  )
  const [found] = rows
  const role = await loginRole(read)
  const problems: Problem[] = []
  if (found?.recovering === true)
    problems.push({
      severity: 'error',
      text: 'The server is a standby: nothing can be written to it.',
      remedy: 'Give the URL of the primary, or of several hosts, of which the one that takes writes is used.',
    })
  if (found !== undefined && found.isolation !== 'read committed')
    problems.push({
      severity: 'error',
      text: `default_transaction_isolation is ${found.isolation} for this role: claims at the same time fail each other.`,
      remedy: 'Set it back for the role.',
      repair: [`alter role ${role} set default_transaction_isolation = 'read committed'`],
    })
  if (found?.read_only === 'on')
    problems.push({
      severity: 'error',
      text: 'default_transaction_read_only is on for this role: no worker can claim.',
      remedy: 'Turn it off for the role, unless the server was made read-only on purpose.',
      repair: [`alter role ${role} set default_transaction_read_only = off`],
    })
  return problems
}

async function timeoutProblems({ read, embedded, remark }: Examination): Promise<Problem[]> {
  const names = ['statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout']
  const { rows } = await read(async (tx) =>
    // The transaction has a statement_timeout of its own: what the role has is what the session would be reset to.
    tx.query<{ name: string; ms: number }>({
      text: `select name, reset_val::float8 * case unit when 's' then 1000 when 'min' then 60000 else 1 end as ms
from pg_settings where name = any ($1)`,
      values: [names],
    }),
  )
  const msOf = (name: string): number => rows.find((row) => row.name === name)?.ms ?? 0
  const short = ['statement_timeout', 'transaction_timeout'].filter(
    (name) => msOf(name) > 0 && msOf(name) < STATEMENT_MS,
  )
  const role = await loginRole(read)
  const problems = short.map((name): Problem => ({
    severity: 'warning',
    text: `${name} is ${msOf(name)} ms for this role: statements of the reaper and of maintenance may take longer in a large table.`,
    remedy: `Set it to ${STATEMENT_MS} ms or more for the role of the workers, or to 0. Leasehold gives up its statements itself.`,
    repair: [`alter role ${role} set ${name} = ${STATEMENT_MS}`],
  }))
  if (msOf('idle_in_transaction_session_timeout') === 0 && !embedded)
    remark(
      'idle_in_transaction_session_timeout is 0, as PostgreSQL has it by default: a program that forgets to end a transaction keeps its locks, and keeps vacuum from removing dead rows, until its connection ends. Set it to longer than your longest transaction waits for anything else.',
    )
  return problems
}

async function statisticsProblems({ read }: Examination): Promise<Problem[]> {
  const settings = await read(async (tx) => settingsOf(tx, ['track_activities', 'track_counts']))
  const problems: Problem[] = []
  if (settings['track_activities'] === 'off')
    problems.push({
      severity: 'warning',
      text: 'track_activities is off: nobody can see what a session is doing, nor since when.',
      remedy: 'Turn it on.',
      repair: ['alter system set track_activities = on', 'select pg_reload_conf()'],
    })
  if (settings['track_counts'] === 'off')
    problems.push({
      severity: 'error',
      text: 'track_counts is off: autovacuum does not know which tables need it.',
      remedy: 'Turn it on.',
      repair: ['alter system set track_counts = on', 'select pg_reload_conf()'],
    })
  return problems
}

/** The difference is known to within half of a round trip, so the shortest of some is used. */
async function clockProblems({ read, now, thresholds }: Examination): Promise<Problem[]> {
  const measure = async (tx: Queryable): Promise<{ readonly byMs: number; readonly sureToMs: number }> => {
    const sent = now()
    const { rows } = await tx.query<{ ms: number }>({
      text: 'select extract(epoch from clock_timestamp())::float8 * 1000 as ms',
    })
    const answered = now()
    return { byMs: (rows[0]?.ms ?? 0) - (sent + answered) / 2, sureToMs: (answered - sent) / 2 }
  }
  const measured = await read(async (tx) => [await measure(tx), await measure(tx), await measure(tx)])
  const [best] = measured.toSorted((a, b) => a.sureToMs - b.sureToMs)
  if (best === undefined || Math.abs(best.byMs) - best.sureToMs <= thresholds.clockMs) return []
  const direction = best.byMs > 0 ? 'ahead of' : 'behind'
  return [
    {
      severity: 'warning',
      text: `The clock of the database is ${seconds(Math.abs(best.byMs))} ${direction} that of this process (known to within ${seconds(best.sureToMs)}). Leases do not depend on it, because they use the clock of the database alone; timestamps of webhook signatures and times in logs do.`,
      remedy: 'Let NTP set both clocks.',
    },
  ]
}

function seconds(ms: number): string {
  return `${(ms / 1_000).toFixed(3)} s`
}

async function poolerProblems({ listenUrl, hasListenUrl, read, schema }: Examination): Promise<Problem[]> {
  const remedy = hasListenUrl
    ? 'Give a listenUrl (--listen-url, LEASEHOLD_LISTEN_URL) that leads to PostgreSQL itself.'
    : 'Give a listenUrl (--listen-url, LEASEHOLD_LISTEN_URL) that leads to PostgreSQL itself. The other connections can stay as they are.'
  if (listenUrl !== undefined) {
    const route = await routeOf(listenUrl)
    if (route === 'direct') return []
    const wakeUps = route === 'transaction' ? 'wake-ups do not arrive, so that workers poll, and ' : ''
    return [
      {
        severity: 'warning',
        text: `The connection that listens leads to a connection pooler${route === 'transaction' ? ' in transaction mode' : ''}: ${wakeUps}the rows of a killed process come back only when their leases expire.`,
        remedy,
      },
    ]
  }
  const workers = await read(async (tx) => listWorkers(tx, schema))
  const hidden = workers.filter(({ state, sessionVisible }) => state === 'alive' && !sessionVisible)
  if (hidden.length === 0) return []
  return [
    {
      severity: 'warning',
      text: `A connection pooler hides the session of ${hidden.map(({ id }) => id).join(', ')}: when the process is killed, its rows come back only when their leases expire.`,
      remedy,
    },
  ]
}

/**
 * How many connections a process may open is not registered, nor is a pooler that its session does not go through: what
 * follows from the defaults is a remark. Of the sessions of others a role without pg_read_all_stats does not see the type.
 */
async function connectionProblems({ read, schema, hasListenUrl, remark }: Examination): Promise<Problem[]> {
  const { workers, settings, open } = await read(async (tx) => {
    const { rows } = await tx.query<{ open: number }>({
      text: `select count(*)::int as open from pg_stat_activity
where usesysid is not null and datid is not null and coalesce(backend_type, 'client backend') = 'client backend'`,
    })
    return {
      workers: await listWorkers(tx, schema),
      settings: await settingsOf(tx, [
        'max_connections',
        'superuser_reserved_connections',
        'reserved_connections',
      ]),
      open: rows[0]?.open ?? 0,
    }
  })
  const alive = workers.filter(({ state }) => state === 'alive')
  const reserved =
    Number(settings['superuser_reserved_connections']) + Number(settings['reserved_connections'] ?? 0)
  const room = Number(settings['max_connections']) - reserved
  const needed = alive.length * CONNECTIONS_PER_PROCESS
  const isPooled = hasListenUrl || alive.some(({ sessionVisible }) => !sessionVisible)
  if (needed > room && !isPooled)
    remark(
      `${counted(alive.length, 'worker process', 'worker processes')} may open ${needed} connections, unless you have set maxConnections or use a connection pooler, and the server has ${room} for all of its users (max_connections ${settings['max_connections']}, ${reserved} of them reserved).`,
    )
  if (open <= room * 0.9) return []
  return [
    {
      severity: 'warning',
      text: `${open} of ${room} connections of the server are open.`,
      remedy:
        'Find out who opens them (pg_stat_activity). Use a smaller maxConnections or a connection pooler, or raise max_connections, which needs a restart.',
    },
  ]
}

/** A tenth: workers are told nothing from a quarter on (`notify_workers` in migrations/001_core.sql). */
const QUEUE_USAGE = 0.1

async function notificationProblems({ read }: Examination): Promise<Problem[]> {
  const { rows } = await read(async (tx) =>
    tx.query<{ usage: number }>({ text: 'select pg_notification_queue_usage() as usage' }),
  )
  const usage = rows[0]?.usage ?? 0
  if (usage < QUEUE_USAGE) return []
  return [
    {
      severity: 'warning',
      text: `The queue of NOTIFY is ${Math.round(usage * 100)} % full, because a session that listens does not read on. From 25 % on, Leasehold sends no notifications, so that workers only poll. When it is full, transactions of other programs that use NOTIFY fail.`,
      remedy:
        'End the session that has listened and has been in its transaction for longest (pg_stat_activity, xact_start), with pg_terminate_backend.',
    },
  ]
}

interface KeyLockRow {
  readonly pid: number
  readonly role: string | null
  readonly application: string | null
  readonly state: string | null
  readonly waiting: number
  readonly forMs: number
}

/** An advisory lock belongs to nobody: whoever may connect can take it, and keep producers of the key waiting. */
async function keyLockProblems({ read, thresholds }: Examination): Promise<Problem[]> {
  const { rows } = await read(async (tx) =>
    tx.query<KeyLockRow>({
      text: `select held.pid, usename as role, nullif(application_name, '') as application, state, count(*)::int as waiting,
  extract(epoch from clock_timestamp() - min(wanted.waitstart))::float8 * 1000 as "forMs"
from pg_locks as held
join pg_locks as wanted using (locktype, database, classid, objid, objsubid)
left join pg_stat_activity as session on session.pid = held.pid
where locktype = 'advisory' and classid::bigint = $1 and objsubid = 2
  and database = (select oid from pg_database where datname = current_database())
  and held.granted and not wanted.granted
group by 1, 2, 3, 4
having clock_timestamp() - min(wanted.waitstart) >= $2::float8 * interval '1 millisecond'
order by "forMs" desc limit 20`,
      values: [ORDERING_KEY_LOCKS, thresholds.keyLockMs],
    }),
  )
  return rows.map(({ pid, role, application, state, waiting, forMs }) => ({
    severity: 'warning',
    text: `The session with pid ${pid} (role ${role ?? 'unknown'}, ${application ?? 'no application name'}, ${state ?? 'unknown state'}) holds the lock of an ordering key, for which ${counted(waiting, 'transaction waits', 'transactions wait')}, the first for ${seconds(forMs)}.`,
    remedy:
      'Let the application end its transaction, or release the lock. If nobody can, terminate the session; what it did not commit is rolled back.',
    repair: [`select pg_terminate_backend(${pid})`],
  }))
}

async function superuserProblems({ read, embedded }: Examination): Promise<Problem[]> {
  if (embedded) throw new NotApplicable('the embedded server has one account')
  const { rows } = await read(async (tx) =>
    tx.query<{ name: string }>({
      text: 'select rolname as name from pg_roles where rolname = current_user and rolsuper',
    }),
  )
  return rows.map(({ name }) => ({
    severity: 'warning',
    text: `The login role ${name} is a superuser: a mistake in a handler can change everything on the server.`,
    remedy: `Use a role of its own for each kind of process (docs/operations/roles.md), for example: create role worker login in role leasehold_worker. ${quote(name)} is needed to migrate only if it owns the schema.`,
  }))
}

export const SERVER_CHECKS: readonly Check[] = [
  { id: 'server-version', title: 'version of PostgreSQL', needs: 'server', run: versionProblems },
  {
    id: 'server-durability',
    title: 'fsync, full_page_writes and synchronous_commit',
    needs: 'server',
    run: durabilityProblems,
  },
  {
    id: 'server-transactions',
    title: 'transactions that are read-only or not READ COMMITTED',
    needs: 'server',
    run: transactionProblems,
  },
  {
    id: 'server-timeouts',
    title: 'timeouts of statements and transactions',
    needs: 'server',
    run: timeoutProblems,
  },
  {
    id: 'server-statistics',
    title: 'track_activities and track_counts',
    needs: 'server',
    run: statisticsProblems,
  },
  { id: 'server-clock', title: 'difference of the clocks', needs: 'server', run: clockProblems },
  {
    id: 'server-pooler',
    title: 'a connection pooler before the connection that listens',
    needs: 'tables',
    run: poolerProblems,
  },
  {
    id: 'server-connections',
    title: 'connections that worker processes may open',
    needs: 'tables',
    run: connectionProblems,
  },
  {
    id: 'server-notifications',
    title: 'the queue of NOTIFY',
    needs: 'server',
    run: notificationProblems,
  },
  { id: 'server-key-locks', title: 'locks of ordering keys', needs: 'server', run: keyLockProblems },
  { id: 'server-superuser', title: 'login as a superuser', needs: 'server', run: superuserProblems },
]
