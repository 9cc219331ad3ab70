/** `leasehold status`: which worker processes run, and how much is waiting in each table. */
import { messageOf } from '../errors.ts'
import { tableName } from '../lease/index.ts'
import { pendingAge, pendingCount } from '../lease/backlog.ts'
import {
  countByStatus,
  oldestPending,
  type OldestPending,
  type StatusCounts,
} from '../outbox/admin/counts.ts'
import {
  type HeldUpKey,
  keysHeldUp,
  type KeysHeldUp,
  MAX_KEYS,
  MAX_WAITING,
} from '../outbox/admin/held-up-keys.ts'
import { withCatalogPath } from '../postgres/catalog-path.ts'
import { isMissingTable } from '../postgres/failures.ts'
import type { Database } from '../postgres/index.ts'
import { countSync, type SyncCounts } from '../sync/admin/counts.ts'
import { progressOfAll, type ProgressOfAll } from '../sync/admin/progress.ts'
import {
  countDeliveries,
  type DeliveryCounts,
  oldestPendingDelivery,
  type OldestPendingDelivery,
} from '../webhooks/admin/counts.ts'
import {
  type EndpointSummaries,
  type EndpointSummary,
  MAX_PENDING_COUNTED,
  summariseEndpoints,
} from '../webhooks/admin/endpoint-summary.ts'
import { listWorkers, type WorkDeclaration, type WorkerRow } from '../worker/index.ts'
import type { Run } from './command.ts'
import { withOwnTable } from './database.ts'
import { isSet } from './flags.ts'
import { columns, countText, duration, grouped, printableJson, relative } from './output.ts'
import { jobJson, jobsText } from './sync/progress-text.ts'
import { watch, watchFlags } from './watch.ts'

/** A table whose rows cannot be counted within this time is shown without numbers. */
const COUNT_TIMEOUT_MS = 5_000

/** How many blocked keys, endpoints and jobs are listed. */
const MAX_LISTED = 10

/** The tables of the applications have sections of their own. */
export const APPLICATION_TABLES = ['outbox', 'webhook_outbox', 'sync_jobs', 'sync_checkpoints']

export async function status(run: Run): Promise<number> {
  const { loaded, print, flags, terminal } = run
  const { watches, everyMs } = watchFlags(flags)
  const json = isSet(flags, 'json')
  const redraws = watches && terminal.width !== undefined && !json
  return withOwnTable(run, async (db, schema) => {
    const read = async (): Promise<Status> => readStatus(db, schema, loaded.settings.workers)
    const format = (found: Status): string => {
      if (json) return printableJson(statusJson(found), watches ? 0 : undefined)
      return statusText(found, schema, new Date(), terminal.width)
    }
    if (watches)
      return watch(run, {
        read,
        format,
        everyMs,
        redraws: redraws ? 'screen' : false,
        end: json ? '\n' : '\n\n',
      })
    print(`${format(await read())}\n`)
    return 0
  })
}

interface Status {
  readonly processes: readonly WorkerRow[]
  readonly unreapedTables: readonly string[]
  readonly outbox: Awaited<ReturnType<typeof readOutbox>> | { readonly problem: string }
  readonly webhooks: Awaited<ReturnType<typeof readWebhooks>> | { readonly problem: string }
  readonly sync: Awaited<ReturnType<typeof readSync>> | { readonly problem: string }
  readonly tables: readonly Awaited<ReturnType<typeof readTable>>[]
}

async function readStatus(
  db: Database,
  schema: string,
  declared: readonly WorkDeclaration[],
): Promise<Status> {
  // Only the conditions of declared tables, which are the user's, need the search_path of the role.
  const catalog = withCatalogPath(db)
  const processes = await listWorkers(catalog, schema)
  const outbox = await readOrProblem('outbox', schema, async () => readOutbox(catalog, schema))
  const webhooks = await readOrProblem('webhooks', schema, async () => readWebhooks(catalog, schema))
  const sync = await readOrProblem('sync', schema, async () => readSync(catalog, schema))
  const tables = await Promise.all(
    declaredTables(declared, schema).map(async (table) => readTable(db, table)),
  )
  const unreapedTables = unreaped(processes, leasedRows(schema, { outbox, webhooks, sync, tables }))
  return { processes, unreapedTables, outbox, webhooks, sync, tables }
}

function statusJson({ processes, unreapedTables, outbox, webhooks, sync, tables }: Status): object {
  return {
    workers: processes,
    unreapedTables,
    outbox: outboxJson(outbox),
    webhooks: webhooksJson(webhooks),
    sync: syncJson(sync),
    tables,
  }
}

function statusText(
  { processes, unreapedTables, outbox, webhooks, sync, tables }: Status,
  schema: string,
  now: Date,
  width: number | undefined,
): string {
  return [
    workersText(processes, now, unreapedTables, width),
    outboxText(outbox, schema, now, width),
    webhooksText(webhooks, schema, now, width),
    syncText(sync, schema, width),
    ...(tables.length === 0 ? [] : [tablesText(tables)]),
  ].join('\n\n')
}

/** What was read, or why it could not be read. */
type Read<Status> = Status | { readonly problem: string }

async function readOrProblem<Status>(
  application: string,
  schema: string,
  read: () => Promise<Status>,
): Promise<Read<Status>> {
  try {
    return await read()
  } catch (error) {
    if (isMissingTable(error))
      return { problem: `the schema ${schema} has no ${application} yet: run \`leasehold migrate\`` }
    return { problem: messageOf(error) }
  }
}

// The worker processes.

function workersText(
  processes: readonly WorkerRow[],
  now: Date,
  unreapedTables: readonly string[],
  width: number | undefined,
): string {
  const present = processes.filter(({ state }) => state !== 'stopped')
  const stopped = processes.length - present.length
  const stoppedText = stopped === 0 ? '' : `\n${stopped} more stopped within the last day.`
  if (present.length === 0) return `No workers.${stoppedText}`
  const rows = present.map(({ id, state, roles, inFlight, lastSeenAt, version }) => [
    id,
    state,
    roles.join(', '),
    String(inFlight),
    `${duration(now.getTime() - lastSeenAt.getTime())} ago`,
    version,
  ])
  const headings = ['WORKER', 'STATE', 'ROLES', 'IN FLIGHT', 'LAST SEEN', 'VERSION']
  return `${columns([headings, ...rows])}${stoppedText}${reaperWarning(present, unreapedTables)}${pausesText(present, now, width)}`
}

/** Workers that do not claim: their target is unavailable, or an operator paused them. */
function pausesText(present: readonly WorkerRow[], now: Date, width: number | undefined): string {
  const rows = present.flatMap(({ id, state, paused }) =>
    state !== 'alive'
      ? []
      : paused.map(({ worker, reason, since, error = '' }) => [
          worker,
          id,
          reason,
          duration(now.getTime() - Date.parse(since)),
          error,
        ]),
  )
  if (rows.length === 0) return ''
  return `\n\n${columns([['PAUSED', 'WORKER', 'REASON', 'FOR', 'ERROR'], ...rows], width)}`
}

function reaperWarning(present: readonly WorkerRow[], unreapedTables: readonly string[]): string {
  const remedy = 'run `leasehold work --only reaper`.'
  if (unreapedTables.length > 0)
    return `\nNo reaper is alive for ${unreapedTables.join(', ')}, where rows are leased: ${remedy}`
  if (present.some(({ state, reaps }) => state === 'alive' && reaps.length > 0)) return ''
  return `\nNo reaper is alive: ${remedy}`
}

/** Tables with leased rows that no live process reaps: there a worker that dies leaves its rows leased for ever. */
function unreaped(processes: readonly WorkerRow[], leased: ReadonlyMap<string, number>): string[] {
  const reaped = new Set(processes.flatMap(({ state, reaps }) => (state === 'alive' ? reaps : [])))
  return [...leased].flatMap(([table, count]) => (count > 0 && !reaped.has(table) ? [table] : []))
}

/** How many rows of each table are leased, as far as it could be read. */
function leasedRows(
  schema: string,
  read: {
    readonly outbox: Read<OutboxStatus>
    readonly webhooks: Read<WebhooksStatus>
    readonly sync: Read<SyncStatus>
    readonly tables: readonly TableStatus[]
  },
): ReadonlyMap<string, number> {
  const { outbox, webhooks, sync, tables } = read
  return new Map([
    [`${schema}.outbox`, 'problem' in outbox ? 0 : outbox.counts.CLAIMED.count],
    [`${schema}.webhook_outbox`, 'problem' in webhooks ? 0 : webhooks.counts.inFlight.count],
    [`${schema}.sync_checkpoints`, 'problem' in sync ? 0 : sync.counts.chunksLeased.count],
    ...tables.map((table) => [table.table, 'problem' in table ? 0 : table.inFlight] as const),
  ])
}

// The outbox: how many events are in each state, how long the oldest has waited, and which keys are held up.

interface OutboxStatus {
  readonly counts: StatusCounts
  readonly oldestPending: OldestPending | undefined
  readonly keysHeldUp: KeysHeldUp
}

async function readOutbox(db: Database, schema: string): Promise<OutboxStatus> {
  const options = { schema, timeoutMs: COUNT_TIMEOUT_MS }
  return {
    counts: await countByStatus(db, options),
    oldestPending: await oldestPending(db, options),
    keysHeldUp: await keysHeldUp(db, { ...options, limit: MAX_LISTED }),
  }
}

function outboxText(read: Read<OutboxStatus>, schema: string, now: Date, width: number | undefined): string {
  const name = `${schema}.outbox`
  if ('problem' in read) return `${name}: ${read.problem}`
  const { counts, keysHeldUp: held } = read
  const oldest = read.oldestPending === undefined ? '-' : duration(read.oldestPending.waitingMs)
  const states = [counts.PENDING, counts.CLAIMED, counts.PUBLISHED, counts.DEAD]
  const table = columns([
    ['OUTBOX', 'PENDING', 'IN FLIGHT', 'PUBLISHED', 'DEAD', 'OLDEST PENDING'],
    [name, ...states.map(countText), oldest],
  ])
  return held.keys.length === 0 ? table : `${table}\n\n${keysText(held, now, width)}`
}

function outboxJson(read: Read<OutboxStatus>): unknown {
  if ('problem' in read) return read
  const { PENDING, CLAIMED, PUBLISHED, DEAD } = read.counts
  return {
    counts: { pending: PENDING, inFlight: CLAIMED, published: PUBLISHED, dead: DEAD },
    oldestPending: read.oldestPending ?? null,
    keysHeldUp: read.keysHeldUp.keys,
    moreKeysHeldUp: read.keysHeldUp.more || read.keysHeldUp.partial,
  }
}

function keysText({ keys, more, partial }: KeysHeldUp, now: Date, width: number | undefined): string {
  const rows = keys.map((key) => [
    key.orderingKey,
    key.state,
    key.id,
    String(key.attempts),
    atMost(key.waiting, MAX_WAITING),
    nextTry(key, now),
    key.lastError ?? '',
  ])
  const headings = ['KEY HELD UP', 'STATE', 'BY EVENT', 'FAILED', 'WAITING', 'NEXT TRY', 'LAST ERROR']
  const remarks = [
    ...(more ? ['There are more.'] : []),
    ...(partial ? [`Only the first ${grouped(MAX_KEYS)} keys with unfinished events were examined.`] : []),
    ...(keys.some(({ state }) => state === 'parked')
      ? ["A parked key waits for you: `leasehold outbox unblock <key> --reason '…'`."]
      : []),
  ]
  return [columns([headings, ...rows], width), ...remarks].join('\n')
}

function nextTry({ state, availableAt }: HeldUpKey, now: Date): string {
  if (state === 'parked') return '-'
  if (availableAt === null) return 'now'
  return availableAt > now ? relative(availableAt, now) : 'due'
}

// Webhooks: how many deliveries are in each state, how long the oldest has waited, and which endpoints get nothing.

interface WebhooksStatus {
  readonly counts: DeliveryCounts
  readonly oldestPending: OldestPendingDelivery | undefined
  readonly endpoints: EndpointSummaries
}

async function readWebhooks(db: Database, schema: string): Promise<WebhooksStatus> {
  const options = { schema, timeoutMs: COUNT_TIMEOUT_MS }
  return {
    counts: await countDeliveries(db, options),
    oldestPending: await oldestPendingDelivery(db, options),
    endpoints: await summariseEndpoints(db, { ...options, limit: MAX_LISTED }),
  }
}

function webhooksText(
  read: Read<WebhooksStatus>,
  schema: string,
  now: Date,
  width: number | undefined,
): string {
  const name = `${schema}.webhook_outbox`
  if ('problem' in read) return `${name}: ${read.problem}`
  const { counts, endpoints } = read
  const oldest = read.oldestPending === undefined ? '-' : duration(read.oldestPending.waitingMs)
  const states = [counts.pending, counts.inFlight, counts.delivered, counts.failed]
  const table = columns([
    ['WEBHOOKS', 'PENDING', 'IN FLIGHT', 'DELIVERED', 'FAILED', 'OLDEST PENDING'],
    [name, ...states.map(countText), oldest],
  ])
  return endpoints.endpoints.length === 0 ? table : `${table}\n\n${endpointsText(endpoints, now, width)}`
}

function webhooksJson(read: Read<WebhooksStatus>): unknown {
  if ('problem' in read) return read
  return {
    counts: read.counts,
    oldestPending: read.oldestPending ?? null,
    endpoints: read.endpoints.endpoints,
    moreEndpoints: read.endpoints.more,
  }
}

function endpointsText({ endpoints, more }: EndpointSummaries, now: Date, width: number | undefined): string {
  const rows = endpoints.map((endpoint) => [
    endpoint.url ?? endpoint.id,
    endpoint.state,
    atMost(endpoint.pending, MAX_PENDING_COUNTED),
    grouped(endpoint.failed),
    endpointDetail(endpoint, now),
  ])
  const remarks = [
    ...(more ? ['There are more.'] : []),
    ...(endpoints.some(({ failed }) => failed > 0)
      ? ["To replay failed deliveries: `leasehold webhooks replay --since … --reason '…'`."]
      : []),
  ]
  const headings = ['ENDPOINT', 'STATE', 'PENDING', 'FAILED', 'DETAILS']
  return [columns([headings, ...rows], width), ...remarks].join('\n')
}

function endpointDetail({ state, reason, since, openUntil }: EndpointSummary, now: Date): string {
  const forLong = since === null ? '' : ` for ${duration(now.getTime() - since.getTime())}`
  const details: Readonly<Record<EndpointSummary['state'], string>> = {
    deleted: 'a dispatcher will soon give up its pending deliveries',
    disabled: `disabled${forLong}${reason === null ? '' : `: ${reason}`}`,
    open: `failing${forLong}; next probe ${openUntil === null ? 'soon' : relative(openUntil, now)}`,
    probing: `failing${forLong}; the next delivery is a probe`,
    ok: '',
  }
  return details[state]
}

// Sync: how many jobs and chunks are in each state, and how far the open jobs are.

interface SyncStatus {
  readonly counts: SyncCounts
  readonly progress: ProgressOfAll
}

async function readSync(db: Database, schema: string): Promise<SyncStatus> {
  const options = { schema, timeoutMs: COUNT_TIMEOUT_MS }
  return {
    counts: await countSync(db, options),
    progress: await progressOfAll(db, { ...options, limit: MAX_LISTED }),
  }
}

function syncText(read: Read<SyncStatus>, schema: string, width: number | undefined): string {
  const name = `${schema}.sync_jobs`
  if ('problem' in read) return `${name}: ${read.problem}`
  const { counts, progress } = read
  const { open, completed, failed, chunksWaiting, chunksLeased } = counts
  const table = columns([
    ['SYNC', 'OPEN', 'COMPLETED', 'FAILED', 'CHUNKS WAITING', 'CHUNKS IN FLIGHT'],
    [name, ...[open, completed, failed, chunksWaiting, chunksLeased].map(countText)],
  ])
  if (progress.jobs.length === 0) return table
  const remark = progress.jobs.some(({ phase }) => phase === 'failed')
    ? "\nTo replay failed jobs: `leasehold sync replay <job> --reason '…'`."
    : ''
  return `${table}\n\n${jobsText(progress, width)}${remark}`
}

function syncJson(read: Read<SyncStatus>): unknown {
  if ('problem' in read) return read
  const { jobs, more } = read.progress
  const { chunksLeased: chunksInFlight, ...counts } = read.counts
  return { counts: { ...counts, chunksInFlight }, jobs: jobs.map(jobJson), moreJobs: more }
}

// Other tables, which the config file declares workers for.

type TableStatus = { readonly table: string } & Read<{
  readonly pending: number
  readonly inFlight: number
  /** Rows are counted up to this number. */
  readonly most: number
  /** Null: the table has no timestamp that tells it. */
  readonly oldestPendingMs: number | null
}>

function declaredTables(workers: readonly WorkDeclaration[], schema: string): WorkDeclaration['table'][] {
  const tables = new Map(workers.map(({ table }) => [tableName(table), table]))
  for (const name of APPLICATION_TABLES) tables.delete(`${schema}.${name}`)
  return [...tables.values()]
}

async function readTable(db: Database, table: WorkDeclaration['table']): Promise<TableStatus> {
  const name = tableName(table)
  try {
    return await db.transaction(
      async (tx) => {
        const { leased: inFlight, ...counts } = await pendingCount(tx, table)
        const ageSeconds = await pendingAge(table)(tx)
        const oldestPendingMs = ageSeconds === undefined ? null : ageSeconds * 1_000
        return { table: name, ...counts, inFlight, oldestPendingMs }
      },
      { queryTimeoutMs: COUNT_TIMEOUT_MS },
    )
  } catch (error) {
    return { table: name, problem: messageOf(error) }
  }
}

function tablesText(tables: readonly TableStatus[]): string {
  return columns([['TABLE', 'PENDING', 'IN FLIGHT', 'OLDEST PENDING'], ...tables.map(tableCells)])
}

function tableCells(read: TableStatus): string[] {
  if ('problem' in read) return [read.table, '?', '?', read.problem]
  const { table, pending, inFlight, most, oldestPendingMs } = read
  const oldest = oldestPendingMs === null ? 'unknown' : pending === 0 ? '-' : duration(oldestPendingMs)
  return [table, atMost(pending, most), atMost(inFlight, most), oldest]
}

/** `12`, or `1,000 or more` where nobody counted further. */
function atMost(count: number, most: number): string {
  return count >= most ? `${grouped(most)} or more` : grouped(count)
}
