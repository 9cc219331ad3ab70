/** Worker processes: whether they are alive, of one version, reaped for, and have leases that suit their handlers. */
import { schemaFlag, shellArgument } from '../operations/shown-commands.ts'
import { isLeaseholdError, sentence } from '../errors.ts'
import { counted } from '../figures.ts'
import { ownBuckets } from '../lease/backlog.ts'
import { checkTable } from '../lease/check-table.ts'
import { type LeaseTable, tableName } from '../lease/table.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { OUTBOX } from '../outbox/relay.ts'
import { WEBHOOKS } from '../webhooks/dispatcher/dispatcher.ts'
import { listWorkers, unreapedTables, type WorkerSettings, workerSettings } from '../worker/index.ts'
import { type Check, type Examination, NotApplicable, type Problem, type WorkedTable } from './check.ts'

/** Deaths within the last hour are worth a word. */
const RECENT_MS = 3_600_000

/** How many rows of a table are counted at most. */
const MAX_COUNTED = 1_000

/** The command that runs a process which only reaps. */
export function runReaper(schema: string): string {
  return `leasehold work --only reaper${schemaFlag(schema)}`
}

function leasedIn({ leased, lease }: LeaseTable): string {
  return leased === undefined ? `${quote(lease.owner)} is not null` : `(${leased})`
}

async function isAnyLeased(tx: Queryable, table: LeaseTable): Promise<boolean> {
  const { rows } = await tx.query<{ leased: boolean }>({
    text: `select exists (select from ${quoteQualified(table.schema, table.name)} where ${leasedIn(table)}) as leased`,
  })
  return rows[0]?.leased === true
}

/** The conditions of a table of the user may call functions that are on the search_path of the role alone. */
function readerOf({ read, own, ownTables }: Examination, table: LeaseTable): Examination['read'] {
  return ownTables.some((each) => tableName(each.table) === tableName(table)) ? read : own.read
}

async function reaperProblems(x: Examination): Promise<Problem[]> {
  const { read, schema, ownTables, declaredTables } = x
  const worked = [...ownTables, ...declaredTables]
  const all = distinct(worked)
  const names = all.map(({ table }) => tableName(table))
  const { workers, unreaped } = await read(async (tx) => ({
    workers: await listWorkers(tx, schema),
    unreaped: new Set(await unreapedTables(tx, schema, names)),
  }))
  const running = new Set(workers.filter(({ state }) => state === 'alive').flatMap(({ roles }) => roles))
  const problems: Problem[] = []
  for (const { table } of all.filter((each) => unreaped.has(tableName(each.table)))) {
    const isLeased = await readerOf(x, table)(async (tx) => isAnyLeased(tx, table))
    const isWorked = worked.some(
      (each) => tableName(each.table) === tableName(table) && running.has(each.worker),
    )
    if (!isLeased && !isWorked) continue
    problems.push({
      severity: 'error',
      text: `No reaper is alive for ${tableName(table)}${isLeased ? ', which has rows in flight' : ''}: nobody takes back the leases of a process that dies.`,
      remedy:
        'Run a process that reaps this table; every `leasehold work` does, unless --only leaves the reaper out. If one runs, its log says why its runs fail.',
      repair: [runReaper(schema)],
    })
  }
  return problems
}

function distinct(tables: readonly WorkedTable[]): WorkedTable[] {
  return [...new Map(tables.map((each) => [tableName(each.table), each])).values()]
}

async function expiredProblems(x: Examination): Promise<Problem[]> {
  const problems: Problem[] = []
  for (const { table } of distinct([...x.ownTables, ...x.declaredTables])) {
    const until = quote(table.lease.until)
    const { rows } = await readerOf(
      x,
      table,
    )(async (tx) =>
      tx.query<{ count: number; oldest: Date | null; owner: string | null }>({
        text: `select count(*)::int as count, min(until) as oldest, min(owner) as owner
from (
  select ${until} as until, ${quote(table.lease.owner)}::text as owner
  from ${quoteQualified(table.schema, table.name)}
  where ${leasedIn(table)} and ${until} < now() - $1::float8 * interval '1 millisecond'
  limit ${MAX_COUNTED}
) as expired`,
        values: [x.thresholds.expiredMs],
      }),
    )
    const [{ count, oldest, owner } = { count: 0, oldest: null, owner: null }] = rows
    if (count === 0) continue
    problems.push({
      severity: 'error',
      text: `${count === MAX_COUNTED ? 'At least ' : ''}${counted(count, 'lease', 'leases')} of ${tableName(table)} expired more than ${Math.round(x.thresholds.expiredMs / 1_000)} s ago, and nobody takes them back; the oldest ended at ${oldest?.toISOString()} (owner ${owner}).`,
      remedy: 'Run a process that reaps this table. If one runs, its log says what stops it.',
      repair: [runReaper(x.schema)],
    })
  }
  return problems
}

async function missingProblems({ read, schema, now, remark }: Examination): Promise<Problem[]> {
  const workers = await read(async (tx) => listWorkers(tx, schema))
  return workers.flatMap(({ id, host, pid, state, lastSeenAt, diedAt, inFlight, paused }): Problem[] => {
    const who = `The worker process ${id} (pid ${pid} on ${host})`
    if (state === 'missing')
      return [
        {
          severity: 'warning',
          text: `${who} was last heard of at ${lastSeenAt.toISOString()}, with ${counted(inFlight, 'row')} in flight, and did not say that it stops.`,
          remedy:
            'Look at its log: it hangs, was killed, or cannot reach the database. A reaper takes back its rows when their leases have expired.',
        },
      ]
    if (state === 'dead' && diedAt !== null && now() - diedAt.getTime() < RECENT_MS)
      remark(
        `${who} died at ${diedAt.toISOString()}, and its rows were taken back. Its log, or that of the machine, says why; a lack of memory is the most frequent cause. A process that was stopped while handlers ignored their signals is shown like this too.`,
      )
    if (state !== 'alive') return []
    return paused.map(({ worker, table, reason, since, error }) => ({
      severity: 'warning',
      text: `The worker ${worker} of the process ${id} has not claimed rows of ${table} since ${since} (${reason}${error === undefined ? '' : `: ${error}`}).`,
      ...(reason === 'operator'
        ? {
            remedy: 'Resume it, in all processes; or in its process, if a program of yours paused it there.',
            repair: [`leasehold settings resume${schemaFlag(schema)} -- ${shellArgument(worker)}`],
          }
        : { remedy: 'It resumes by itself when its target is available, or has room again.' }),
    }))
  })
}

async function versionProblems({ read, schema, version }: Examination): Promise<Problem[]> {
  const workers = await read(async (tx) => listWorkers(tx, schema))
  const alive = workers.filter(({ state }) => state === 'alive')
  const others = [...new Set(alive.map((worker) => worker.version))].filter((each) => each !== version)
  if (others.length === 0) return []
  const named = alive.filter((worker) => worker.version !== version).map(({ id }) => id)
  return [
    {
      severity: 'warning',
      text: `Worker processes run ${others.toSorted().join(', ')}, and this is ${version}: ${named.slice(0, 5).join(', ')}${named.length > 5 ? ' and others' : ''}.`,
      remedy: 'Finish the deployment, so that all processes run one release.',
    },
  ]
}

/** The settings in force of each worker of the processes that are alive: the shortest lease, where they differ. */
async function settingsInForce(tx: Queryable, schema: string): Promise<Map<string, WorkerSettings>> {
  const { rows } = await tx.query<{
    name: string
    declared: Partial<WorkerSettings>
    stored: Partial<WorkerSettings> | null
  }>({
    text: `select each.key as name, each.value as declared, s.value as stored
from ${quoteQualified(schema, 'workers')} as w
cross join lateral jsonb_each(w.declared) as each
left join ${quoteQualified(schema, 'settings')} as s on s.name = each.key
where w.stopped_at is null and w.died_at is null`,
  })
  const inForce = new Map<string, WorkerSettings>()
  for (const { name, declared, stored } of rows) {
    const settings = usable({ ...declared, ...stored }) ?? usable(declared)
    const before = inForce.get(name)
    if (settings !== undefined && (before === undefined || settings.leaseMs < before.leaseMs))
      inForce.set(name, settings)
  }
  return inForce
}

/** A worker leaves out stored settings that cannot work. */
function usable(given: Partial<WorkerSettings>): WorkerSettings | undefined {
  try {
    return workerSettings(given)
  } catch (error) {
    if (isLeaseholdError(error, 'SETTING_INVALID')) return undefined
    throw error
  }
}

/** How many of the newest deliveries of each bucket are read, and of how many buckets. */
const SAMPLED = 200
const SAMPLED_BUCKETS = 32

/**
 * A lease is renewed while a handler runs, but not for longer than `maxLeases` of them. Seen of handlers are: since when
 * events are in flight, and how long the attempts of deliveries took. Of other tables nothing is stored.
 */
async function leaseTimeProblems({ read, schema }: Examination): Promise<Problem[]> {
  return read(async (tx) => {
    const inForce = await settingsInForce(tx, schema)
    const outbox = inForce.get(OUTBOX)
    const webhooks = inForce.get(WEBHOOKS)
    if (outbox === undefined && webhooks === undefined)
      throw new NotApplicable('no process is alive that works on the outbox or on webhooks')
    return [
      ...(outbox === undefined ? [] : await heldTooLong(tx, schema, outbox)),
      ...(webhooks === undefined ? [] : await slowAttempts(tx, schema, webhooks)),
    ]
  })
}

function limitOf({ leaseMs, maxLeases }: WorkerSettings): number {
  return leaseMs * maxLeases
}

async function heldTooLong(tx: Queryable, schema: string, settings: WorkerSettings): Promise<Problem[]> {
  const { rows } = await tx.query<{ count: number; longest: number | null }>({
    text: `select count(*)::int as count, extract(epoch from now() - min(claimed_at))::float8 * 1000 as longest
from (
  select claimed_at from ${quoteQualified(schema, 'outbox')}
  where status = 'CLAIMED' and claimed_at < now() - $1::float8 * interval '1 millisecond'
  limit ${MAX_COUNTED}
) as held`,
    values: [2 * settings.leaseMs],
  })
  const [{ count, longest } = { count: 0, longest: 0 }] = rows
  if (count === 0) return []
  return [
    {
      severity: 'warning',
      text: `${counted(count, 'event has', 'events have')} been in flight for more than two leases of ${settings.leaseMs} ms, one for ${Math.round(longest ?? 0)} ms. After ${limitOf(settings)} ms (maxLeases) a handler is told to stop, and its event is published once more.`,
      remedy: 'Lengthen leaseMs of the worker outbox, or let its publisher give up earlier.',
    },
  ]
}

async function slowAttempts(tx: Queryable, schema: string, settings: WorkerSettings): Promise<Problem[]> {
  const limit = limitOf(settings)
  const deliveries = quoteQualified(schema, 'webhook_outbox')
  let longest = 0
  for (const bucket of (await ownBuckets(tx, schema)).slice(0, SAMPLED_BUCKETS)) {
    const { rows } = await tx.query<{ longest: number | null }>({
      text: `select max(last_duration_ms) as longest from (
  select last_duration_ms from ${deliveries} where bucket = $1::smallint order by id desc limit ${SAMPLED}
) as newest`,
      values: [bucket],
    })
    longest = Math.max(longest, rows[0]?.longest ?? 0)
  }
  const { rows: patient } = await tx.query<{ id: string; timeout: number }>({
    text: `select id::text as id, timeout_ms as timeout from ${quoteQualified(schema, 'webhook_endpoints')}
where enabled and timeout_ms >= $1::float8 order by timeout_ms desc limit 5`,
    values: [limit],
  })
  const remedy = 'Lengthen leaseMs of the worker webhooks, or shorten timeout_ms of the endpoints.'
  const cut = `After ${limit} ms (leaseMs ${settings.leaseMs} × maxLeases ${settings.maxLeases}) an attempt is cut off.`
  return [
    ...(longest < (limit * 2) / 3
      ? []
      : [
          {
            severity: 'warning' as const,
            text: `Among the newest deliveries, an attempt took ${longest} ms. ${cut}`,
            remedy,
          },
        ]),
    ...(patient.length === 0
      ? []
      : [
          {
            severity: 'warning' as const,
            text: `Endpoints may take longer than a lease can be renewed: ${patient.map(({ id, timeout }) => `${id} (${timeout} ms)`).join(', ')}. ${cut}`,
            remedy,
          },
        ]),
  ]
}

/** What `work` would refuse at its start. */
async function leaseTableProblems({ own, declaredTables }: Examination): Promise<Problem[]> {
  if (declaredTables.length === 0) throw new NotApplicable('no workers are declared in leasehold.config')
  const problems: Problem[] = []
  for (const { table } of distinct(declaredTables)) {
    try {
      const { slow } = await checkTable(own.db, table)
      for (const { what, remedy } of slow)
        problems.push({
          severity: 'warning',
          text: `The lease table ${tableName(table)} is slow: ${what}.`,
          remedy,
          repair: statementsIn(remedy),
        })
    } catch (error) {
      if (!isLeaseholdError(error, 'LEASE_TABLE_MISMATCH')) throw error
      const repair = statementsIn(error.message)
      problems.push({
        severity: 'error',
        text: sentence(error.message),
        remedy:
          'No worker of this table starts. Run the statements that the text names, or correct the declaration.',
        ...(repair.length === 0 ? {} : { repair }),
      })
    }
  }
  return problems
}

function statementsIn(message: string): string[] {
  return [...message.matchAll(/\bRun: (.+?;)(?= |$|\n)/gs)].map(([, statement = '']) => statement)
}

export const WORKER_CHECKS: readonly Check[] = [
  { id: 'workers-reaper', title: 'a reaper for each table', needs: 'tables', run: reaperProblems },
  {
    id: 'workers-expired-leases',
    title: 'expired leases that nobody takes back',
    needs: 'tables',
    run: expiredProblems,
  },
  {
    id: 'workers-missing',
    title: 'worker processes that are missing, died or do not claim',
    needs: 'tables',
    run: missingProblems,
  },
  {
    id: 'workers-versions',
    title: 'releases of the worker processes',
    needs: 'tables',
    run: versionProblems,
  },
  {
    id: 'workers-lease-time',
    title: 'leases that are too short for their handlers',
    needs: 'tables',
    run: leaseTimeProblems,
  },
  {
    id: 'workers-lease-tables',
    title: 'lease tables of leasehold.config',
    needs: 'server',
    run: leaseTableProblems,
  },
]
