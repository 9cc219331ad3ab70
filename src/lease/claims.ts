/**
 * Claims: what is asked, what is answered, and how a claim goes on around a race for an ordering key and around a row that
 * stops it with a data error. Where a claim starts is the caller's business (`claim-cursor.ts`).
 */
import type { Clock } from '../clock.ts'
import { LeaseholdError } from '../errors.ts'
import {
  type DataErrorReport,
  ExcludedRows,
  inHalves,
  isDataError,
  isUniqueViolation,
} from './data-errors.ts'
import { tokenAsText } from '../stringifiable.ts'
import { type Lease, trustedUntil } from './lease.ts'
import type { Reaped } from './store.ts'
import type { StatementRunner, Values } from './runner.ts'
import type { LeaseStatement } from './statement.ts'
import type { ClaimStatements, Way } from './statements.ts'
import { tableName } from './table.ts'
import { MAX_BATCH, type TableSql } from './table-sql.ts'

/** Where a scan ended; opaque to everyone but the next claim of the same way. */
export type Cursor = readonly string[]

export interface ClaimRequest {
  readonly limit: number
  /** From which bucket to claim, where the store serves all of them. */
  readonly bucket?: number | undefined
  readonly leaseMs: number
  /** How to find rows, in a table with an ordering key. Default: by key, then in order. */
  readonly way?: Way | undefined
  /** Where to start. Default: at the beginning. */
  readonly cursor?: Cursor | undefined
  /** Where the table has groups: from which ones to claim, and how many rows from each. */
  readonly groups?: readonly Group[] | undefined
  /** The most bytes to claim, where the table says how large a row is; at least one row is claimed. */
  readonly bytes?: number | undefined
  /** How many suspects the claim may take: rows under which two processes died (D10). Default 1. */
  readonly suspects?: number | undefined
  /**
   * Whether the first of them may be one that has to run alone: under which more than two processes died, or which is at its
   * last attempt. Default true.
   */
  readonly alone?: boolean | undefined
  /** By ordering key: how many rows to read. Default: 50 more than twice as many as there is room for, at most 1,000. */
  readonly rows?: number | undefined
  /**
   * By ordering key: rows whose keys have become free. The next rows of these keys are claimed too, wherever the cursor is.
   */
  readonly freed?: readonly string[] | undefined
  /**
   * By ordering key: claim the oldest heads first, instead of those of settled or freed keys. Otherwise busy keys could take
   * all the room.
   */
  readonly oldestFirst?: boolean | undefined
  /** By ordering key: also read rows before the cursor that became due within this time. Default 0. */
  readonly overlapMs?: number | undefined
  /** Together with a settlement by key: claim only the next rows of the settled keys, and scan for no others. */
  readonly continueOnly?: boolean | undefined
  /** Claim these rows and no others. */
  readonly ids?: readonly string[] | undefined
  /** Whether to take expired leases back first, in a table that lets claims take them (D5). Default true. */
  readonly takeExpired?: boolean | undefined
}

export interface Group {
  /** The value of the column that `groups` of the table names. */
  readonly group: string
  /** The most rows to claim from it. */
  readonly room: number
}

export interface Claimed<Row> {
  readonly lease: Lease
  readonly row: Row
}

export interface Claim<Row> {
  /** In the table's order. */
  readonly claimed: readonly Claimed<Row>[]
  /** Where the next claim of this way continues; absent when the scan reached the end, or the table has no cursor. */
  readonly cursor: Cursor | undefined
  /** There may be more to claim at this moment. */
  readonly more: boolean
  /** When the next row will be due, where the table has `availableAt`. */
  readonly dueInMs?: number
  /** The ids of the suspects among the claimed rows. */
  readonly suspects?: readonly string[]
  /** The one suspect is one that has to run alone. */
  readonly alone?: boolean
  /** The size of the claimed rows together, where the table says how large a row is. */
  readonly bytes?: number
  /** By key: how many rows are not of the keys that were settled or freed. Otherwise all of them. */
  readonly found?: number
  /** By key: the next rows of keys that were settled or freed, and for which there was no room. The next claim is given them. */
  readonly freed?: readonly string[]
  /** The expired leases that were taken back first; their rows need not be among the claimed ones. */
  readonly reaped?: readonly Reaped[]
  /** For how long the rows were leased. */
  readonly leaseMs: number
  /** On the local monotonic clock (D8). */
  readonly trustedUntil: number
}

/** A walk from key to key visits at most this many keys in one statement: about 10 ms. */
const MAX_KEYS_PER_WALK = 1_000

/** How many due rows with an ordering key a claim reads at most, unless its caller says how many. */
const DEFAULT_MAX_ROWS_READ = 1_000

/** How many rows are claimed by their ids when one of them stops a claim: their size is not known then. */
const MAX_ROWS_AROUND_CULPRIT = 50

/** How often a claim is repeated that another one raced for the same ordering key. */
const MAX_RACES = 3

/** The walk of a group's ordering keys that has not come to the last key. */
interface GroupWalk {
  readonly cursor: string
  /** Something was claimed since the walk started at the first key. */
  readonly found: boolean
}

export class Claims<Row extends object> {
  readonly #runner: StatementRunner
  readonly #clock: Clock
  readonly #onDataError: (report: DataErrorReport) => void
  /** Rows that stopped a claim with a data error. */
  readonly #excluded: ExcludedRows
  /** By bucket and group. */
  readonly #groupWalks = new Map<string, GroupWalk>()
  readonly #bucket: number | 'all'

  constructor(
    runner: StatementRunner,
    bucket: number | 'all',
    clock: Clock,
    onDataError: (report: DataErrorReport) => void,
  ) {
    this.#runner = runner
    this.#bucket = bucket
    this.#clock = clock
    this.#onDataError = onDataError
    this.#excluded = new ExcludedRows(clock)
  }

  async claim(request: ClaimRequest): Promise<Claim<Row>> {
    if (request.ids !== undefined) return this.#claimRows(request.ids, request)
    if (request.way !== undefined) return this.claimByWay(request.way, request)
    return this.#claimByAllWays(request)
  }

  async claimByWay(way: Way, request: ClaimRequest): Promise<Claim<Row>> {
    const { claim } = this.#statementsOf(way)
    const sentAt = this.#clock.monotonicNow()
    try {
      const isWalking = (): boolean =>
        request.groups?.some(({ group }) => this.#groupWalks.has(this.#walkOf(request, group))) === true
      const wasWalking = isWalking()
      const answer = await this.#scan(claim, way, request)
      if (!wasWalking || isWalking() || answer.claimed.length > 0)
        return this.#claimOf(way, answer, request, sentAt)
      // The walk of a group's keys began in the middle and is over: what is before that is found from the first key on.
      const fromStart = await this.#scan(claim, way, request)
      const more = answer.more === true || fromStart.claimed.length > 0
      return this.#claimOf(way, { ...fromStart, more }, request, sentAt)
    } catch (error) {
      if (!isDataError(error)) throw error
      return this.#claimAround(error, way, request)
    }
  }

  /** Sends the statement that settles these leases as done and claims; null: all of them were settled. */
  async settleAndClaim(
    way: Way,
    settlement: Values,
    request: ClaimRequest,
  ): Promise<{ readonly claim: Claim<Row>; readonly settled: readonly string[] | null }> {
    const { settleAndClaim } = this.#statementsOf(way)
    if (settleAndClaim === undefined)
      throw new TypeError(`${tableName(this.#runner.table)} cannot settle and claim`)
    const sentAt = this.#clock.monotonicNow()
    const answer = await this.#scan(settleAndClaim, way, request, settlement)
    return { claim: this.#claimOf(way, answer, request, sentAt), settled: answer.settled ?? null }
  }

  /** By one way after the other, until the request is fulfilled: rows of ordering keys first. */
  async #claimByAllWays(request: ClaimRequest): Promise<Claim<Row>> {
    const [first = 'order', second] = this.#runner.statements.ways.keys()
    const claim = await this.claimByWay(first, request)
    const limit = request.limit - claim.claimed.length
    const bytes = request.bytes === undefined ? undefined : request.bytes - (claim.bytes ?? 0)
    if (second === undefined) return claim
    if (limit <= 0 || (bytes !== undefined && bytes <= 0)) return { ...claim, more: true }
    const suspects = claim.suspects === undefined ? request.suspects : 0
    return both(claim, await this.claimByWay(second, { ...request, limit, bytes, suspects }))
  }

  /** A row stops the claim: the rows it would have taken are claimed by their ids, in halves. */
  async #claimAround(error: unknown, way: Way, request: ClaimRequest): Promise<Claim<Row>> {
    const few = { ...request, limit: Math.min(request.limit, MAX_ROWS_AROUND_CULPRIT) }
    const { find } = this.#statementsOf(way)
    const found = await this.#runner.run<{ readonly id: string; readonly suspect: boolean }>(
      find,
      this.#scanValues(way, few),
    )
    if (found.length === 0) throw error
    const suspect = found.find((row) => row.suspect)
    const ids = found.filter((row) => !row.suspect || row === suspect).map(({ id }) => id)
    const claim = await this.#claimRows(ids, request)
    const hasSuspect = claim.claimed.some(({ lease }) => lease.id === suspect?.id)
    const { freed = [] } = request
    return {
      ...claim,
      freed,
      more: true,
      ...(suspect !== undefined && hasSuspect ? { suspects: [suspect.id], alone: true } : {}),
    }
  }

  async #claimRows(ids: readonly string[], request: ClaimRequest): Promise<Claim<Row>> {
    const { leaseMs } = request
    const bucket = this.#bucketOf(request)
    const sentAt = this.#clock.monotonicNow()
    const { claimRows } = this.#runner.statements
    const parts = await inHalves(
      ids,
      async (part) =>
        (await this.#send(claimRows, { leaseMs, bucket, ...this.#runner.idArrays('id', part) })).claimed,
      (id, error) => this.#onDataError({ verb: 'claim', id, error, retryInMs: this.#excluded.add(id) }),
    )
    return { ...nothingClaimed(leaseMs, sentAt), claimed: parts.flat() }
  }

  async #scan(
    statement: LeaseStatement,
    way: Way,
    request: ClaimRequest,
    settlement: Values = {},
  ): Promise<ClaimAnswer<Row>> {
    const answer = await this.#send(statement, { ...this.#scanValues(way, request), ...settlement })
    const isWalk = way === 'group' && this.#runner.t.orderingKey !== undefined
    return isWalk ? this.#rememberWalks(answer, request) : answer
  }

  #scanValues(way: Way, request: ClaimRequest): Values {
    const { t } = this.#runner
    const { limit, leaseMs, groups = [], bytes = Number.MAX_SAFE_INTEGER } = request
    const { suspects = 1, alone = true } = request
    const lowest = way === 'key' ? t.arrival.map((column) => column.lowest) : t.lowestCursor
    const cursor = request.cursor ?? lowest ?? []
    const keysPerGroup = Math.max(2, Math.ceil(MAX_KEYS_PER_WALK / Math.max(1, groups.length)))
    return {
      limit,
      leaseMs,
      bytes,
      suspects,
      alone,
      bucket: this.#bucketOf(request),
      ...(way === 'group' ? { steps: keysPerGroup } : byKey(request)),
      ...this.#runner.idArrays('excluded', this.#excluded.current()),
      ...this.#runner.idArrays('freed', request.freed ?? []),
      ...Object.fromEntries(cursor.map((value, i) => [`cursor${i + 1}`, value])),
      groups: groups.map(({ group }) => group),
      rooms: groups.map(({ room }) => room),
      groupCursors: groups.map(
        ({ group }) => this.#groupWalks.get(this.#walkOf(request, group))?.cursor ?? t.orderingKey?.lowest,
      ),
    }
  }

  /** Repeated where another claim took a row of the same ordering key at the same moment. */
  async #send(statement: LeaseStatement, values: Values): Promise<ClaimAnswer<Row>> {
    const { t, owner } = this.#runner
    for (let races = 0; ; races += 1) {
      try {
        const rows = await this.#runner.run<AnswerRow>(statement, values, { rowMode: 'array' })
        return readAnswer<Row>(rows, t, owner, values['bucket'] as number | undefined)
      } catch (error) {
        if (!isUniqueViolation(error) || races >= MAX_RACES) throw error
      }
    }
  }

  /**
   * Remembers where the walk of each group ended. There may be more in a group whose walk has not come to the last key, or
   * has come there from the middle and found something on the way.
   */
  #rememberWalks(answer: ClaimAnswer<Row>, request: ClaimRequest): ClaimAnswer<Row> {
    const hasClaimed = answer.claimed.length > 0
    let more = answer.more === true
    for (const { group } of request.groups ?? []) {
      const walk = this.#walkOf(request, group)
      const [before, cursor] = [this.#groupWalks.get(walk), answer.groupCursors?.[group]]
      const found = hasClaimed || before?.found === true
      if (cursor === undefined) this.#groupWalks.delete(walk)
      else this.#groupWalks.set(walk, { cursor: successor(this.#runner.t, cursor), found })
      more ||= cursor !== undefined || (before !== undefined && found)
    }
    return { ...answer, more }
  }

  #walkOf(request: ClaimRequest, group: string): string {
    return `${this.#bucketOf(request) ?? ''} ${group}`
  }

  #bucketOf({ bucket }: ClaimRequest): number | undefined {
    if (this.#runner.table.bucket === undefined) return undefined
    return this.#bucket === 'all' ? bucket : this.#bucket
  }

  #claimOf(way: Way, answer: ClaimAnswer<Row>, request: ClaimRequest, sentAt: number): Claim<Row> {
    const { t } = this.#runner
    const { leaseMs } = request
    const { claimed, dueInMs, suspects, alone, bytes, found, freed, scanned = true } = answer
    // No room was left for other keys: the next scan starts where this one would have.
    const [cursor, more] = scanned
      ? [answer.cursor ?? undefined, answer.more === true]
      : [request.cursor, true]
    return {
      claimed,
      cursor: way === 'order' && t.lowestCursor === undefined ? undefined : cursor,
      more,
      ...(dueInMs === null || dueInMs === undefined ? {} : { dueInMs }),
      ...(suspects === null || suspects === undefined ? {} : { suspects, alone: alone === true }),
      ...(bytes === null || bytes === undefined ? {} : { bytes }),
      ...(found === undefined ? {} : { found }),
      ...(freed === null || freed === undefined ? {} : { freed }),
      leaseMs,
      trustedUntil: trustedUntil(sentAt, leaseMs),
    }
  }

  #statementsOf(way: Way): ClaimStatements {
    const { statements, table } = this.#runner
    const claims = statements.ways.get(way)
    if (claims !== undefined) return claims
    throw new TypeError(
      `${tableName(table)} is not claimed by ${way}: its ways are ${[...statements.ways.keys()].join(', ')}`,
    )
  }

  /** Refuses requests that no statement should be sent for. */
  check({ limit, leaseMs, groups, ids, bucket }: ClaimRequest): void {
    checkLimit(limit)
    checkLease(leaseMs)
    const { table } = this.#runner
    if (this.#bucket === 'all' && table.bucket !== undefined && bucket === undefined)
      throw invalidSetting('bucket', bucket, 'Say from which bucket to claim.')
    // A claim that names no groups would find nothing, for ever.
    if (ids !== undefined || (table.groups === undefined) === (groups === undefined)) return
    throw invalidSetting(
      'groups',
      groups?.length,
      table.groups === undefined
        ? `${tableName(table)} declares no groups: leave them out.`
        : `Say from which values of ${table.groups} to claim, and how many rows from each.`,
    )
  }
}

export const MAX_DURATION_MS = 1e12

export function checkLimit(limit: number): void {
  if (Number.isInteger(limit) && limit >= 1 && limit <= MAX_BATCH) return
  throw invalidSetting('limit', limit, `Ask for a whole number of rows from 1 to ${MAX_BATCH}.`)
}

export function checkLease(leaseMs: number): void {
  if (leaseMs > 0 && leaseMs <= MAX_DURATION_MS) return
  throw invalidSetting(
    'leaseMs',
    leaseMs,
    `Give a number of milliseconds above 0, at most ${MAX_DURATION_MS}.`,
  )
}

export function checkDelay(delayMs: number): void {
  if (delayMs >= 0 && delayMs <= MAX_DURATION_MS) return
  throw invalidSetting('delayMs', delayMs, `Give a number of milliseconds from 0 to ${MAX_DURATION_MS}.`)
}

export function invalidSetting(name: string, value: unknown, remedy: string): LeaseholdError {
  const text = typeof value === 'number' ? String(value) : JSON.stringify(value)
  return new LeaseholdError('SETTING_INVALID', `${name} is ${text}.`, { remedy })
}

/** A row as PostgreSQL returns it: values by position, because objects would be built twice. */
type AnswerRow = readonly unknown[]

/** What concerns the whole claim; `answer` in `table-sql.ts` writes it. */
interface Facts {
  readonly until: number
  readonly order: readonly string[] | null
  readonly cursor?: readonly string[] | null
  readonly more?: boolean
  /** Whether other keys were searched for than those that were settled. */
  readonly scanned?: boolean
  readonly found?: number
  readonly freed?: readonly string[] | null
  readonly dueInMs?: number | null
  readonly suspects?: readonly string[] | null
  readonly alone?: boolean | null
  readonly bytes?: number | null
  /** Of a claim that also settles: the settled ids; null: all of them were. */
  readonly settled?: readonly string[] | null
  readonly groupCursors?: Readonly<Record<string, string>> | null
}

interface ClaimAnswer<Row extends object> extends Omit<Facts, 'until' | 'order'> {
  readonly claimed: readonly Claimed<Row>[]
}

/** One row has the facts, the others are the claimed rows. */
function readAnswer<Row extends object>(
  rows: readonly AnswerRow[],
  t: TableSql,
  owner: string,
  bucket: number | undefined,
): ClaimAnswer<Row> {
  // A full join promises no order.
  const at = rows.findIndex(([facts]) => facts !== null)
  const [given] = rows[at] ?? []
  // The statement says what it is.
  const { until, order, ...facts } = given as Facts
  const end = new Date(until)
  const claimed = rows.flatMap((values, i) =>
    i === at ? [] : [claimedRow<Row>(values, t, { owner, bucket, until: end })],
  )
  return { ...facts, claimed: inOrder(claimed, order ?? []) }
}

/** After the facts: the token, the id unless it is one of the columns, the columns. */
function claimedRow<Row extends object>(
  values: AnswerRow,
  { columns, idPosition }: TableSql,
  { owner, bucket, until }: Pick<Lease, 'owner' | 'bucket' | 'until'>,
): Claimed<Row> {
  const from = idPosition === undefined ? 3 : 2
  const row: Record<string, unknown> = {}
  for (let i = 0; i < columns.length; i += 1) row[columns[i] ?? ''] = values[from + i]
  // A whole number, as `pg` or a parser that somebody has set for it hands it out.
  const token = BigInt(values[1] as string | number | bigint)
  const id = String(values[idPosition === undefined ? 2 : from + idPosition])
  // The caller says of which type the table's own columns are.
  return { lease: new ClaimedLease({ id, owner, bucket, token, until }), row: row as Row }
}

/** JSON.stringify writes the token as a text. A method of a class costs no claim anything. */
class ClaimedLease implements Lease {
  readonly id: string
  readonly owner: string
  readonly bucket: number | undefined
  readonly token: bigint
  readonly until: Date

  constructor({ id, owner, bucket, token, until }: Lease) {
    this.id = id
    this.owner = owner
    this.bucket = bucket
    this.token = token
    this.until = until
  }

  toJSON(): object {
    return tokenAsText<Lease>(this)
  }
}

/** Rows mostly come back in the order of the claim. One that a trigger stopped from being claimed is not among them. */
function inOrder<Row>(claimed: Claimed<Row>[], order: readonly string[]): Claimed<Row>[] {
  if (claimed.every(({ lease }, i) => lease.id === order[i])) return claimed
  const ranks = new Map(order.map((id, rank) => [id, rank]))
  const rank = ({ lease }: Claimed<Row>): number => ranks.get(lease.id) ?? 0
  return claimed.toSorted((a, b) => rank(a) - rank(b))
}

const INTEGERS = new Set(['smallint', 'integer', 'bigint'])

/** How many rows a claim by key reads, and where it starts. */
function byKey({ rows = 0, oldestFirst = false, continueOnly = false, overlapMs = 0 }: ClaimRequest): Values {
  return { steps: continueOnly ? 0 : DEFAULT_MAX_ROWS_READ, rows, oldestFirst, overlapMs }
}

/**
 * The lowest key above this one: a walk goes on after the key at which it stopped. Inclusive of it, a claim with room for
 * one row would find the same locked head for ever.
 */
function successor({ orderingKey }: TableSql, key: string): string {
  const type = orderingKey?.type ?? 'text'
  if (type === 'uuid') {
    const next = (BigInt(`0x${key.replaceAll('-', '')}`) + 1n).toString(16).padStart(32, '0').slice(-32)
    return next.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
  }
  // No text sorts between a text and the same with the smallest character after it.
  return INTEGERS.has(type) ? String(BigInt(key) + 1n) : `${key}\u0001`
}

export function nothingClaimed(leaseMs: number, sentAt: number): Claim<never> {
  const until = trustedUntil(sentAt, leaseMs)
  return { claimed: [], cursor: undefined, more: false, leaseMs, trustedUntil: until }
}

/** A claim that was made in two ways, one after the other. */
function both<Row>(first: Claim<Row>, second: Claim<Row>): Claim<Row> {
  const due = Math.min(first.dueInMs ?? Infinity, second.dueInMs ?? Infinity)
  const { suspects, alone = false } = first.suspects === undefined ? second : first
  return {
    claimed: [...first.claimed, ...second.claimed],
    cursor: undefined,
    more: first.more || second.more,
    ...(due === Infinity ? {} : { dueInMs: due }),
    ...(suspects === undefined ? {} : { suspects, alone }),
    ...(first.bytes === undefined && second.bytes === undefined
      ? {}
      : { bytes: (first.bytes ?? 0) + (second.bytes ?? 0) }),
    leaseMs: first.leaseMs,
    trustedUntil: Math.min(first.trustedUntil, second.trustedUntil),
  }
}
