/** Rows that need somebody: dead ones, held-up keys, suspects, endpoints that get nothing, rows that should be gone. */
import { schemaFlag, shellArgument } from '../operations/shown-commands.ts'
import { countUpTo } from '../operations/count.ts'
import { DAY_MS } from '../operations/retention.ts'
import { isLeaseholdError } from '../errors.ts'
import { findWrittenAhead } from '../operations/written-ahead.ts'
import { counted, duration } from '../figures.ts'
import { ownBuckets } from '../lease/backlog.ts'
import { tableName } from '../lease/table.ts'
import { keysHeldUp } from '../outbox/admin/held-up-keys.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { unreapedTables } from '../worker/index.ts'
import { decrypt, type SecretKeys } from '../webhooks/signing/encryption.ts'
import { decryptHeaders, type Headers } from '../webhooks/endpoints/secrets.ts'
import { type Check, type Examination, NotApplicable, type Problem } from './check.ts'
import { runReaper } from './workers.ts'

/** How many names a finding lists. */
const MAX_NAMED = 5

function some(names: readonly string[]): string {
  const rest = names.length - MAX_NAMED
  return `${names.slice(0, MAX_NAMED).join(', ')}${rest > 0 ? ` and ${rest} more` : ''}`
}

interface CountedRows {
  readonly table: string
  readonly where: string
  readonly order: string
  /** What is said of one of them, and of several. */
  readonly one: string
  readonly many: string
  readonly remedy: string
}

/** Fewer than `from` are a remark. */
async function findRows(
  { read, schema, remark }: Examination,
  all: readonly CountedRows[],
  from: number,
): Promise<Problem[]> {
  return read(async (tx) => {
    const problems: Problem[] = []
    for (const { table, where, order, one, many, remedy } of all) {
      const { count, exact } = await countUpTo(tx, quoteQualified(schema, table), where, order)
      if (count === 0) continue
      const text = `${exact ? '' : 'About '}${counted(count, one, many)}`
      if (count < from) remark(`${text} ${remedy}`)
      else problems.push({ severity: 'warning', text, remedy })
    }
    return problems
  })
}

/** Each in the words of a partial index, and in its order. */
async function deadProblems(x: Examination): Promise<Problem[]> {
  const flag = schemaFlag(x.schema)
  return findRows(
    x,
    [
      {
        table: 'outbox',
        where: "status = 'DEAD'",
        order: 'bucket, id',
        one: 'event of the outbox is dead.',
        many: 'events of the outbox are dead.',
        remedy: `See why with \`leasehold outbox list --status dead${flag}\`, and publish them with \`leasehold outbox replay${flag}\`; retention deletes them after 90 days.`,
      },
      {
        table: 'webhook_outbox',
        where: "delivery_status = 'failed'",
        order: 'bucket, id',
        one: 'delivery of a webhook has failed for good.',
        many: 'deliveries of webhooks have failed for good.',
        remedy: `See why with \`leasehold webhooks list --status failed${flag}\`, and send them with \`leasehold webhooks replay${flag}\`; retention deletes them after 90 days.`,
      },
      {
        table: 'sync_jobs',
        where: 'failed_at is not null',
        order: 'failed_at, id',
        one: 'sync job has failed.',
        many: 'sync jobs have failed.',
        remedy: `See why with \`leasehold sync list${flag}\`, and repeat them with \`leasehold sync replay${flag}\`; retention deletes them after 30 days.`,
      },
    ],
    x.thresholds.deadLetters,
  )
}

const SUSPECT = 'whose lease has expired twice or more: it may be what kills a process.'
const SUSPECTS =
  'whose leases have expired twice or more: they may be what kills a process, and each process runs one of them at a time.'

async function suspectProblems(x: Examination): Promise<Problem[]> {
  const remedy =
    'Look at the log of the processes that held them. A row that cannot be processed is dead after its attempts; repair its handler before that.'
  return findRows(
    x,
    [
      {
        table: 'outbox',
        where: "status = 'PENDING' and ordering_key is null and expiries >= 2",
        order: 'bucket, available_at, id',
        one: `event waits ${SUSPECT}`,
        many: `events wait ${SUSPECTS}`,
        remedy,
      },
      {
        table: 'webhook_outbox',
        where: "delivery_status = 'pending' and ordering_key is null and expiries >= 2",
        order: 'bucket, endpoint_id, next_attempt_at, id',
        one: `delivery waits ${SUSPECT}`,
        many: `deliveries wait ${SUSPECTS}`,
        remedy,
      },
      {
        table: 'sync_checkpoints',
        where: 'completed_at is null and failed_at is null and needed and expiries >= 2',
        order: 'definition, priority desc, position, matrix_id, chunk_hash',
        one: `chunk waits ${SUSPECT}`,
        many: `chunks wait ${SUSPECTS}`,
        remedy,
      },
    ],
    1,
  )
}

/** Blocked keys are retried by themselves; from so many failures on somebody should look. */
const MANY_ATTEMPTS = 5

async function heldUpProblems({ db, schema }: Examination): Promise<Problem[]> {
  const { keys } = await keysHeldUp(db, { schema, limit: 100, timeoutMs: 5_000 })
  return keys
    .filter(({ state, attempts }) => state === 'parked' || attempts >= MANY_ATTEMPTS)
    .slice(0, 20)
    .map(({ orderingKey, state, id, attempts, waiting, lastError }) => ({
      severity: 'warning',
      text: `The ordering key ${JSON.stringify(orderingKey)} is ${state} by the event ${id}, which failed ${counted(attempts, 'time')}${lastError === null ? '' : ` (${lastError})`}; ${counted(waiting, 'event waits', 'events wait')} for it.`,
      remedy:
        'Remove the cause and publish the event, with the first command; or continue without it, with the second.',
      repair: [' --replay', ''].map(
        (replay) =>
          `leasehold outbox unblock${replay}${schemaFlag(schema)} --reason '…' -- ${shellArgument(orderingKey)}`,
      ),
    }))
}

/** How many endpoints are read at most. */
const MAX_ENDPOINTS = 10_000

async function secretProblems({ read, schema, secretKeys: keys }: Examination): Promise<Problem[]> {
  if (keys === undefined) throw new NotApplicable('no secret key was given')
  const { rows } = await read(async (tx) =>
    tx.query<{ id: string; secret: string; previous: string | null; headers: Headers }>({
      text: `select id::text as id, secret, previous_secret as previous, headers
from ${quoteQualified(schema, 'webhook_endpoints')} order by id limit ${MAX_ENDPOINTS}`,
    }),
  )
  const unreadable = new Map<string, string[]>()
  const unreadablePrevious: string[] = []
  for (const { id, secret, previous, headers } of rows) {
    try {
      decrypt(keys, secret, id)
      decryptHeaders(keys, id, headers)
      if (previous !== null && !isReadable(keys, previous, id)) unreadablePrevious.push(id)
    } catch (error) {
      if (!isLeaseholdError(error)) throw error
      unreadable.set(error.code, [...(unreadable.get(error.code) ?? []), id])
    }
  }
  const current = [...unreadable].map(([code, ids]): Problem => ({
    severity: 'error',
    text:
      code === 'SECRET_KEY_INVALID'
        ? `LEASEHOLD_SECRET_KEY is not the key with which the secrets of these endpoints were encrypted: ${some(ids)}. Nothing can be delivered to them.`
        : `The secrets or headers of these endpoints are damaged: ${some(ids)}. Nothing can be delivered to them.`,
    remedy:
      code === 'SECRET_KEY_INVALID'
        ? `Give the key that the dispatchers have. If the secrets were encrypted with an older one, add it after the newest, separated by a comma; then re-encrypt with \`leasehold webhooks endpoints encrypt${schemaFlag(schema)}\`.`
        : `Rotate their secrets with \`leasehold webhooks endpoints rotate${schemaFlag(schema)}\`, set their headers again, and find out who writes to these rows.`,
  }))
  if (unreadablePrevious.length === 0) return current
  const previous: Problem = {
    severity: 'warning',
    text: `The previous secrets of these endpoints cannot be read: ${some(unreadablePrevious)}. Deliveries are signed with the current one alone, and receivers that have only the previous one refuse them.`,
    remedy:
      'If an older secret key is missing, give it after the newest, separated by a comma. Otherwise find out who writes to these rows; a reaper erases previous secrets when their time is over.',
  }
  return [...current, previous]
}

function isReadable(keys: SecretKeys, secret: string, id: string): boolean {
  try {
    decrypt(keys, secret, id)
    return true
  } catch (error) {
    if (!isLeaseholdError(error)) throw error
    return false
  }
}

async function endpointProblems({ read, schema, thresholds }: Examination): Promise<Problem[]> {
  const { rows } = await read(async (tx) =>
    tx.query<{
      id: string
      url: string
      enabled: boolean
      reason: string | null
      since: Date
      failures: number
    }>({
      text: `select id::text as id, url, enabled, disabled_reason as reason, coalesce(disabled_at, failing_since) as since, failures
from ${quoteQualified(schema, 'webhook_endpoints')}
where (not enabled and disabled_reason like '%HTTP 410%')
  or (enabled and failing_since <= now() - $1::float8 * interval '1 millisecond')
order by coalesce(disabled_at, failing_since) limit 50`,
      values: [thresholds.circuitOpenMs],
    }),
  )
  return rows.map(({ id, url, enabled, reason, since, failures }) =>
    enabled
      ? {
          severity: 'warning' as const,
          text: `The endpoint ${id} (${withoutQuery(url)}) has been failing since ${since.toISOString()}, ${counted(failures, 'time')} in a row: its circuit is open, and its deliveries wait.`,
          remedy: `See why with \`leasehold webhooks list --endpoint ${id}${schemaFlag(schema)}\`; tell its owner, or disable it.`,
          repair: [`leasehold webhooks endpoints disable ${id}${schemaFlag(schema)}`],
        }
      : {
          severity: 'warning' as const,
          text: `The endpoint ${id} (${withoutQuery(url)}) ${reason}, and was disabled at ${since.toISOString()}.`,
          remedy: 'Delete it, or enable it when its owner wants deliveries again.',
          repair: [`leasehold webhooks endpoints delete ${id}${schemaFlag(schema)}`],
        },
  )
}

/** A query may contain a token. */
function withoutQuery(url: string): string {
  return url.replace(/[?#].*$/s, '').replace(/\/\/[^/]*@/, '//')
}

/** Retention runs every few minutes; a row that is a day too old was forgotten. */
const TOLERANCE_MS = DAY_MS

/** How many of the first rows of each bucket are read. */
const FIRST_ROWS = 200

/**
 * How long rows are retained is known from leasehold.config, if it declares the worker. Otherwise the default counts, and
 * only where no process is alive that would apply another one.
 */
async function retentionProblems(x: Examination): Promise<Problem[]> {
  const { read, schema } = x
  const finished = [
    { name: 'outbox', setting: 'publishedMs', at: 'published_at', is: "status = 'PUBLISHED'" },
    {
      name: 'webhook_outbox',
      setting: 'deliveredMs',
      at: 'delivered_at',
      is: "delivery_status = 'delivered'",
    },
  ] as const
  return read(async (tx) => {
    const problems: Problem[] = []
    for (const { name, setting, at, is } of finished) {
      const table = `${schema}.${name}`
      const declared = [...x.declaredTables, ...x.ownTables].find(
        (each) => tableName(each.table) === table && each.retention !== undefined,
      )
      if (declared === undefined && (await unreapedTables(tx, schema, [table])).length === 0) continue
      const keepMs = retained(declared?.retention, setting)
      if (keepMs === null) continue
      const oldest = await oldestOf(tx, schema, name, at, is)
      if (oldest === undefined || x.now() - oldest.getTime() < keepMs + TOLERANCE_MS) continue
      problems.push({
        severity: 'warning',
        text: `Rows of ${table} that were finished at ${oldest.toISOString()} are still there, though they are retained for ${counted(Math.round(keepMs / DAY_MS), 'day')}.`,
        remedy:
          'Retention is part of the processes that reap the table: run one. If one runs, its log says what stops it.',
        repair: [runReaper(schema)],
      })
    }
    const { rows } = await tx.query<{ count: number }>({
      text: `select count(*)::int as count from ${quoteQualified(schema, 'workers')}
where coalesce(stopped_at, died_at, last_seen_at) < now() - interval '3 days'`,
    })
    const forgotten = rows[0]?.count ?? 0
    if (forgotten > 0)
      problems.push({
        severity: 'warning',
        text: `${counted(forgotten, 'worker process that ended days ago is', 'worker processes that ended days ago are')} still in the registry. A reaper removes them after one day.`,
        remedy:
          'Maintenance is part of the processes that reap: run one. If one runs, its log says what stops it.',
        repair: [runReaper(schema)],
      })
    return problems
  })
}

function retained(retention: object | 'off' | undefined, setting: string): number | null {
  if (retention === 'off') return null
  const given: unknown = retention === undefined ? undefined : Reflect.get(retention, setting)
  return given === null ? null : typeof given === 'number' ? given : 7 * DAY_MS
}

/** The first rows of a bucket are the oldest ones. */
async function oldestOf(
  tx: Queryable,
  schema: string,
  name: string,
  at: string,
  is: string,
): Promise<Date | undefined> {
  let oldest: Date | undefined
  for (const bucket of await ownBuckets(tx, schema)) {
    const { rows } = await tx.query<{ at: Date | null }>({
      text: `select min(at) as at from (
  select ${at} as at, ${is} as finished from ${quoteQualified(schema, name)}
  where bucket = $1::smallint order by id limit ${FIRST_ROWS}
) as first where finished`,
      values: [bucket],
    })
    const found = rows[0]?.at ?? undefined
    if (found !== undefined && (oldest === undefined || found < oldest)) oldest = found
  }
  return oldest
}

/** How many waiting rows of each kind are read: about 50 ms. */
const MAX_WAITING_READ = 100_000

async function aheadProblems({ read, schema }: Examination): Promise<Problem[]> {
  const found = await read(async (tx) => findWrittenAhead(tx, schema, MAX_WAITING_READ))
  return found
    .filter(({ count }) => count.count > 0)
    .map(({ table, count: { count, exact }, longestMs, repair }) => {
      const rows = counted(count, `row of ${schema}.${table} waits`, `rows of ${schema}.${table} wait`)
      const it = count === 1 ? 'it was' : 'they were'
      return {
        severity: 'warning' as const,
        text: `${exact ? '' : 'At least '}${rows} only because the clock of the database was ahead when ${it} written, for up to ${duration(longestMs)}; so do later rows of the same ordering keys.`,
        remedy: 'Make sure that the clock is right now, and make them due.',
        repair: [repair],
      }
    })
}

export const ROW_CHECKS: readonly Check[] = [
  { id: 'rows-dead', title: 'dead events, failed deliveries and jobs', needs: 'tables', run: deadProblems },
  {
    id: 'rows-suspects',
    title: 'rows whose leases have expired twice or more',
    needs: 'tables',
    run: suspectProblems,
  },
  {
    id: 'rows-ahead',
    title: 'rows that wait because the clock was ahead',
    needs: 'tables',
    run: aheadProblems,
  },
  { id: 'rows-held-up', title: 'ordering keys that are held up', needs: 'tables', run: heldUpProblems },
  {
    id: 'rows-retention',
    title: 'rows that retention should have deleted',
    needs: 'tables',
    run: retentionProblems,
  },
  {
    id: 'webhooks-secrets',
    title: 'secrets that the secret key cannot decrypt',
    needs: 'tables',
    run: secretProblems,
  },
  {
    id: 'webhooks-endpoints',
    title: 'endpoints that cannot be reached',
    needs: 'tables',
    run: endpointProblems,
  },
]
