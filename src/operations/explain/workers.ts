/** The reasons in the worker processes: what the registry says of those that would run the row, hold it, or reap its table. */
import { duration, relative } from '../../figures.ts'
import { type LeaseTable, tableName } from '../../lease/table.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { listWorkersOfTable, type WorkerOfTable } from '../../worker/registry/registry.ts'
import { storedSettings, type StoredSettings } from '../../worker/registry/stored-settings.ts'
import type { WorkerSettings } from '../../worker/settings.ts'
import { appliedSettings, renewalsOf } from '../renewals.ts'
import { schemaFlag } from '../shown-commands.ts'
import { at, because, reason, type Reason, when } from './reasons.ts'
import type { LeaseNotes, RowFacts } from './row.ts'

/** A table, and who processes it. */
export interface WorkedTable {
  readonly table: LeaseTable
  /** The names of its workers, as the registry has them. None: no process was ever started with one. */
  readonly workers: readonly string[]
  /** Which buckets each of them serves. Default: all. */
  readonly buckets?: readonly (number | 'all')[]
}

/** What the registry says of the processes that have to do with a table. */
export interface Fleet extends WorkedTable {
  readonly schema: string
  readonly all: readonly WorkerOfTable[]
  /** Alive, with a worker of the table. */
  readonly serving: readonly WorkerOfTable[]
  /** Alive, and takes back its expired leases. */
  readonly reaping: readonly WorkerOfTable[]
  /** By the name of the worker. */
  readonly stored: ReadonlyMap<string, StoredSettings>
}

export async function readFleet(
  tx: Queryable,
  worked: WorkedTable,
  schema: string,
  { owner }: RowFacts,
): Promise<Fleet> {
  const { workers } = worked
  const table = tableName(worked.table)
  const all = await listWorkersOfTable(tx, schema, { names: workers, table, owner })
  const stored = await storedSettings(tx, schema)
  const alive = all.filter(({ state }) => state === 'alive')
  return {
    ...worked,
    schema,
    all,
    serving: alive.filter(({ roles }) => workers.some((each) => roles.includes(each))),
    reaping: alive.filter(({ reaps }) => reaps.includes(table)),
    stored: new Map(stored.map((each) => [each.name, each])),
  }
}

/** The settings that a process applies to its workers of the table, as far as they can work. */
function settingsOf(process: WorkerOfTable, { workers, stored }: Fleet): WorkerSettings[] {
  return workers.flatMap((name) => appliedSettings(process.declared[name], stored.get(name)?.value) ?? [])
}

export function leaseNotes(row: RowFacts, fleet: Fleet): LeaseNotes {
  return { owner: ownerNote(row, fleet), reaper: reaperNote(fleet) }
}

/** Whether the owner of the lease is alive, and when it renewed the lease last. */
function ownerNote(row: RowFacts, fleet: Fleet): string {
  const { owner, now } = row
  if (owner === null) return ''
  const process = fleet.all.find(({ id }) => id === owner)
  if (process === undefined) return `${owner} is not in the registry of worker processes`
  const seen = `last seen ${relative(process.lastSeenAt, now)}`
  const notes: Readonly<Record<WorkerOfTable['state'], string>> = {
    alive: `it is alive, ${seen}${renewalNote(row, process, fleet)}`,
    missing: `it has been missing${when('since', process.missingSince, now)}, ${seen}, and its leases are taken back unless it returns`,
    dead: `it has been dead${when('since', process.diedAt, now)}, and a reaper takes its leases back`,
    stopped: `it stopped${when('at', process.stoppedAt, now)}`,
  }
  return notes[process.state]
}

function renewalNote(
  { until, heldSince, now, isLeaseOver }: RowFacts,
  process: WorkerOfTable,
  fleet: Fleet,
): string {
  const [settings] = settingsOf(process, fleet)
  if (settings === undefined || until === null || isLeaseOver) return ''
  const { renewedAt, renewals, isLate } = renewalsOf({ since: heldSince, until, now }, settings)
  const lease = `, with leases of ${duration(settings.leaseMs)}`
  const late = isLate ? `; a renewal is late, they come every ${duration(settings.heartbeatMs)}` : ''
  if (renewals === 0) return `${lease}, and has not renewed it yet${late}`
  if (renewedAt === null) return lease
  const ago = duration(now.getTime() - renewedAt.getTime())
  if (renewals === null) return `${lease}, and claimed or renewed it ${ago} ago${late}`
  const times = renewals === 1 ? 'about once' : `about ${renewals} times`
  return `${lease}, and renewed it ${times}, last ${ago} ago${late}`
}

function reaperNote(fleet: Fleet): string {
  const intervals = fleet.reaping.flatMap((process) =>
    settingsOf(process, fleet).map(({ reaperIntervalMs }) => reaperIntervalMs),
  )
  if (intervals.length === 0) return ''
  return `a reaper looks for expired leases every ${duration(Math.min(...intervals))}`
}

/** Why nobody takes the lease back when it has expired. */
export function withoutReaper(
  { owner, isLeaseOver }: RowFacts,
  { all, reaping, table, schema }: Fleet,
): Reason[] {
  const holder = all.find(({ id }) => id === owner)
  if (reaping.length > 0 || (!isLeaseOver && holder?.state === 'alive')) return []
  const text = `No worker process that is alive takes back the expired leases of ${tableName(table)}.`
  return [reason('noReaper', text, { command: `leasehold work --only reaper${schemaFlag(schema)}` })]
}

/** Why no worker claims the row, although it may be claimable. */
export function withoutWorker(
  row: RowFacts,
  description: { readonly group?: string },
  fleet: Fleet,
): Reason[] {
  return [
    ...notServed(row, fleet),
    ...paused(row, fleet),
    ...otherBucket(row, fleet),
    ...otherGroup(row, fleet, description.group),
  ]
}

const MAX_NAMED = 5

function ids(processes: readonly WorkerOfTable[], describe = ({ id }: WorkerOfTable): string => id): string {
  const named = processes.slice(0, MAX_NAMED).map(describe)
  const more = processes.length - named.length
  return [...named, ...(more > 0 ? [`${more} more`] : [])].join(', ')
}

/** `web-1 with 12 in flight, web-2 with 3 in flight` */
function withInFlight(processes: readonly WorkerOfTable[]): string {
  return ids(processes, ({ id, inFlight }) => `${id} with ${inFlight} in flight`)
}

function notServed({ now }: RowFacts, { serving, workers, all, table, schema }: Fleet): Reason[] {
  if (serving.length > 0) return []
  const isKnown = workers.length > 0
  const runs = isKnown ? `the worker ${workers.join(' or ')}` : `a worker of ${tableName(table)}`
  const command = isKnown ? `leasehold work --only ${workers.join(',')}${schemaFlag(schema)}` : undefined
  const ran = all.filter(({ declared }) => workers.some((name) => name in declared))
  // A process that stops keeps its rows in flight, and gives up the names of its workers.
  const stopping = ran.filter(({ state, inFlight }) => state === 'alive' && inFlight > 0)
  if (stopping.length > 0) {
    const text = `Every worker process that ran ${runs} is stopping: ${withInFlight(stopping)}.`
    return [reason('workersStopping', text, { by: stopping[0]?.id, command })]
  }
  const none = `No worker process that is alive runs ${runs}`
  const last = ran.find(({ state }) => state !== 'alive')
  if (last === undefined) return [reason('noWorker', `${none}.`, { command })]
  const since = last.stoppedAt ?? last.diedAt ?? last.missingSince ?? last.lastSeenAt
  const text = `${none}; the last one, ${last.id}, has been ${last.state} since ${at(since, now)}.`
  return [reason('noWorker', text, { since, by: last.id, command })]
}

const PAUSED_BECAUSE = {
  operator: 'by itself',
  saturated: 'because its target accepts nothing at the moment',
  unhealthy: 'because the probe of its target fails',
  stopping: 'because it stops',
} as const

/** Paused by the settings, which all follow; or each by itself. */
function paused({ now }: RowFacts, { serving, workers, stored, schema }: Fleet): Reason[] {
  const bySettings = workers.flatMap((name) => stored.get(name) ?? []).filter(({ value }) => value.paused)
  if (workers.length > 0 && bySettings.length === workers.length)
    return bySettings.map(({ name, changedAt, changedBy }) =>
      reason(
        'workersPaused',
        `The settings pause the worker ${name}; ${changedBy} changed them at ${at(changedAt, now)}.`,
        {
          since: changedAt,
          by: changedBy,
          command: `leasehold settings resume ${name}${schemaFlag(schema)}`,
        },
      ),
    )
  const pauses = serving.flatMap(({ id, roles, paused: known }) => {
    const found = workers
      .filter((name) => roles.includes(name))
      .map((name) => known.find(({ worker }) => worker === name))
    const [first] = found
    return first !== undefined && found.every((pause) => pause !== undefined) ? [{ id, ...first }] : []
  })
  const [first] = pauses
  if (first === undefined || pauses.length < serving.length) return []
  const since = new Date(Math.min(...pauses.map((pause) => Date.parse(pause.since))))
  const others = pauses.length === 1 ? '' : ` (and ${pauses.length - 1} more)`
  const text = `The worker ${first.worker} is paused in every process that runs it: in ${first.id}${others} since ${at(since, now)}, ${PAUSED_BECAUSE[first.reason]}${because(first.error ?? null)}`
  return [reason('workersPaused', text, { since, by: first.id })]
}

function otherBucket({ bucket }: RowFacts, { buckets = [], workers, table }: Fleet): Reason[] {
  if (bucket === undefined || buckets.length === 0) return []
  if (buckets.some((each) => each === 'all' || each === bucket)) return []
  const text = `It is in bucket ${bucket} of ${tableName(table)}, and the worker ${workers.join(' or ')} serves only bucket ${buckets.join(', ')}: declare the worker with \`bucket: 'all'\`.`
  return [reason('bucketNotServed', text)]
}

function otherGroup({ group }: RowFacts, { serving, workers }: Fleet, word = 'group'): Reason[] {
  if (group === null || serving.length === 0) return []
  const known = serving.map(({ declared }) => workers.flatMap((name) => declared[name]?.groups ?? []))
  // A process that does not tell its groups may have any.
  if (known.some((groups) => groups.length === 0 || groups.includes(group))) return []
  const all = [...new Set(known.flat())].toSorted().slice(0, MAX_NAMED)
  const have = `${ids(serving)} ${serving.length === 1 ? 'has' : 'have'} ${all.join(', ')}`
  const text = `No worker process that is alive has the ${word} ${JSON.stringify(group)}: ${have}.`
  return [reason('groupNotServed', text, { by: group })]
}

/** From then on the row should have been claimed, and a constraint or trigger may refuse it. */
const SUSPICIOUS_AFTER_MS = 10_000

/** Nothing keeps the row from running. `trial` is the command that tries to claim it. */
export function claimable(row: RowFacts, { serving }: Fleet, trial: string | undefined): Reason {
  const { now, dueAt } = row
  const waitedMs = dueAt === null ? 0 : now.getTime() - dueAt.getTime()
  const due = dueAt === null ? 'it can be claimed' : `it has been due for ${duration(waitedMs)}`
  const failed = row.attempts === 0 ? '.' : `; the last attempt failed${because(row.lastError)}`
  const processes = serving.length === 1 ? 'the worker process' : `${serving.length} worker processes`
  const by = `${processes} (${withInFlight(serving)}) will claim it when there is room`
  return reason('claimable', `Nothing keeps it from running: ${due}, and ${by}${failed}`, {
    since: dueAt,
    command: waitedMs >= SUSPICIOUS_AFTER_MS ? trial : undefined,
  })
}
