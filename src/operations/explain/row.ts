/** The facts of one row, and the reasons in them: its end, its lease, when it is due, its ordering key. */
import { counted, duration } from '../../figures.ts'
import { idValues } from '../../lease/lease.ts'
import { and, type LeaseStatement, type Parameters, parameters, statement } from '../../lease/statement.ts'
import { canRest, type LeaseTable, type Sql, SUSPECT_EXPIRIES } from '../../lease/table.ts'
import {
  claimableOrExpired,
  inBucket,
  orderingOf,
  rowIdSql,
  type TableSql,
  TOKEN_MARK,
} from '../../lease/table-sql.ts'
import { quoteIdentifier as quote } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { type RowAddress, updateSql } from '../shown-commands.ts'
import { at, because, reason, type Reason, type RowState, when } from './reasons.ts'

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
  const $ = parameters()
  const isRow = t.idColumns.map(({ name, type }, i) => `t.${name} = ${$(`id${i + 1}`, type)}`)
  const ids = idValues(t.table, id).map((value, i) => [`id${i + 1}`, value])
  return readOne(tx, t, description, $, { ...Object.fromEntries(ids), bucket }, isRow)
}

/** The row of its ordering key that has to be finished before this one: the one in flight, or else the head. */
export async function readRowBefore(
  tx: Queryable,
  t: TableSql,
  description: RowDescription,
  { id: own, bucket, group, orderingKey, isClaimable }: RowFacts,
): Promise<RowFacts | undefined> {
  if (t.orderingKey === undefined || orderingKey === null || !isClaimable) return undefined
  const { key, id } = orderingOf(t)
  const { type } = t.orderingKey
  const read = async (which: Sql = 'false', order = ''): Promise<RowFacts | undefined> => {
    const $ = parameters()
    const sameGroup = t.group === undefined ? '' : `t.${t.group.name} = ${$('group', t.group.type)}`
    // As a range: with `=` the planner may walk along the primary key, past all finished rows of the other keys.
    const sameKey = [`t.${key} >= ${$('key', type)}`, `t.${key} <= ${$('key', type)}`]
    const values = { bucket, group, key: orderingKey }
    return readOne(tx, t, description, $, values, [sameGroup, ...sameKey, `(${which})`], order)
  }
  const first =
    (await read(t.table.leased)) ?? (await read(t.table.ordering?.unfinished, `order by t.${key}, t.${id}`))
  return first?.id === own ? undefined : first
}

async function readOne(
  tx: Queryable,
  t: TableSql,
  { ended, endedAt, isDead }: RowDescription,
  $: Parameters,
  values: Readonly<Record<string, unknown>>,
  where: readonly string[],
  order = '',
): Promise<RowFacts | undefined> {
  const { table } = t
  const { availableAt, attempts } = table
  const max = attempts?.max
  const finite = (moment: Sql): Sql => `case when isfinite(${moment}) then ${moment} end`
  const due = availableAt === undefined ? undefined : quote(availableAt)
  const claimableNow = claimableOrExpired(t).filter((condition) => condition !== '')
  const columns: { readonly [Fact in keyof RowFacts]: Sql } = {
    id: rowIdSql(t, 't.'),
    bucket: t.bucket?.name ?? 'null',
    now: 'now()',
    isClaimable: `(${table.claimable}) is true`,
    isClaimableNow: `(${claimableNow.join(' and ')}) is true`,
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
    maxAttempts: `(${typeof max === 'string' ? quote(max) : (max ?? 'null')})::float8`,
    expiries: `coalesce(${t.expiries ?? '0'}, 0)::float8`,
    lastError: attempts?.error === undefined ? 'null' : `${quote(attempts.error)}::text`,
    orderingKey: `${t.orderingKey?.name ?? 'null'}::text`,
    group: `${t.group?.name ?? 'null'}::text`,
    ended: `(${ended ?? 'null'})::text`,
    endedAt: `(${endedAt ?? 'null'})::timestamptz`,
    isDead: `(${isDead ?? 'false'}) is true`,
    // Of a distributed table, `pg_locks` of this server does not show the transactions.
    xmax: t.buckets === undefined ? 't.xmax::text' : "'0'",
  }
  const selected = Object.entries(columns).map(([name, value]) => `${value} as ${quote(name)}`)
  const body = `
select ${selected.join(',\n  ')}
from ${t.target} as t
where ${and([inBucket(t, $, 't.'), ...where], '  ')}
${order}
limit 1`
  const [row] = await ask<RowFacts>(tx, statement(table, 'explain', $, body), values)
  return row && { ...row, bucket: row.bucket ?? undefined }
}

async function ask<Row extends object>(
  tx: Queryable,
  { text, parameters: names }: LeaseStatement,
  values: Readonly<Record<string, unknown>>,
): Promise<Row[]> {
  return (await tx.query<Row>({ text, values: names.map((name) => values[name]) })).rows
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

export function stateOf(row: RowFacts, before?: RowFacts): RowState {
  if (row.isLeased) return row.isLeaseOver ? 'expired' : 'leased'
  if (!row.isClaimable) return 'finished'
  return row.isClaimableNow && before === undefined ? 'claimable' : 'waiting'
}

/** What the registry says of the owner of the lease and of the reaper, as parts of a sentence. */
export interface LeaseNotes {
  readonly owner: string
  readonly reaper: string
}

/** The reasons in the row itself and in its ordering key. */
export function reasonsInRow(
  table: LeaseTable,
  row: RowFacts,
  before: RowFacts | undefined,
  description: RowDescription,
  notes: LeaseNotes,
): Reason[] {
  const state = stateOf(row, before)
  if (state === 'finished') return [ending(table, row, description)]
  if (state === 'leased') return [leased(row, notes)]
  if (state === 'expired') return [expired(row, notes)]
  const reasons = notDue(table, row, description)
  return before === undefined ? reasons : [...reasons, waitsFor(row, before, description)]
}

function ending(table: LeaseTable, row: RowFacts, { replay, unblock }: RowDescription): Reason {
  const { now, ended, endedAt: since, orderingKey, lastError } = row
  if (row.isDead) {
    const dead = since === null ? 'It is dead' : `It has been dead since ${at(since, now)}`
    const died = ended === 'failed' ? `It failed${when('at', since, now)}` : dead
    const isParked = row.isUnfinished && orderingKey !== null
    const parked = isParked ? `, and holds up its ordering key ${JSON.stringify(orderingKey)}` : ''
    const attempts = row.attempts === 0 ? '' : `, after ${counted(row.attempts, 'failed attempt')}`
    const command = isParked ? unblock?.(row) : replay?.(row)
    return reason('dead', `${died}${attempts}${parked}${because(lastError)}`, { since, command })
  }
  if (ended !== null)
    return reason('finished', `It was ${ended}${when('at', since, now)}.`, { since, command: replay?.(row) })
  return reason(
    'notClaimable',
    `The condition under which rows of this table are claimed is not true of it: ${table.claimable}.`,
  )
}

function leased({ now, owner, token, until, heldSince: since }: RowFacts, notes: LeaseNotes): Reason {
  const held = since === null ? 'holds it' : `has held it for ${duration(now.getTime() - since.getTime())}`
  const withToken = token === null ? '' : `, with token ${token}`
  const end = until === null ? 'for ever' : `until ${at(until, now)}`
  const lease = `The worker process ${owner} ${held}${withToken}, and its lease runs ${end}`
  return reason('leased', sentenceOf(lease, notes.owner), { since, until, by: owner })
}

function expired({ now, owner, token, until, isClaimableNow }: RowFacts, notes: LeaseNotes): Reason {
  const withToken = token === null ? '' : ` with token ${token}`
  const next = isClaimableNow ? 'the next claim takes it' : 'it waits for the reaper'
  const lease = `The lease of the worker process ${owner}${withToken} expired${when('at', until, now)}, and ${next}`
  const text = sentenceOf(lease, notes.owner, isClaimableNow ? '' : notes.reaper)
  return reason('leaseExpired', text, { since: until, by: owner })
}

function sentenceOf(...parts: readonly string[]): string {
  return `${parts.filter((part) => part !== '').join('; ')}.`
}

function notDue(table: LeaseTable, row: RowFacts, { retry }: RowDescription): Reason[] {
  const { now, until, dueAt, attempts, maxAttempts, lastError } = row
  if (row.owner === null && until !== null && !row.isLeaseOver && canRest(table)) {
    const failed = attempts === 0 ? '.' : because(lastError)
    const command = updateSql(table, row, `${quote(table.lease.until)} = null`)
    return [reason('resting', `It rests until ${at(until, now)}${failed}`, { until, command })]
  }
  if (row.isDue) return []
  const details = { until: dueAt, command: retry?.(row) }
  if (dueAt === null) return [reason('scheduled', 'It has no time at which it is due.', details)]
  if (attempts === 0) return [reason('scheduled', `It is not due until ${at(dueAt, now)}.`, details)]
  // A number is that of this declaration, and a process may have been started with another one.
  const of = maxAttempts === null || typeof table.attempts?.max === 'number' ? '' : ` of ${maxAttempts}`
  const failed = `${attempts}${of} ${attempts === 1 && of === '' ? 'attempt' : 'attempts'} ${attempts === 1 ? 'has' : 'have'} failed`
  const text = `${failed}, and the next one is due at ${at(dueAt, now)}${because(lastError)}`
  return [reason('retryWait', text, details)]
}

function waitsFor({ now, orderingKey }: RowFacts, before: RowFacts, words: RowDescription): Reason {
  const { id: by, owner, attempts, lastError, dueAt, until, endedAt } = before
  const [key, row] = [JSON.stringify(orderingKey), `${words.row} ${by}`]
  const command = words.explain(before)
  const state = stateOf(before)
  if (state === 'finished')
    return reason(
      'keyParked',
      `Its ordering key ${key} has been parked${when('since', endedAt, now)} by ${row}${because(lastError)}`,
      { by, since: endedAt, command: words.unblock?.(before) ?? command },
    )
  const waits = (rest: string, details: Partial<Reason> = {}): Reason =>
    reason('waitsForRow', `It waits for ${row} of its ordering key ${key}, which ${rest}`, {
      by,
      command,
      ...details,
    })
  if (state === 'leased') {
    const end = until === null ? 'an unknown time' : at(until, now)
    const since = before.heldSince === null ? {} : { since: before.heldSince }
    return waits(`the worker process ${owner} holds until ${end}.`, since)
  }
  if (state === 'expired')
    return waits(`the worker process ${owner} held until its lease expired${when('at', until, now)}.`)
  if (before.isDue) return waits('can be claimed now.')
  const failed =
    attempts === 0 ? '.' : `, because ${counted(attempts, 'attempt')} at it failed${because(lastError)}`
  const retried = { command: words.retry?.(before) ?? command }
  if (dueAt === null) return waits(`has no time at which it is due${failed}`, retried)
  return waits(`is not due until ${at(dueAt, now)}${failed}`, { ...retried, until: dueAt })
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
    `${t.expiries} >= ${SUSPECT_EXPIRIES}`,
  ]
  const body = `
select ${rowIdSql(t)} as id, ${t.owner} as owner
from ${t.target}
where ${and(where, '  ')}
limit ${MAX_SUSPECTS_NAMED}`
  const { bucket } = row
  const running = statement(t.table, 'explain suspect', $, body)
  const rows = await ask<{ id: string; owner: string }>(tx, running, { bucket })
  const others = rows.map(({ id, owner }) => `${owner} runs ${id}`).join(', ')
  const now = others === '' ? 'no process runs another one of this table now' : `at this moment ${others}`
  const text = `${counted(row.expiries, 'lease')} of it expired, so it may be what ended its processes, and a process begins with one such row at a time: ${now}.`
  return [reason('suspect', text, { by: rows[0]?.id })]
}
