/** A lease store: the five verbs over one table, for one owner. `README.md` has the protocol. */
import { type Clock, systemClock } from '../clock.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { stringifiable } from '../stringifiable.ts'
import { checkTable } from './check-table.ts'
import {
  checkDelay,
  checkLease,
  checkLimit,
  MAX_DURATION_MS,
  type Claim,
  type ClaimRequest,
  Claims,
  invalidSetting,
  nothingClaimed,
} from './claims.ts'
import { type DataErrorReport, ExcludedRows, inHalves, isDataError } from './data-errors.ts'
import type { TableShape } from './inspect.ts'
import { type Lease, trustedUntil } from './lease.ts'
import { StatementRunner, type Values } from './runner.ts'
import type { LeaseStatement } from './statement.ts'
import { SUCCESS, type Way } from './statements.ts'
import { type LeaseTable, tableName } from './table.ts'
import { MAX_BATCH } from './table-sql.ts'

export type { Claim, Claimed, ClaimRequest, Cursor, Group } from './claims.ts'

export interface WaitingBucket {
  readonly bucket: number
  /** In how long its first row is due, as far as an index tells; 0 or less: one may be claimable now. */
  readonly dueInMs: number
}

export interface Renewal {
  readonly renewed: readonly Lease[]
  /** Locked by another session, or stopped by a data error: not extended; the next renewal tells more. */
  readonly busy: readonly Lease[]
  /** Expired, settled, or held by another claim. */
  readonly lost: readonly Lease[]
  readonly trustedUntil: number
}

/** What became of the leases handed to `settle` or `release`. */
export interface Ended {
  readonly ended: readonly Lease[]
  /** Their rows are unchanged: the token is no longer current. */
  readonly fencedOff: readonly Lease[]
  /** Still ours, but locked by another session: try again. */
  readonly busy: readonly Lease[]
  /** Still ours, but a data error stops this outcome: trying again would bring the same. */
  readonly refused: readonly { readonly lease: Lease; readonly error: unknown }[]
  /** Of the busy ones: their settlement failed with this error, and may have been written if it only got no answer. */
  readonly unanswered?: { readonly leases: readonly Lease[]; readonly error: unknown }
}

export interface ReapRequest {
  readonly limit?: number
  readonly ownedBy?: string
  readonly ids?: readonly string[] | undefined
  /** Not these. */
  readonly except?: readonly string[]
  /** What happened, for the error of the row. Default: the text of the table's declaration. */
  readonly reason?: string
  /** Of expired leases: owners that live. Default: none. */
  readonly living?: LivingOwners
}

/**
 * Owners whose leases expired although they live: the database was away. They are left time to give their rows back
 * themselves. After that the rows have lost an attempt, but it is no expiry that makes a suspect (D10).
 */
export interface LivingOwners {
  readonly owners: readonly string[]
  /** For how long after the end of its lease a row is left to its owner. */
  readonly graceMs: number
}

export interface Reaped {
  readonly id: string
  /** Who held the row. */
  readonly owner: string
  readonly token: bigint
  /** How long the lease had been over. */
  readonly staleMs: number
  /** Its attempts are used up. */
  readonly exhausted: boolean
}

/** The arguments of an outcome for one row: scalars, dates, bytes or JSON. */
export type OutcomeArgs = Readonly<Record<string, unknown>>

export interface SettleOptions {
  /** The arguments of the outcome, one record for each lease. */
  readonly args?: readonly OutcomeArgs[]
  /** The caller's own transaction: the row is settled exactly if it commits. */
  readonly tx?: Queryable
}

/** A batch of finished rows that is settled together with the next claim. */
export interface Settlement {
  readonly leases: readonly Lease[]
  readonly args?: readonly OutcomeArgs[] | undefined
}

/**
 * The five verbs over one table, for one owner, and for one bucket or all. No worker changes a lease by anything else. Four operator
 * functions of our own applications can end one: `README.md`, "Who may write what".
 */
export interface LeaseStore<
  Row extends object = Record<string, unknown>,
  OutcomeName extends string = string,
> {
  readonly table: LeaseTable<OutcomeName>
  readonly owner: string
  /** Which bucket it serves, in a table with buckets. All: a claim says which one, and a lease knows its own. */
  readonly bucket: number | 'all'
  /** How claims of this table find rows. */
  readonly ways: readonly Way[]
  claim(request: ClaimRequest): Promise<Claim<Row>>
  renew(leases: readonly Lease[], leaseMs: number): Promise<Renewal>
  settle(outcome: OutcomeName, leases: readonly Lease[], options?: SettleOptions): Promise<Ended>
  /** Whether rows settled as `done` and the next claim can share a statement. */
  readonly canSettleAndClaim: boolean
  /**
   * Settles a batch as `done` and claims the next one, in one round trip. What cannot be settled, because another session
   * has locked it, say, counts towards the limit of the claim.
   */
  settleAndClaim(settlement: Settlement, request: ClaimRequest): Promise<Ended & Claim<Row>>
  /** Gives rows back untouched, for another claim, at once or after a delay. */
  release(leases: readonly Lease[], delayMs?: number): Promise<Ended>
  /** Takes back what has expired, or all that an owner holds; of these ids only, where they are given. */
  reap(request?: ReapRequest): Promise<readonly Reaped[]>
  /** In which buckets rows wait, and for how long: of a table with buckets, one statement for all of them. */
  findBuckets(): Promise<readonly WaitingBucket[]>
}

export interface StoreOptions {
  readonly owner: string
  /** Default 0. */
  readonly bucket?: number | 'all'
  readonly clock?: Clock
  /** Told of each row that stops a claim, a renewal or a reap with a data error; `settle` and `release` return theirs. */
  readonly onDataError?: (report: DataErrorReport) => void
}

const OPTIONS = namesOf<StoreOptions>({ owner: true, bucket: true, clock: true, onDataError: true })

/**
 * Checks the real table, refuses one that does not fit its declaration, and prepares its statements. Of an index that is
 * missing Node prints a warning.
 */
export async function openLeaseStore<
  Row extends object = Record<string, unknown>,
  OutcomeName extends string = string,
>(
  db: Database,
  table: LeaseTable<OutcomeName>,
  options: StoreOptions,
): Promise<LeaseStore<Row, OutcomeName>> {
  refuseUnknownOptions('openLeaseStore', options, OPTIONS)
  checkOptions(options)
  const { shape, slow } = await checkTable(db, table)
  for (const { what, remedy } of slow)
    process.emitWarning(`The lease table ${tableName(table)} is slow: ${what}. ${remedy}`, 'LeaseholdWarning')
  return leaseStore(db, table, shape, options)
}

/** The store over a table that has been checked already. */
export function leaseStore<Row extends object = Record<string, unknown>, OutcomeName extends string = string>(
  db: Queryable,
  table: LeaseTable<OutcomeName>,
  shape: TableShape,
  options: StoreOptions,
): LeaseStore<Row, OutcomeName> {
  const { owner, bucket = 0, clock = systemClock, onDataError = () => undefined } = options
  const runner = new StatementRunner(db, table, shape, owner)
  const { statements } = runner
  const claims = new Claims<Row>(runner, bucket, clock, onDataError)
  /** Rows that stopped a reap with a data error. */
  const notReaped = new ExcludedRows(clock)

  /** Ends leases: all of them in one statement or, where a data error stops it, as many as possible. */
  async function end(
    statement: LeaseStatement,
    leases: readonly Lease[],
    valuesOf: (part: readonly Lease[]) => Values,
    tx?: Queryable,
  ): Promise<Ended> {
    const ended: Ended[] = []
    for (const [ofBucket, part] of byBucket(leases)) {
      const current = newestOfEachRow(part)
      const refused: { lease: Lease; error: unknown }[] = []
      const send = async (asked: readonly Lease[]): Promise<ChangedRow[]> =>
        runner.run(statement, { bucket: ofBucket, ...runner.leaseArrays(asked), ...valuesOf(asked) }, { tx })
      // A transaction of the caller's is over after an error.
      const changed =
        tx === undefined
          ? await inHalves([...current.values()], send, (lease, error) => refused.push({ lease, error }))
          : [await send([...current.values()])]
      ended.push(endedAmong(part, current, changed.flat(), refused))
    }
    return {
      ended: ended.flatMap((each) => each.ended),
      fencedOff: ended.flatMap((each) => each.fencedOff),
      busy: ended.flatMap((each) => each.busy),
      refused: ended.flatMap((each) => each.refused),
    }
  }

  /** Each statement concerns one bucket. */
  function byBucket(leases: readonly Lease[]): ReadonlyMap<number | undefined, readonly Lease[]> {
    if (leases.length === 0) return new Map()
    if (bucket !== 'all') return new Map([[bucket, leases]])
    const parts = new Map<number | undefined, Lease[]>()
    for (const lease of leases) {
      const known = parts.get(lease.bucket)
      if (known === undefined) parts.set(lease.bucket, [lease])
      else known.push(lease)
    }
    return parts
  }

  function settleStatement(outcome: string): LeaseStatement {
    const statement = statements.settle.get(outcome)
    if (statement !== undefined) return statement
    throw new TypeError(
      `${outcome} is not an outcome of ${tableName(table)}: it has ${Object.keys(table.outcomes).join(', ')}`,
    )
  }

  /** The arguments of an outcome, for the part of a batch that a statement settles. */
  function argsFor(
    outcome: OutcomeName,
    leases: readonly Lease[],
    args: readonly OutcomeArgs[] = [],
  ): (part: readonly Lease[]) => Values {
    const declared = Object.keys(table.outcomes[outcome].args)
    if (declared.length === 0) return () => ({})
    refuseMissingArgs(outcome, declared, leases, args)
    const byLease = new Map(leases.map((lease, i) => [lease, args[i] ?? {}]))
    return (part) => ({ args: argsJson(part.map((lease) => [lease.id, byLease.get(lease) ?? {}])) })
  }

  return {
    table,
    owner,
    bucket,
    ways: [...statements.ways.keys()],
    canSettleAndClaim: [...statements.ways.values()].every(
      ({ settleAndClaim }) => settleAndClaim !== undefined,
    ),

    async claim(request) {
      claims.check(request)
      const { ids, takeExpired = true } = request
      if (!takeExpired || table.onExpiry === 'reap') return claims.claim(request)
      // What an expiry costs a row is the business of one statement, whoever sends it (D4, D5, D10).
      const expired = await reapIn(bucket === 'all' ? (request.bucket ?? 0) : bucket, {
        ids,
        limit: MAX_BATCH,
      })
      const claim = await claims.claim(request)
      return expired.length === 0 ? claim : { ...claim, reaped: expired }
    },

    async settleAndClaim({ leases, args }, request) {
      claims.check(request)
      const way = request.way ?? (table.ordering === undefined ? 'order' : 'key')
      // The types say that a table that can settle and claim has this outcome.
      const outcome = SUCCESS as OutcomeName
      const valuesOf = argsFor(outcome, leases, args)
      const current = newestOfEachRow(leases)
      const asked = [...current.values()]
      const sentAt = clock.monotonicNow()
      try {
        refuseSeveralBuckets(asked, request)
        const settlement = { ...runner.leaseArrays(asked), ...valuesOf(asked) }
        const { claim, settled } = await claims.settleAndClaim(way, settlement, request)
        if (settled === null) return { ...endedAmong(leases, current, asked.map(settledRow), []), ...claim }
        // Sent once more by themselves, the others turn out to be busy or fenced off.
        const settledIds = new Set(settled)
        const others = asked.filter(({ id }) => !settledIds.has(id))
        const rest = await end(settleStatement(outcome), others, valuesOf).catch(
          // What was claimed must not be lost to a connection that breaks now; these are settled later.
          (error: unknown): Ended => ({
            ended: [],
            fencedOff: [],
            refused: [],
            busy: others,
            unanswered: { leases: others, error },
          }),
        )
        const rows = [...asked.filter(({ id }) => settledIds.has(id)), ...rest.ended].map(settledRow)
        const busy = rest.busy.map(({ id }) => ({ id, busy: true }))
        const freed = [...(claim.freed ?? []), ...rest.ended.map(({ id }) => id)]
        const answer = { ...endedAmong(leases, current, [...rows, ...busy], rest.refused), ...claim, freed }
        return rest.unanswered === undefined ? answer : { ...answer, unanswered: rest.unanswered }
      } catch (error) {
        if (!isDataError(error)) throw error
        // Which of the two was stopped is found out by doing one after the other.
        const ended = await end(settleStatement(outcome), leases, valuesOf)
        const limit = request.limit - (leases.length - ended.ended.length)
        const freed = [...(request.freed ?? []), ...ended.ended.map(({ id }) => id)]
        const none = { ...nothingClaimed(request.leaseMs, sentAt), freed, more: limit <= 0 }
        // What was settled must not be reported as failed; the next claim tells what is wrong.
        const claim =
          limit <= 0 ? none : await claims.claimByWay(way, { ...request, limit, freed }).catch(() => none)
        return { ...ended, ...claim, more: claim.more || request.continueOnly === true }
      }
    },

    async renew(leases, leaseMs) {
      checkLease(leaseMs)
      const until = trustedUntil(clock.monotonicNow(), leaseMs)
      const renewal = { renewed: [] as Lease[], busy: [] as Lease[], lost: [] as Lease[] }
      for (const [ofBucket, part] of byBucket(leases)) {
        const current = newestOfEachRow(part)
        const rows: ChangedRow[] = []
        const parts = await inHalves(
          [...current.values()],
          async (asked) =>
            runner.run<ChangedRow>(statements.renew, {
              bucket: ofBucket,
              ...runner.leaseArrays(asked),
              leaseMs,
            }),
          ({ id }, error) => {
            rows.push({ id, busy: true })
            onDataError({ verb: 'renew', id, error })
          },
        )
        const { ended, busy, fencedOff } = endedAmong(part, current, [...rows, ...parts.flat()], [])
        renewal.renewed.push(...ended)
        renewal.busy.push(...busy)
        renewal.lost.push(...fencedOff)
      }
      return { ...renewal, trustedUntil: until }
    },

    async settle(outcome, leases, { args, tx } = {}) {
      const statement = settleStatement(outcome)
      return end(statement, leases, argsFor(outcome, leases, args), tx)
    },

    async release(leases, delayMs = 0) {
      checkDelay(delayMs)
      return end(statements.release, leases, () => ({ delayMs }))
    },

    async reap(request = {}) {
      if (bucket !== 'all' || statements.buckets === undefined)
        return reapIn(bucket === 'all' ? 0 : bucket, request)
      const reaped: Reaped[] = []
      const { limit = 500 } = request
      const found = await runner.run<{ bucket: number }>(statements.buckets.leased, {})
      for (const { bucket: ofBucket } of found) {
        if (reaped.length >= limit) break
        reaped.push(...(await reapIn(ofBucket, { ...request, limit: limit - reaped.length })))
      }
      return reaped
    },

    async findBuckets() {
      if (statements.buckets === undefined) return []
      const rows = await runner.run<{ bucket: number; due_in_ms: number | null }>(
        statements.buckets.waiting,
        {},
      )
      return rows.flatMap(({ bucket: found, due_in_ms: dueInMs }) =>
        dueInMs === null ? [] : [{ bucket: found, dueInMs }],
      )
    },
  }

  async function reapIn(
    ofBucket: number,
    { limit = 500, ownedBy, ids, except = [], reason, living }: ReapRequest,
  ): Promise<readonly Reaped[]> {
    checkLimit(limit)
    const which = ownedBy === undefined ? 'expired' : 'owned by'
    const wanted =
      ids === undefined
        ? Object.fromEntries(table.id.map((_, i) => [`id${i + 1}`, null]))
        : runner.idArrays('id', ids)
    const values = {
      limit,
      bucket: ofBucket,
      ownedBy,
      reason: reason ?? null,
      living: living?.owners ?? [],
      graceMs: Math.min(living?.graceMs ?? 0, MAX_DURATION_MS),
      ...runner.idArrays('excluded', [...notReaped.current(), ...except]),
    }
    try {
      return (await runner.run<ReapedRow>(statements.reap[which], { ...values, ...wanted })).map(readReaped)
    } catch (error) {
      if (!isDataError(error)) throw error
      const found = await runner.run<{ id: string }>(statements.findExpired[which], values)
      const parts = await inHalves(
        found.map(({ id }) => id),
        async (part) =>
          runner.run<ReapedRow>(statements.reap[which], { ...values, ...runner.idArrays('id', part) }),
        (id, stop) => onDataError({ verb: 'reap', id, error: stop, retryInMs: notReaped.add(id) }),
      )
      return parts.flat().map(readReaped)
    }
  }
}

function checkOptions({ owner, bucket = 0 }: StoreOptions): void {
  const given: unknown = owner
  if (typeof given !== 'string' || given.trim() === '' || given.includes('\0'))
    throw invalidSetting('owner', owner, 'Give every worker a unique id that is not empty.')
  if (bucket !== 'all' && !Number.isInteger(bucket))
    throw invalidSetting('bucket', bucket, "Give a whole number, or 'all'.")
}

function refuseSeveralBuckets(leases: readonly Lease[], { bucket }: ClaimRequest): void {
  const other = leases.find((lease) => bucket !== undefined && lease.bucket !== bucket)
  if (other === undefined) return
  throw new TypeError(
    `row ${other.id} is in bucket ${other.bucket}, and is settled together with a claim from bucket ${bucket}`,
  )
}

/** What a statement says of a row of its batch: changed, or locked by another session. */
interface ChangedRow {
  readonly id: string
  readonly busy: boolean
}

function settledRow({ id }: Lease): ChangedRow {
  return { id, busy: false }
}

/**
 * Of two leases on one row only the one with the higher token can be current, so only that one is asked about, and a
 * lease that is in the batch twice is asked about once.
 */
function newestOfEachRow(leases: readonly Lease[]): Map<string, Lease> {
  const newest = new Map<string, Lease>()
  for (const lease of leases) {
    const other = newest.get(lease.id)
    if (other === undefined || other.token < lease.token) newest.set(lease.id, lease)
  }
  return newest
}

/** Sorts the leases of a batch by what the statement said of their rows. */
function endedAmong(
  leases: readonly Lease[],
  current: ReadonlyMap<string, Lease>,
  rows: readonly ChangedRow[],
  refused: Ended['refused'],
): Ended {
  const busyById = new Map(rows.map(({ id, busy }) => [id, busy]))
  const wasRefused = new Set(refused.map(({ lease }) => lease))
  const answers = leases.map((lease) => {
    if (wasRefused.has(lease)) return 'refused'
    const isNewest = current.get(lease.id)?.token === lease.token
    return isNewest ? busyById.get(lease.id) : undefined
  })
  return {
    ended: leases.filter((_, i) => answers[i] === false),
    busy: leases.filter((_, i) => answers[i] === true),
    fencedOff: leases.filter((_, i) => answers[i] === undefined),
    refused,
  }
}

/** An argument that is left out, or misspelt, is not the same as one that is null. */
function refuseMissingArgs(
  outcome: string,
  declared: readonly string[],
  leases: readonly Lease[],
  args: readonly OutcomeArgs[],
): void {
  leases.forEach(({ id }, i) => {
    const missing = declared.find((name) => !Object.hasOwn(args[i] ?? {}, name))
    if (missing === undefined) return
    throw new TypeError(
      `the outcome ${outcome} needs the argument ${missing}, and row ${id} has none; null is one`,
    )
  })
}

/** The arguments of each row as one JSON object, in a form that PostgreSQL takes whatever a handler threw. */
function argsJson(rows: readonly (readonly [id: string, args: OutcomeArgs])[]): string {
  const byId = rows.map(([id, args]) => [
    id,
    Object.fromEntries(Object.entries(args).map(([name, value]) => [name, jsonValue(value)])),
  ])
  return JSON.stringify(Object.fromEntries(byId), (_, value: unknown) =>
    typeof value === 'string' ? storable(value) : value,
  )
}

/** `->>` gives the text that the declared type is then cast from; JSON has no word for these. */
function jsonValue(value: unknown): unknown {
  if (typeof value === 'bigint') return value.toString()
  if (typeof value === 'number' && !Number.isFinite(value)) return String(value)
  if (value instanceof Uint8Array) return `\\x${Buffer.from(value).toString('hex')}`
  return value
}

/** A cut-off emoji or a NUL in one error message would keep the whole batch from being settled. */
function storable(text: string): string {
  return text.toWellFormed().replaceAll('\0', '\uFFFD')
}

interface ReapedRow {
  readonly id: string
  readonly owner: string
  readonly token: string | null
  readonly exhausted: boolean
  readonly stale_ms: number
}

/** Without a token column, the token is at the end of the owner value. */
function readReaped({ id, owner: stored, token, exhausted, stale_ms: staleMs }: ReapedRow): Reaped {
  if (token !== null) return stringifiable({ id, owner: stored, token: BigInt(token), staleMs, exhausted })
  const [, owner = stored, carried = '0'] = /^(.*)#(\d+)$/s.exec(stored) ?? []
  return stringifiable({ id, owner, token: BigInt(carried), staleMs, exhausted })
}
