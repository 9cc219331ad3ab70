/**
 * Why a row is not running. This file knows what any lease table declares, and what the database itself shows: locks and
 * snapshots. `src/admin/explain.ts` adds the worker processes, and each application what only it knows.
 *
 * Everything is read. The one exception is `tryClaim`, which an operator asks for: it claims the row and rolls back.
 */
import { counted, duration, relative } from '../figures.ts'
import { messageOf, sentence } from '../errors.ts'
import { isLockConflict, isServerError } from '../postgres/failures.ts'
import type { Database } from '../postgres/database.ts'
import { quoteIdentifier as quote } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { heldSnapshots } from '../postgres/snapshots.ts'
import { isDataError } from './data-errors.ts'
import type { TableShape } from './inspect.ts'
import { idValues } from './lease.ts'
import { StatementRunner } from './runner.ts'
import { and, type Parameters, parameters, statement } from './statement.ts'
import { canRest, type LeaseTable, type Sql, SUSPECT_EXPIRIES, tableName } from './table.ts'
import {
  claimableOrExpired,
  inBucket,
  orderingOf,
  rowIdSql,
  suspects,
  type TableSql,
  TOKEN_MARK,
} from './table-sql.ts'

/** Every reason there is. `docs/operations/explain.md` describes each; a test compares the two. */
export const REASON_CODES = [
  // Nothing keeps the row from running.
  'claimable',
  // The row itself
  'finished',
  'dead',
  'notClaimable',
  'scheduled',
  'retryWait',
  'resting',
  'leased',
  'leaseExpired',
  'suspect',
  // Its ordering key
  'waitsForRow',
  'keyParked',
  // The database
  'rowLocked',
  'tableLocked',
  'refused',
  'oldSnapshot',
  // Worker processes
  'noWorker',
  'workersStopping',
  'workersPaused',
  'noReaper',
  'bucketNotServed',
  'groupNotServed',
  // Webhooks
  'endpointDeleted',
  'endpointDisabled',
  'circuitOpen',
  'circuitProbing',
  'concurrencyLimit',
  'rateLimit',
  'noSecretKey',
  'secretUnreadable',
  // Sync
  'sourceRateLimit',
  'waitsForChunks',
  'notNeeded',
] as const

export type ReasonCode = (typeof REASON_CODES)[number]

export interface Reason {
  readonly code: ReasonCode
  /** One sentence, with the figures. */
  readonly text: string
  readonly since?: Date
  /** When this reason ends, if nothing else happens. */
  readonly until?: Date
  /** What it depends on: the id of a row, of a worker process or of an endpoint, or the pid of a session. */
  readonly by?: string
  /** The command line, or the SQL, that would change it. */
  readonly command?: string
}

/**
 * - `claimable`: as far as the row itself is concerned, a worker could claim it now.
 * - `waiting`: something has to happen first, or a time has to come.
 * - `leased`: a worker has it. `expired`: the lease is over, and nobody has taken the row back.
 * - `finished`: it will not be claimed any more, unless it is replayed.
 * - `unknown`: another session has locked the whole table, or waits to lock it, so that the row cannot be read.
 */
export type RowState = 'claimable' | 'waiting' | 'leased' | 'expired' | 'finished' | 'unknown'

export interface Explanation {
  /** `schema.table` */
  readonly table: string
  readonly id: string
  readonly state: RowState
  /** At least one. */
  readonly reasons: readonly Reason[]
}

/** A row by its id, and its bucket where the table has buckets. */
export interface RowAddress {
  readonly id: string
  readonly bucket?: number | undefined
}

/** What a table's rows are called, how they end, and what an operator can do with them. */
export interface RowDescription {
  /** `event` */
  readonly row: string
  /** What a group of rows is called: `definition`. Default `group`. */
  readonly group?: string
  /** How a row has ended, as SQL: a word such as `published`; null while it has not. */
  readonly ended?: Sql
  /** When it ended, as SQL. */
  readonly endedAt?: Sql
  /** Whether it is dead, as SQL. */
  readonly isDead?: Sql
  /** The command that makes a row due at once. */
  readonly retry?: (row: RowFacts) => string
  /** The command that brings a finished row back. */
  readonly replay?: (row: RowFacts) => string
  /** The command that lets the ordering key of this row continue. */
  readonly unblock?: (row: RowFacts) => string
  /** The command that explains a row, with further flags. */
  readonly explain: (row: RowAddress, flags?: string) => string
}

/** One row, as far as it matters for its lease. */
export interface RowFacts {
  readonly id: string
  readonly bucket: number | undefined
  /** By the clock of the database. */
  readonly now: Date
  /** The condition of the table is true. */
  readonly isClaimable: boolean
  /** And it is due, and not leased. */
  readonly isClaimableNow: boolean
  /** Rows of its ordering key after it have to wait. */
  readonly isUnfinished: boolean
  /** Null: the table has no due column, or the row has no due time. */
  readonly dueAt: Date | null
  readonly isDue: boolean
  /** It has an owner and an end, whether that has come or not. */
  readonly isLeased: boolean
  readonly owner: string | null
  readonly until: Date | null
  readonly isLeaseOver: boolean
  readonly token: string | null
  /** When it was claimed, where the table stores it. */
  readonly heldSince: Date | null
  readonly attempts: number
  readonly maxAttempts: number | null
  readonly isExhausted: boolean
  readonly expiries: number
  readonly lastError: string | null
  readonly orderingKey: string | null
  readonly group: string | null
  readonly ended: string | null
  readonly endedAt: Date | null
  readonly isDead: boolean
  /** The transaction that locked this version of the row, or is changing it, or did so before. */
  readonly xmax: string
}

/** Reads one row; undefined: there is none with this id. The statement concerns one bucket. */
export async function readRow(
  tx: Queryable,
  t: TableSql,
  description: RowDescription,
  { id, bucket }: RowAddress,
): Promise<RowFacts | undefined> {
  const values = idValues(t.table, id)
  const $ = parameters()
  const isRow = t.idColumns.map(({ name, type }, i) => `t.${name} = ${$(`id${i + 1}`, type)}`)
  const given = Object.fromEntries(values.map((value, i) => [`id${i + 1}`, value]))
  return (await readRows(tx, t, description, $, { ...given, bucket }, and(isRow, '  ')))[0]
}

/** The row of its ordering key that has to be finished before this one: the one in flight, or else the head. */
export async function readRowBefore(
  tx: Queryable,
  t: TableSql,
  description: RowDescription,
  row: RowFacts,
): Promise<RowFacts | undefined> {
  if (t.orderingKey === undefined || row.orderingKey === null || !row.isClaimable) return undefined
  const { key, id } = orderingOf(t)
  const { type } = t.orderingKey
  const read = async (which: Sql, order: string): Promise<RowFacts | undefined> => {
    const $ = parameters()
    const group = t.group === undefined ? '' : `t.${t.group.name} = ${$('group', t.group.type)}`
    // As a range, for the reason that `claim-by-key.ts` gives.
    const ofKey = [group, `t.${key} >= ${$('key', type)}`, `t.${key} <= ${$('key', type)}`, `(${which})`]
    const values = { bucket: row.bucket, group: row.group, key: row.orderingKey }
    const rows = await readRows(tx, t, description, $, values, and(ofKey, '  '), `${order} limit 1`)
    return rows[0]
  }
  const inFlight = await read(t.table.leased ?? 'false', '')
  const first =
    inFlight ?? (await read(t.table.ordering?.unfinished ?? 'false', `order by t.${key}, t.${id}`))
  return first === undefined || first.id === row.id ? undefined : first
}

async function readRows(
  tx: Queryable,
  t: TableSql,
  { ended, endedAt, isDead }: RowDescription,
  $: Parameters,
  values: Readonly<Record<string, unknown>>,
  where: string,
  rest = '',
): Promise<RowFacts[]> {
  const { table } = t
  const { availableAt, attempts } = table
  const finite = (moment: Sql): Sql => `case when isfinite(${moment}) then ${moment} end`
  const due = availableAt === undefined ? undefined : quote(availableAt)
  const max = attempts?.max
  const columns: Readonly<Record<string, Sql>> = {
    id: rowIdSql(t, 't.'),
    bucket: t.bucket === undefined ? 'null' : t.bucket.name,
    now: 'now()',
    isClaimable: `(${table.claimable}) is true`,
    isClaimableNow: `(${claimableOrExpired(t)
      .filter((condition) => condition !== '')
      .join(' and ')}) is true`,
    isUnfinished: `(${table.ordering?.unfinished ?? 'false'}) is true`,
    dueAt: due === undefined ? 'null::timestamptz' : finite(due),
    isDue: due === undefined ? 'true' : `(${due} <= now()) is true`,
    isLeased: `${t.owner} is not null and ${t.until} is not null`,
    owner:
      t.token === undefined ? `regexp_replace(${t.owner}, '${TOKEN_MARK}[0-9]+$', '')` : `${t.owner}::text`,
    until: finite(t.until),
    isLeaseOver: `(${t.until} <= now()) is true`,
    token: t.token === undefined ? tokenInOwner(t) : `${t.token}::text`,
    heldSince: heldSince(t),
    attempts: `coalesce(${t.attempts ?? '0'}, 0)::float8`,
    maxAttempts: `(${max === undefined ? 'null' : typeof max === 'number' ? String(max) : quote(max)})::float8`,
    isExhausted: `(${t.exhausted ?? 'false'}) is true`,
    expiries: `coalesce(${t.expiries ?? '0'}, 0)::float8`,
    lastError: attempts?.error === undefined ? 'null' : `${quote(attempts.error)}::text`,
    orderingKey: t.orderingKey === undefined ? 'null' : `${t.orderingKey.name}::text`,
    group: t.group === undefined ? 'null' : `${t.group.name}::text`,
    ended: `(${ended ?? 'null'})::text`,
    endedAt: `(${endedAt ?? 'null'})::timestamptz`,
    isDead: `(${isDead ?? 'false'}) is true`,
    xmax: t.buckets === undefined ? 't.xmax::text' : "'0'",
  }
  const selected = Object.entries(columns).map(([name, value]) => `${value} as ${quote(name)}`)
  const { text, parameters: names } = statement(
    table,
    'explain',
    $,
    `
select ${selected.join(',\n  ')}
from ${t.target} as t
where ${and([inBucket(t, $, 't.'), where], '  ')}
${rest}`,
  )
  const { rows } = await tx.query<RowFacts & { readonly bucket: number | null }>({
    text,
    values: names.map((name) => values[name]),
  })
  return rows.map((row) => ({ ...row, bucket: row.bucket ?? undefined }))
}

function tokenInOwner({ owner }: TableSql): Sql {
  return `substring(${owner} from '${TOKEN_MARK}([0-9]+)$')`
}

/** A column that a claim sets to the time; without a token column, the token itself is the time of the claim. */
function heldSince(t: TableSql): Sql {
  const stored = Object.entries(t.table.writes.claim).find(([, value]) => value.trim() === 'now()')?.[0]
  if (stored !== undefined) return `case when ${t.owner} is not null then ${quote(stored)} end`
  return t.token === undefined ? `to_timestamp(${tokenInOwner(t)}::float8 / 1000000)` : 'null::timestamptz'
}

/** A reason without the fields that are not known. */
export function reason(
  code: ReasonCode,
  text: string,
  details: {
    readonly [Field in 'since' | 'until' | 'by' | 'command']?: Reason[Field] | null | undefined
  } = {},
): Reason {
  const known = Object.entries(details).filter(([, value]) => value !== undefined && value !== null)
  return { code, text, ...Object.fromEntries(known) }
}

/** `2026-01-31T08:15:02.125Z (2 h ago)` */
export function at(moment: Date, now: Date): string {
  return `${moment.toISOString()} (${relative(moment, now)})`
}

/** What the registry says of the owner of the lease and of the reaper, as parts of a sentence. */
export interface LeaseNotes {
  readonly owner?: string
  readonly reaper?: string
}

const MAX_ERROR_CHARACTERS = 300

/** The last error as the end of a sentence. */
export function because(error: string | null): string {
  if (error === null || error === '') return '.'
  const text = error.length > MAX_ERROR_CHARACTERS ? `${error.slice(0, MAX_ERROR_CHARACTERS)}…` : error
  return `: ${sentence(text)}`
}

export function stateOf(row: RowFacts, before: RowFacts | undefined): RowState {
  if (row.isLeased) return row.isLeaseOver ? 'expired' : 'leased'
  if (!row.isClaimable) return 'finished'
  return row.isClaimableNow && before === undefined ? 'claimable' : 'waiting'
}

/** The reasons in the row itself and in its ordering key. */
export function reasonsInRow(
  table: LeaseTable,
  row: RowFacts,
  before: RowFacts | undefined,
  description: RowDescription,
  notes: LeaseNotes = {},
): Reason[] {
  const state = stateOf(row, before)
  if (state === 'finished') return [ending(table, row, description)]
  if (state === 'leased') return [leased(row, notes)]
  if (state === 'expired') return [expired(row, notes)]
  const reasons = notDue(table, row, description)
  return before === undefined ? reasons : [...reasons, waitsFor(row, before, description)]
}

function ending(table: LeaseTable, row: RowFacts, description: RowDescription): Reason {
  const { now, ended, endedAt, orderingKey, lastError } = row
  const when = endedAt === null ? '' : ` at ${at(endedAt, now)}`
  if (row.isDead) {
    const since = endedAt === null ? 'It is dead' : `It has been dead since ${at(endedAt, now)}`
    const isParked = row.isUnfinished && orderingKey !== null
    const parked = isParked ? `, and holds up its ordering key ${JSON.stringify(orderingKey)}` : ''
    const attempts = row.attempts === 0 ? '' : `, after ${counted(row.attempts, 'failed attempt')}`
    const died = ended === 'failed' ? `It failed${when}` : since
    return reason('dead', `${died}${attempts}${parked}${because(lastError)}`, {
      since: endedAt,
      command: isParked ? description.unblock?.(row) : description.replay?.(row),
    })
  }
  if (ended !== null) {
    return reason('finished', `It was ${ended}${when}.`, {
      since: endedAt,
      command: description.replay?.(row),
    })
  }
  return reason(
    'notClaimable',
    `The condition under which rows of this table are claimed is not true of it: ${table.claimable}.`,
  )
}

function leased(row: RowFacts, { owner: note = '' }: LeaseNotes): Reason {
  const { now, owner, token, until, heldSince: since } = row
  const held = since === null ? 'holds it' : `has held it for ${duration(now.getTime() - since.getTime())}`
  const withToken = token === null ? '' : `, with token ${token}`
  const end = until === null ? 'for ever' : `until ${at(until, now)}`
  const parts = [`The worker process ${owner} ${held}${withToken}, and its lease runs ${end}`, note]
  return reason('leased', `${parts.filter((part) => part !== '').join('; ')}.`, { since, until, by: owner })
}

function expired(row: RowFacts, { owner = '', reaper = '' }: LeaseNotes): Reason {
  const { now, until, token } = row
  const over = until === null ? '' : ` at ${at(until, now)}`
  const next = row.isClaimableNow ? 'the next claim takes it' : 'it waits for the reaper'
  const parts = [
    `The lease of the worker process ${row.owner}${token === null ? '' : ` with token ${token}`} expired${over}, and ${next}`,
    owner,
    row.isClaimableNow ? '' : reaper,
  ]
  return reason('leaseExpired', `${parts.filter((part) => part !== '').join('; ')}.`, {
    since: until,
    by: row.owner,
  })
}

function notDue(table: LeaseTable, row: RowFacts, description: RowDescription): Reason[] {
  const { now, until, dueAt, attempts, maxAttempts, lastError } = row
  if (row.owner === null && until !== null && !row.isLeaseOver && canRest(table)) {
    const failed = attempts === 0 ? '.' : because(lastError)
    return [
      reason('resting', `It rests until ${at(until, now)}${failed}`, { until, command: awake(table, row) }),
    ]
  }
  if (row.isDue) return []
  const command = description.retry?.(row)
  if (dueAt === null) return [reason('scheduled', 'It has no time at which it is due.', { command })]
  const when = at(dueAt, now)
  if (attempts === 0) return [reason('scheduled', `It is not due until ${when}.`, { until: dueAt, command })]
  // A number is that of this declaration, and a process may have been started with another one.
  const of = maxAttempts === null || typeof table.attempts?.max === 'number' ? '' : ` of ${maxAttempts}`
  const failed = `${attempts}${of} ${attempts === 1 && of === '' ? 'attempt' : 'attempts'} ${attempts === 1 ? 'has' : 'have'} failed`
  return [
    reason('retryWait', `${failed}, and the next one is due at ${when}${because(lastError)}`, {
      until: dueAt,
      command,
    }),
  ]
}

/** The statement that ends the rest of a row. */
function awake(table: LeaseTable, row: RowAddress): string {
  return updateSql(table, row, `${quote(table.lease.until)} = null`)
}

/** An UPDATE of one row, as an operator would write it. */
export function updateSql(table: LeaseTable, { id, bucket }: RowAddress, set: Sql): string {
  const values = idValues(table, id)
  const isRow = table.id.map((column, i) => `${quote(column)} = ${literal(values[i] ?? '')}`)
  const inOne =
    table.bucket === undefined || bucket === undefined ? [] : [`${quote(table.bucket)} = ${bucket}`]
  const target = `${quote(table.schema)}.${quote(table.name)}`
  return `update ${target} set ${set} where ${[...inOne, ...isRow].join(' and ')}`
}

/** What a terminal would not show as it is, and a shell or psql would not take when it is pasted. */
const UNPRINTABLE = /[\p{Cc}\p{Bidi_Control}\u2028\u2029]/u
const EACH_UNPRINTABLE = new RegExp(UNPRINTABLE, 'gu')

/** A text as SQL has it. */
export function literal(text: string): string {
  const quoted = text.replaceAll("'", "''")
  if (!UNPRINTABLE.test(text)) return `'${quoted}'`
  const escaped = quoted
    .replaceAll('\\', String.raw`\\`)
    .replaceAll(EACH_UNPRINTABLE, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, '0')}`)
  return `E'${escaped}'`
}

/** An argument of a command line, as a shell takes it; with `$'…'`, which not every shell knows, only where nothing else does. */
export function shellArgument(text: string): string {
  if (/^[\w./:@%+,-]+$/.test(text) && !text.startsWith('-')) return text
  if (!UNPRINTABLE.test(text)) return `'${text.replaceAll("'", String.raw`'\''`)}'`
  const octal = (byte: number): string => `\\${byte.toString(8).padStart(3, '0')}`
  const escaped = text
    .replaceAll(/[\\']/g, (each) => `\\${each}`)
    .replaceAll(EACH_UNPRINTABLE, (each) => [...Buffer.from(each)].map(octal).join(''))
  return `$'${escaped}'`
}

/** A command with arguments, of which one may look like a flag. */
export function commandLine(command: string, given: readonly string[], flags: string): string {
  const written = given.map(shellArgument).join(' ')
  return given.some((each) => each.startsWith('-'))
    ? `${command}${flags} -- ${written}`
    : `${command} ${written}${flags}`
}

function waitsFor(row: RowFacts, before: RowFacts, description: RowDescription): Reason {
  const { now } = row
  const key = JSON.stringify(row.orderingKey)
  const name = `${description.row} ${before.id}`
  const { attempts, lastError, dueAt, until, endedAt } = before
  const details = { by: before.id, command: description.explain(before) }
  const state = stateOf(before, undefined)
  if (state === 'finished') {
    const since = endedAt === null ? '' : ` since ${at(endedAt, now)}`
    return reason(
      'keyParked',
      `Its ordering key ${key} has been parked${since} by ${name}${because(lastError)}`,
      {
        ...details,
        since: endedAt,
        command: description.unblock?.(before) ?? details.command,
      },
    )
  }
  const waits = `It waits for ${name} of its ordering key ${key}, which`
  if (state === 'leased')
    return reason(
      'waitsForRow',
      `${waits} the worker process ${before.owner} holds until ${until === null ? 'an unknown time' : at(until, now)}.`,
      { ...details, since: before.heldSince },
    )
  if (state === 'expired')
    return reason(
      'waitsForRow',
      `${waits} the worker process ${before.owner} held until its lease expired${until === null ? '' : ` at ${at(until, now)}`}.`,
      details,
    )
  if (before.isDue) return reason('waitsForRow', `${waits} can be claimed now.`, details)
  const when = dueAt === null ? 'has no time at which it is due' : `is not due until ${at(dueAt, now)}`
  const failed =
    attempts === 0 ? '.' : `, because ${counted(attempts, 'attempt')} at it failed${because(lastError)}`
  return reason('waitsForRow', `${waits} ${when}${failed}`, {
    ...details,
    until: dueAt,
    command: description.retry?.(before) ?? details.command,
  })
}

const MAX_SUSPECTS_NAMED = 5

/** Its leases have expired twice: a process runs it only while it runs no other such row. */
export async function suspicion(tx: Queryable, t: TableSql, row: RowFacts): Promise<Reason[]> {
  if (t.expiries === undefined || row.expiries < SUSPECT_EXPIRIES) return []
  const $ = parameters()
  const where = [
    inBucket(t, $),
    `(${t.table.leased ?? `${t.owner} is not null`})`,
    `${t.until} > now()`,
    suspects(t, true),
  ]
  const { text, parameters: names } = statement(
    t.table,
    'explain suspect',
    $,
    `
select ${rowIdSql(t)} as id, ${t.owner} as owner
from ${t.target}
where ${and(where, '  ')}
limit ${MAX_SUSPECTS_NAMED}`,
  )
  const { rows } = await tx.query<{ id: string; owner: string }>({
    text,
    values: names.map(() => row.bucket),
  })
  const others = rows.map(({ id, owner }) => `${owner} runs ${id}`).join(', ')
  const now = others === '' ? 'no process runs another one of this table now' : `at this moment ${others}`
  return [
    reason(
      'suspect',
      `${counted(row.expiries, 'lease')} of it expired, so it may be what ended its processes, and a process begins with one such row at a time: ${now}.`,
      { by: rows[0]?.id },
    ),
  ]
}

/** A session, or a prepared transaction, that is in the way. Null: this role may not see it. */
interface Culprit {
  readonly pid: number | null
  readonly gid: string | null
  readonly since: Date | null
  readonly queryStart: Date | null
  readonly state: string | null
  readonly application: string | null
}

const SESSION = `a.query_start as "queryStart", a.state, nullif(a.application_name, '') as application`

/** `The session 4711 (psql, idle in transaction, last statement 3 min ago)` */
function named({ pid, gid, state, application, queryStart }: Culprit, now: Date): string {
  if (gid !== null) return `The prepared transaction ${JSON.stringify(gid)}`
  const statementAt =
    queryStart === null ? undefined : `its last statement began ${relative(queryStart, now)}`
  const details = [application, state, statementAt].filter((part) => part !== undefined && part !== null)
  return `The session ${pid}${details.length === 0 ? '' : ` (${details.join(', ')})`}`
}

function ended({ pid, gid }: Culprit): string | undefined {
  // Only its transaction manager knows whether it was to be committed.
  return pid === null || gid !== null ? undefined : `select pg_terminate_backend(${pid})`
}

/** What to do about a prepared transaction, as the end of a sentence. */
function decided({ gid }: Culprit): string {
  if (gid === null) return '.'
  return `: ask its transaction manager whether it was to be committed, and run COMMIT PREPARED or ROLLBACK PREPARED ${literal(gid)}.`
}

function forHowLong({ since }: Culprit, now: Date): string {
  return since === null ? '' : ` for ${duration(now.getTime() - since.getTime())}`
}

/**
 * Who has locked the row, so that claims skip it, and reapers if its lease has expired. PostgreSQL stores the lock in the row: `xmax` is the transaction that
 * locks it or is changing it, or several of them together (a multixact). `pg_locks` has the session of every transaction
 * that runs. So the row is not locked to find out, and the transaction stays read-only.
 */
export async function lockOnRow(tx: Queryable, row: RowFacts): Promise<Reason[]> {
  const { xmax, now } = row
  if (xmax === '0') return []
  const skip = row.isLeased && !row.isClaimableNow ? 'reapers skip it' : 'claims skip it'
  const holder = (await holders(tx, [xmax]))[0] ?? (await holders(tx, await membersOf(tx, xmax)))[0]
  if (holder !== undefined) {
    const text = `${named(holder, now)} has locked it in a transaction that has been open${forHowLong(holder, now)}, and ${skip}${decided(holder)}`
    return [
      reason('rowLocked', text, {
        since: holder.since,
        by: holder.gid ?? String(holder.pid),
        command: ended(holder),
      }),
    ]
  }
  // The lock of a savepoint that was released is that of a transaction which `pg_locks` does not list by this number.
  if (!(await isInProgress(tx, xmax))) return []
  return [
    reason('rowLocked', `A transaction that is still open (${xmax}) has locked it, and ${skip}.`, {
      by: xmax,
    }),
  ]
}

async function holders(tx: Queryable, xids: readonly string[]): Promise<Culprit[]> {
  if (xids.length === 0) return []
  const { rows } = await tx.query<Culprit>({
    text: `/* leasehold:explain locks */
select l.pid, p.gid, coalesce(a.xact_start, p.prepared) as since, ${SESSION}
from pg_locks as l
left join pg_stat_activity as a on a.pid = l.pid
left join pg_prepared_xacts as p on l.pid is null and p.transaction = l.transactionid
where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
  and l.transactionid = any ($1::text[]::xid[])
order by since limit 1`,
    values: [xids],
  })
  return rows
}

/** The transactions of a multixact; none if the number is not that of one. */
async function membersOf(tx: Queryable, xmax: string): Promise<string[]> {
  const rows = await orNothing<{ xid: string }>(tx, {
    text: 'select xid::text as xid from pg_get_multixact_members($1::text::xid)',
    values: [xmax],
  })
  return rows.map(({ xid }) => xid)
}

async function isInProgress(tx: Queryable, xmax: string): Promise<boolean> {
  const rows = await orNothing<{ status: string | null }>(tx, {
    // A transaction has a number of 64 bits, of which a row has the lower half: of the numbers with this half, it is the
    // nearest to the present one.
    text: `select pg_xact_status((full_xid + 4294967296 * round((next - full_xid) / 4294967296.0)::bigint)::text::xid8) as status
from (
  select next, (next >> 32 << 32) + $1::bigint as full_xid
  from (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next) as snapshot
) as numbered`,
    values: [xmax],
  })
  return rows[0]?.status === 'in progress'
}

/** For functions that refuse a number which they do not know. */
async function orNothing<Row extends object>(
  tx: Queryable,
  query: { readonly text: string; readonly values: readonly unknown[] },
): Promise<Row[]> {
  await tx.query({ text: 'savepoint leasehold_explain' })
  try {
    const { rows } = await tx.query<Row>(query)
    await tx.query({ text: 'release savepoint leasehold_explain' })
    return rows
  } catch (error) {
    if (!isServerError(error)) throw error
    await tx.query({ text: 'rollback to savepoint leasehold_explain' })
    return []
  }
}

export interface TableLock {
  readonly reason: Reason
  /** Not even reading is possible. */
  readonly isExclusive: boolean
}

/** Lets a read wait for a lock only this long. */
export const LOCK_TIMEOUT_SQL = "set local lock_timeout = '1s'"

/**
 * A lock on the whole table with which no claim can change a row: of ALTER TABLE, CREATE INDEX, VACUUM FULL or LOCK. One
 * that a session still waits for is as much in the way: later requests queue behind it.
 */
export async function lockOnTable(tx: Queryable, table: LeaseTable): Promise<TableLock | undefined> {
  const { rows } = await tx.query<Culprit & { mode: string; granted: boolean; now: Date }>({
    text: `/* leasehold:explain table locks */
select l.pid, p.gid, coalesce(a.xact_start, p.prepared) as since, ${SESSION}, l.mode, l.granted, now() as now
from pg_locks as l
left join pg_stat_activity as a on a.pid = l.pid
left join (
  select x.virtualtransaction, p.gid, p.prepared
  from pg_prepared_xacts as p join pg_locks as x on x.locktype = 'transactionid' and x.transactionid = p.transaction
  where x.pid is null
) as p on l.pid is null and l.virtualtransaction = p.virtualtransaction
where l.locktype = 'relation' and l.pid is distinct from pg_backend_pid()
  and l.database = (select oid from pg_database where datname = current_database())
  and l.relation = (
    select c.oid from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where n.nspname = $1 and c.relname = $2
  )
  and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
order by l.mode <> 'AccessExclusiveLock', not l.granted, since limit 1`,
    values: [table.schema, table.name],
  })
  const [found] = rows
  if (found === undefined) return undefined
  const isExclusive = found.mode === 'AccessExclusiveLock'
  return { isExclusive, reason: found.granted ? locked(found) : await locking(tx, found) }
}

interface FoundTableLock extends Culprit {
  readonly mode: string
  readonly now: Date
}

function locked(found: FoundTableLock): Reason {
  const { now, mode, since, pid, gid } = found
  const text = `${named(found, now)} has locked the whole table (${mode}) in a transaction that has been open${forHowLong(found, now)}, and every claim and every reaper waits for it${decided(found)}`
  return reason('tableLocked', text, { since, by: gid ?? String(pid), command: ended(found) })
}

/** It waits for the lock itself. Nothing is lost if its statement is cancelled. */
async function locking(tx: Queryable, found: FoundTableLock): Promise<Reason> {
  const { now, mode, since, pid } = found
  const { rows } = await tx.query<Culprit>({
    text: `/* leasehold:explain blockers */
select a.pid, null as gid, a.xact_start as since, ${SESSION}
from pg_stat_activity as a where a.pid = any (pg_blocking_pids($1::int))
order by since limit 1`,
    values: [pid],
  })
  const [first] = rows
  const behind =
    first === undefined
      ? ''
      : `: the ${named(first, now).slice('The '.length)} is in its way, in a transaction that has been open${forHowLong(first, now)}`
  const text = `${named(found, now)} waits to lock the whole table (${mode}), and every claim and every reaper waits behind it${behind}.`
  return reason('tableLocked', text, {
    since,
    by: String(pid),
    command: `select pg_cancel_backend(${pid})`,
  })
}

/** A read had to wait for a lock, and whoever has it cannot be named. */
export function unknownLock(table: LeaseTable): Reason {
  return reason(
    'tableLocked',
    `It could not be read, because another session has locked ${tableName(table)} or a table that belongs to it.`,
  )
}

/** From this age on, a snapshot is worth a mention. */
export const OLD_SNAPSHOT_MS = 60_000

/**
 * The oldest snapshot that keeps dead versions of rows from being removed, so that claims may read past them. The
 * snapshot of a VACUUM keeps nothing.
 */
export async function oldSnapshot(tx: Queryable, now: Date, olderThanMs: number): Promise<Reason[]> {
  const { holders } = await heldSnapshots(tx)
  const oldest = holders.find(({ heldForMs }) => heldForMs !== null && heldForMs >= olderThanMs)
  if (oldest === undefined) return []
  const text = `${named(oldest, now)} has held a snapshot${forHowLong(oldest, now)}, over ${counted(oldest.transactions ?? 0, 'transaction')}; row versions that died since then cannot be removed, so claims may have to skip them${decided(oldest)}`
  return [
    reason('oldSnapshot', text, {
      since: oldest.since,
      by: oldest.gid ?? String(oldest.pid),
      command: ended(oldest),
    }),
  ]
}

/** The lease of a trial, which is never committed. */
const TRIAL_LEASE_MS = 1_000

export interface Trial {
  /** Another session may have taken or locked the row meanwhile. */
  readonly isClaimed: boolean
  readonly refused: Reason | undefined
}

/**
 * Claims the row in a transaction that is rolled back, and says what the database answers. That runs the constraints and
 * triggers of the table, and a worker that claims at the same moment skips the row.
 */
export async function tryClaim(
  db: Database,
  table: LeaseTable,
  shape: TableShape,
  { id, bucket }: RowAddress,
): Promise<Trial> {
  const rollback = new Error('rolled back on purpose')
  let isClaimed = false
  try {
    await db.transaction(async (tx) => {
      await tx.query({ text: LOCK_TIMEOUT_SQL })
      const runner = new StatementRunner(tx, table, shape, 'leasehold explain')
      const values = { ...runner.idArrays('id', [id]), bucket, leaseMs: TRIAL_LEASE_MS }
      const rows = await runner.run(runner.statements.claimRows, values, { tx })
      isClaimed = rows.length > 0
      throw rollback
    })
  } catch (error) {
    if (isDataError(error)) return { isClaimed, refused: refusal(error) }
    if (error !== rollback && !isLockConflict(error)) throw error
  }
  return { isClaimed, refused: undefined }
}

function refusal(error: unknown): Reason {
  const { code, constraint } = isServerError(error) ? error : { code: undefined, constraint: undefined }
  const state = code === undefined ? '' : ` (SQLSTATE ${code})`
  return reason('refused', `The database refuses to have it claimed${state}: ${sentence(messageOf(error))}`, {
    by: constraint,
  })
}
