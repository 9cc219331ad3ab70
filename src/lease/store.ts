import { systemClock } from '../clock.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { argsJson, isNewest, newestOfEachRow, type OutcomeArgs, refuseMissingArgs } from './batch.ts'
import { checkTable } from './check-table.ts'
import { type ClaimAnswer, type ClaimedValues, readClaim } from './claim-answer.ts'
import { ExcludedRows, inHalves, isDataError, isUniqueViolation, type StoppedVerb } from './data-errors.ts'
import type { TableShape } from './inspect.ts'
import { keyOf, type Lease, trustedUntil } from './lease.ts'
import { checkBucket, checkDelay, checkGroups, checkLease, checkLimit, checkOwner } from './requests.ts'
import { backoffSteps } from './retry-policy.ts'
import type { LeaseStatement } from './statement.ts'
import { type ClaimStatements, leaseStatements, SUCCESS, type Way } from './statements.ts'
import { type LeaseTable, tableName } from './table.ts'
import { type TableSql, tableSql } from './table-sql.ts'
import type { Claim, ClaimRequest, Ended, Group, LeaseStore, Reaped, StoreOptions } from './verbs.ts'

export type * from './verbs.ts'

/** Checks the real table, refuses one that does not fit its declaration, and prepares its statements. */
export async function openLeaseStore<
  Row extends object = Record<string, unknown>,
  Outcome extends string = string,
>(db: Database, table: LeaseTable<Outcome>, options: StoreOptions): Promise<LeaseStore<Row, Outcome>> {
  checkOwner(options.owner)
  checkBucket(options.bucket ?? 0)
  return leaseStore(db, table, await checkTable(db, table), options)
}

/** Types whose values need no quotes in an array, which `pg` would look for character by character. */
const UNQUOTED = new Set(['smallint', 'integer', 'bigint', 'uuid'])

/** A walk from key to key visits at most this many keys in one statement: about 10 ms. */
const MAX_KEYS_PER_WALK = 1_000

/** How many rows are claimed by their ids when one of them stops a claim: their size is not known then. */
const MAX_ROWS_AROUND_CULPRIT = 50

/** How often a claim is repeated that another one raced for the same ordering key. */
const MAX_RACES = 3

/** The store over a table that has been checked already. */
export function leaseStore<Row extends object = Record<string, unknown>, Outcome extends string = string>(
  db: Queryable,
  table: LeaseTable<Outcome>,
  shape: TableShape,
  options: StoreOptions,
): LeaseStore<Row, Outcome> {
  const { owner, bucket = 0, clock = systemClock, onDataError = () => undefined } = options
  const t = tableSql(table, shape)
  const statements = leaseStatements(table, shape)
  const backoffMs = isSchedule(table.retry) ? table.retry : backoffSteps(table.retry)
  /** Rows whose claim, or whose reaping, was stopped by a data error. */
  const excluded = { claim: new ExcludedRows(clock), reap: new ExcludedRows(clock) }
  /** The walks of the groups' keys that have not come to the last key. */
  const groupWalks = new Map<string, GroupWalk>()

  async function run<Result extends object>(
    statement: LeaseStatement,
    values: Readonly<Record<string, unknown>>,
    { on = db, rowMode }: { readonly on?: Queryable; readonly rowMode?: 'array' } = {},
  ): Promise<Result[]> {
    const bound: Readonly<Record<string, unknown>> = { owner, bucket, backoffMs, ...values }
    const { rows } = await on.query<Result>({
      // In a transaction of the caller's, nobody knows whether there is a pooler without prepared statements.
      ...(on === db ? { name: statement.name } : {}),
      text: statement.text,
      values: statement.parameters.map((parameter) => bound[parameter]),
      ...(rowMode === undefined ? {} : { rowMode }),
    })
    return rows
  }

  /** Row ids as the arrays that the statements take, one for each key column. */
  function keyArrays(name: 'key' | 'excluded', ids: readonly string[]): Record<string, unknown> {
    const keys = ids.map((id) => keyOf(table, id))
    return Object.fromEntries(
      table.key.map((column, i) => {
        const values = keys.map((key) => key[i])
        const isPlain = UNQUOTED.has(shape.columns.get(column)?.type ?? '')
        return [`${name}${i + 1}`, isPlain ? `{${values.join(',')}}` : values]
      }),
    )
  }

  function batch(leases: readonly Lease[]): Record<string, unknown> {
    const ids = leases.map(({ id }) => id)
    return { ...keyArrays('key', ids), tokens: `{${leases.map(({ token }) => token).join(',')}}` }
  }

  function culprit(verb: StoppedVerb, rows?: ExcludedRows): (id: string, error: unknown) => void {
    return (id, error) => onDataError({ verb, id, error, ...(rows && { retryInMs: rows.add(id) }) })
  }

  /** Ends leases: all of them in one statement or, where a data error stops it, as many as possible. */
  async function end(
    statement: LeaseStatement,
    leases: readonly Lease[],
    values: (part: readonly Lease[]) => Readonly<Record<string, unknown>>,
    on?: Queryable,
  ): Promise<Ended> {
    if (leases.length === 0) return { ended: [], fencedOff: [], busy: [], refused: [] }
    const current = newestOfEachRow(leases)
    const refused: { lease: Lease; error: unknown }[] = []
    const send = async (part: readonly Lease[]): Promise<BusyRow[]> =>
      run<BusyRow>(statement, { ...batch(part), ...values(part) }, on === undefined ? {} : { on })
    const asked = [...current.values()]
    // A transaction of the caller's is over after an error.
    const parts =
      on === undefined
        ? await inHalves(asked, send, (lease, error) => refused.push({ lease, error }))
        : [await send(asked)]
    return { ...endedAmong(leases, current, parts.flat(), refused), refused }
  }

  function settleStatement(outcome: string): LeaseStatement {
    const statement = statements.settle.get(outcome)
    if (statement !== undefined) return statement
    throw new TypeError(
      `${outcome} is not an outcome of ${tableName(table)}: it has ${Object.keys(table.outcomes).join(', ')}`,
    )
  }

  function argsFor(
    outcome: Outcome,
    leases: readonly Lease[],
    args: readonly OutcomeArgs[] = [],
  ): (part: readonly Lease[]) => { args?: string } {
    const declared = Object.keys(table.outcomes[outcome].args)
    if (declared.length === 0) return () => ({})
    refuseMissingArgs(outcome, declared, leases, args)
    const byLease = new Map(leases.map((lease, i) => [lease, args[i] ?? {}]))
    return (part) => ({
      args: argsJson(
        part,
        newestOfEachRow(part),
        part.map((lease) => byLease.get(lease) ?? {}),
      ),
    })
  }

  function checkRequest({ limit, leaseMs, groups, ids }: ClaimRequest): void {
    checkLimit(limit)
    checkLease(leaseMs)
    if (ids === undefined) checkGroups(table, groups)
  }

  function scanValues(way: Way, request: ClaimRequest): Readonly<Record<string, unknown>> {
    const { limit, leaseMs, groups = [], bytes = Number.MAX_SAFE_INTEGER, suspects = 1 } = request
    const cursor = request.cursor ?? t.lowestCursor ?? []
    return {
      limit,
      leaseMs,
      bytes,
      suspects,
      steps:
        request.continueOnly === true
          ? 0
          : Math.max(2, Math.ceil(MAX_KEYS_PER_WALK / Math.max(1, groups.length))),
      ...keyArrays('excluded', excluded.claim.current()),
      ...(way === 'key'
        ? { keyCursor: request.cursor?.[0] ?? t.orderingKey?.lowest }
        : Object.fromEntries(cursor.map((value, i) => [`cursor${i + 1}`, value]))),
      groups: groups.map(({ key }) => key),
      rooms: groups.map(({ room }) => room),
      groupCursors: groups.map(({ key }) => groupWalks.get(key)?.cursor ?? t.orderingKey?.lowest),
    }
  }

  async function scan(
    statement: LeaseStatement,
    way: Way,
    request: ClaimRequest,
    held: Readonly<Record<string, unknown>> = {},
  ): Promise<ClaimAnswer<Row>> {
    const values = { ...scanValues(way, request), ...held }
    const answer = await sendClaim(statement, values)
    return way === 'group' && t.orderingKey !== undefined ? walked(answer, request.groups ?? []) : answer
  }

  /** Repeated where another claim took a row of the same ordering key at the same moment. */
  async function sendClaim(
    statement: LeaseStatement,
    values: Readonly<Record<string, unknown>>,
  ): Promise<ClaimAnswer<Row>> {
    for (let races = 0; ; races += 1) {
      try {
        return readClaim<Row>(await run<ClaimedValues>(statement, values, { rowMode: 'array' }), t, owner)
      } catch (error) {
        if (!isUniqueViolation(error) || races >= MAX_RACES) throw error
      }
    }
  }

  /**
   * Remembers where the walk of each group ended. There may be more in a group whose walk has not come to the last key, or
   * has come there from the middle and found something on the way.
   */
  function walked(answer: ClaimAnswer<Row>, groups: readonly Group[]): ClaimAnswer<Row> {
    const hasClaimed = answer.claimed.length > 0
    let more = answer.more === true
    for (const { key } of groups) {
      const [before, cursor] = [groupWalks.get(key), answer.groupCursors?.[key]]
      const found = hasClaimed || before?.found === true
      if (cursor !== undefined) groupWalks.set(key, { cursor: successor(t, cursor), found })
      else groupWalks.delete(key)
      more ||= cursor !== undefined || (before !== undefined && found)
    }
    return { ...answer, more }
  }

  async function claimWay(way: Way, claims: ClaimStatements, request: ClaimRequest): Promise<Claim<Row>> {
    const sentAt = clock.monotonicNow()
    try {
      const isWalking = (): boolean => request.groups?.some(({ key }) => groupWalks.has(key)) === true
      const isResumed = isWalking()
      const answer = await scan(claims.claim, way, request)
      if (!isResumed || isWalking() || answer.claimed.length > 0) return claimOf(way, answer, request, sentAt)
      // The walk of a group's keys began in the middle and is over: what is before that is found from the first key on.
      const fromStart = await scan(claims.claim, way, request)
      const more = answer.more === true || fromStart.claimed.length > 0
      return claimOf(way, { ...fromStart, more }, request, sentAt)
    } catch (error) {
      if (!isDataError(error)) throw error
      return claimAround(error, way, claims, request)
    }
  }

  /** By one way after the other, until the request is fulfilled: rows of ordering keys first. */
  async function claimByAllWays(request: ClaimRequest): Promise<Claim<Row>> {
    const [first = 'order', second] = statements.ways.keys()
    const claim = await claimWay(first, claimsOf(first), request)
    const limit = request.limit - claim.claimed.length
    const bytes = request.bytes === undefined ? undefined : request.bytes - (claim.bytes ?? 0)
    if (second === undefined) return claim
    if (limit <= 0 || (bytes !== undefined && bytes <= 0)) return { ...claim, more: true }
    const suspects = claim.suspect === undefined ? request.suspects : 0
    return both(claim, await claimWay(second, claimsOf(second), { ...request, limit, bytes, suspects }))
  }

  /** A row stops the claim: the rows it would have taken are claimed by their ids, in halves. */
  async function claimAround(
    error: unknown,
    way: Way,
    claims: ClaimStatements,
    request: ClaimRequest,
  ): Promise<Claim<Row>> {
    const few = { ...request, limit: Math.min(request.limit, MAX_ROWS_AROUND_CULPRIT) }
    const found = await run<FoundRow>(claims.find, scanValues(way, few))
    if (found.length === 0) throw error
    const suspect = found.find((row) => row.suspect)
    const ids = found.filter((row) => !row.suspect || row === suspect).map(({ id }) => id)
    const claim = await claimIds(ids, request)
    const hasSuspect = claim.claimed.some(({ lease }) => lease.id === suspect?.id)
    return { ...claim, more: true, ...(suspect !== undefined && hasSuspect ? { suspect: suspect.id } : {}) }
  }

  async function claimIds(ids: readonly string[], { leaseMs }: ClaimRequest): Promise<Claim<Row>> {
    const sentAt = clock.monotonicNow()
    const parts = await inHalves(
      ids,
      async (part) => (await sendClaim(statements.claimRows, { leaseMs, ...keyArrays('key', part) })).claimed,
      culprit('claim', excluded.claim),
    )
    const until = trustedUntil(sentAt, leaseMs)
    return { claimed: parts.flat(), cursor: undefined, more: false, leaseMs, trustedUntil: until }
  }

  function claimOf(
    way: Way,
    answer: ClaimAnswer<Row>,
    { leaseMs }: ClaimRequest,
    sentAt: number,
  ): Claim<Row> {
    const { claimed, cursor, more = false, dueInMs, suspect, bytes } = answer
    const at =
      cursor === null || cursor === undefined
        ? undefined
        : typeof cursor === 'string'
          ? [successor(t, cursor)]
          : cursor
    return {
      claimed,
      cursor: way === 'order' && t.lowestCursor === undefined ? undefined : at,
      // A walk that stopped before the last key has seen only some of them.
      more: more || (way === 'key' && at !== undefined),
      ...(dueInMs === null || dueInMs === undefined ? {} : { dueInMs }),
      ...(suspect === null || suspect === undefined ? {} : { suspect }),
      ...(bytes === null || bytes === undefined ? {} : { bytes }),
      leaseMs,
      trustedUntil: trustedUntil(sentAt, leaseMs),
    }
  }

  function claimsOf(way: Way): ClaimStatements {
    const claims = statements.ways.get(way)
    if (claims !== undefined) return claims
    throw new TypeError(
      `${tableName(table)} is not claimed by ${way}: its ways are ${[...statements.ways.keys()].join(', ')}`,
    )
  }

  return {
    table,
    owner,
    ways: [...statements.ways.keys()],
    canSettleAndClaim: [...statements.ways.values()].every(
      ({ settleAndClaim }) => settleAndClaim !== undefined,
    ),

    async claim(request) {
      checkRequest(request)
      if (request.ids !== undefined) return claimIds(request.ids, request)
      const { way } = request
      if (way !== undefined) return claimWay(way, claimsOf(way), request)
      return claimByAllWays(request)
    },

    async settleAndClaim({ leases, args }, request) {
      checkRequest(request)
      const way = request.way ?? (t.orderingKey === undefined ? 'order' : 'key')
      const claims = claimsOf(way)
      // The types say that a table that can settle and claim has this outcome.
      const outcome = SUCCESS as Outcome
      const valuesOf = argsFor(outcome, leases, args)
      const current = newestOfEachRow(leases)
      const asked = [...current.values()]
      const sentAt = clock.monotonicNow()
      try {
        if (claims.settleAndClaim === undefined)
          throw new TypeError(`${tableName(table)} cannot settle and claim`)
        const held = { ...batch(asked), ...valuesOf(asked) }
        const answer = await scan(claims.settleAndClaim, way, request, held)
        const claim = claimOf(way, answer, request, sentAt)
        if (answer.settled === undefined || answer.settled === null)
          return { ...endedAmong(leases, current, asked.map(settledRow), []), refused: [], ...claim }
        // Sent once more by themselves, the others turn out to be busy or fenced off.
        const settled = new Set(answer.settled)
        const others = asked.filter(({ id }) => !settled.has(id))
        const rest = await end(settleStatement(outcome), others, valuesOf).catch(() => ({
          // What was claimed must not be lost to a connection that breaks now; these are settled later.
          ended: [],
          fencedOff: [],
          refused: [],
          busy: others,
        }))
        const rows = [...asked.filter(({ id }) => settled.has(id)), ...rest.ended].map(settledRow)
        const busy = rest.busy.map(({ id }) => ({ id, busy: true }))
        return {
          ...endedAmong(leases, current, [...rows, ...busy], rest.refused),
          refused: rest.refused,
          ...claim,
        }
      } catch (error) {
        if (!isDataError(error)) throw error
        // Which of the two was stopped is found out by doing one after the other.
        const ended = await end(settleStatement(outcome), leases, valuesOf)
        // What was settled must not be reported as failed; the next claim tells what is wrong.
        const claim = await claimWay(way, claims, request).catch(() => nothingClaimed(request, sentAt))
        // Nothing was scanned for: the next claim finds the followers of the other keys.
        return { ...ended, ...claim, more: claim.more || request.continueOnly === true }
      }
    },

    async renew(leases, leaseMs) {
      checkLease(leaseMs)
      const sentAt = clock.monotonicNow()
      const until = trustedUntil(sentAt, leaseMs)
      const current = newestOfEachRow(leases)
      if (current.size === 0) return { renewed: [], busy: [], lost: [], trustedUntil: until }
      const stopped: BusyRow[] = []
      const parts = await inHalves(
        [...current.values()],
        async (part) => run<BusyRow>(statements.renew, { ...batch(part), leaseMs }),
        ({ id }, error) => {
          stopped.push({ id, busy: true })
          onDataError({ verb: 'renew', id, error })
        },
      )
      const busy = new Map([...parts.flat(), ...stopped].map((row) => [row.id, row.busy]))
      const answers = leases.map((lease) => (isNewest(current, lease) ? busy.get(lease.id) : undefined))
      return {
        renewed: leases.filter((_, i) => answers[i] === false),
        busy: leases.filter((_, i) => answers[i] === true),
        lost: leases.filter((_, i) => answers[i] === undefined),
        trustedUntil: until,
      }
    },

    async settle(outcome, leases, { args, tx } = {}) {
      const statement = settleStatement(outcome)
      return end(statement, leases, argsFor(outcome, leases, args), tx)
    },

    async release(leases, delayMs = 0) {
      checkDelay(delayMs)
      return end(statements.release, leases, () => ({ delayMs }))
    },

    async reap({ limit = 500, ownedBy } = {}) {
      checkLimit(limit)
      const which = ownedBy === undefined ? 'expired' : 'owned by'
      const none = Object.fromEntries(table.key.map((_, i) => [`key${i + 1}`, null]))
      const values = { limit, ownedBy, ...keyArrays('excluded', excluded.reap.current()) }
      try {
        return (await run<ReapedRow>(statements.reap[which], { ...values, ...none })).map(readReaped)
      } catch (error) {
        if (!isDataError(error)) throw error
        const found = await run<{ id: string }>(statements.findExpired[which], values)
        const parts = await inHalves(
          found.map(({ id }) => id),
          async (part) => run<ReapedRow>(statements.reap[which], { ...values, ...keyArrays('key', part) }),
          culprit('reap', excluded.reap),
        )
        return parts.flat().map(readReaped)
      }
    },
  }
}

interface GroupWalk {
  readonly cursor: string
  /** Something was claimed since the walk started at the first key. */
  readonly found: boolean
}

interface FoundRow {
  readonly id: string
  readonly suspect: boolean
}

interface BusyRow {
  readonly id: string
  readonly busy: boolean
}

function settledRow({ id }: Lease): BusyRow {
  return { id, busy: false }
}

interface ReapedRow {
  readonly id: string
  readonly owner: string
  readonly token: string | null
  readonly exhausted: boolean
  readonly stale_ms: number
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

const INTEGERS = new Set(['smallint', 'integer', 'bigint'])

function isSchedule(retry: LeaseTable['retry']): retry is readonly number[] {
  return Array.isArray(retry)
}

function nothingClaimed({ leaseMs }: ClaimRequest, sentAt: number): Claim<never> {
  const until = trustedUntil(sentAt, leaseMs)
  return { claimed: [], cursor: undefined, more: false, leaseMs, trustedUntil: until }
}

/** A claim that was made in two ways, one after the other. */
function both<Row>(first: Claim<Row>, second: Claim<Row>): Claim<Row> {
  const due = Math.min(first.dueInMs ?? Infinity, second.dueInMs ?? Infinity)
  const suspect = first.suspect ?? second.suspect
  return {
    claimed: [...first.claimed, ...second.claimed],
    cursor: undefined,
    more: first.more || second.more,
    ...(due === Infinity ? {} : { dueInMs: due }),
    ...(suspect === undefined ? {} : { suspect }),
    ...(first.bytes === undefined && second.bytes === undefined
      ? {}
      : { bytes: (first.bytes ?? 0) + (second.bytes ?? 0) }),
    leaseMs: first.leaseMs,
    trustedUntil: Math.min(first.trustedUntil, second.trustedUntil),
  }
}

/** Sorts the leases that were asked about by what the statement said of their rows. */
function endedAmong(
  leases: readonly Lease[],
  current: ReadonlyMap<string, Lease>,
  rows: readonly BusyRow[],
  refused: readonly { readonly lease: Lease }[],
): Omit<Ended, 'refused'> {
  const busyById = new Map(rows.map(({ id, busy }) => [id, busy]))
  const wasRefused = new Set(refused.map(({ lease }) => lease))
  const answers = leases.map((lease) =>
    wasRefused.has(lease) ? 'refused' : isNewest(current, lease) ? busyById.get(lease.id) : undefined,
  )
  return {
    ended: leases.filter((_, i) => answers[i] === false),
    busy: leases.filter((_, i) => answers[i] === true),
    fencedOff: leases.filter((_, i) => answers[i] === undefined),
  }
}

/** Without a token column, the token is at the end of the owner value. */
function readReaped({ id, owner: held, token, exhausted, stale_ms: staleMs }: ReapedRow): Reaped {
  if (token !== null) return { id, owner: held, token: BigInt(token), staleMs, exhausted }
  const [, owner = held, carried = '0'] = /^(.*)#(\d+)$/s.exec(held) ?? []
  return { id, owner, token: BigInt(carried), staleMs, exhausted }
}
