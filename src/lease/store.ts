/** A lease store: the five verbs over one table, for one owner. `README.md` has the protocol. */
import { type Clock, systemClock } from '../clock.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { stringifiable } from '../stringifiable.ts'
import { checkTable } from './check-table.ts'
import {
  checkClaim,
  checkDelay,
  checkLease,
  checkLimit,
  type Claim,
  type ClaimRequest,
  invalidSetting,
  MAX_DURATION_MS,
} from './claims.ts'
import { type CycleAnswer, type CycleOptions, LeaseCycle } from './cycle.ts'
import { type DataErrorReport, ExcludedRows, inHalves, isDataError } from './data-errors.ts'
import type { TableShape } from './inspect.ts'
import { type Lease, trustedUntil } from './lease.ts'
import { type Batch, type Ended, joined, LeaseBatches } from './lease-batches.ts'
import { type AnswerRow, StatementRunner, type Values } from './runner.ts'
import type { ClaimRoom } from './scans.ts'
import type { Reaped } from './reap.ts'
import type { BatchStatements } from './settle.ts'
import { type LeaseTable, tableName } from './table.ts'
import { MAX_BATCH } from './table-sql.ts'

export type { Claim, Claimed, ClaimRequest, Group } from './claims.ts'
export type { CycleAnswer, CycleClaim, CycleOptions } from './cycle.ts'
export type { Ended } from './lease-batches.ts'
export type { Reaped } from './reap.ts'
export type { ClaimRoom, SuspectRoom } from './scans.ts'

export interface Renewal {
  readonly renewed: readonly Lease[]
  /** Locked by another session, or stopped by a data error: not extended; the next renewal tells more. */
  readonly busy: readonly Lease[]
  /** Expired, settled, or held by another claim. */
  readonly lost: readonly Lease[]
  readonly trustedUntil: number
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

/** The arguments of an outcome for one row: scalars, dates, bytes or JSON. */
export type OutcomeArgs = Readonly<Record<string, unknown>>

export interface SettleOptions {
  /** The arguments of the outcome, one record for each lease. */
  readonly args?: readonly OutcomeArgs[]
  /** The caller's own transaction: the row is settled exactly if it commits. */
  readonly tx?: Queryable
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
  claim(request: ClaimRequest): Promise<Claim<Row>>
  renew(leases: readonly Lease[], leaseMs: number): Promise<Renewal>
  settle(outcome: OutcomeName, leases: readonly Lease[], options?: SettleOptions): Promise<Ended>
  /** Which row a lease is on, as a text from which `leaseAt` makes a lease again. */
  addressOf(lease: Lease): string
  leaseAt(address: string, token: bigint): Lease
  /** The leases by the node on which their rows are: those of one node fail together. */
  byNode(leases: readonly Lease[]): ReadonlyMap<string, readonly Lease[]>
  /** Settlements of finished rows and the claims that are due, in one round trip: what a worker sends again and again. */
  cycle(options?: Partial<Pick<CycleOptions, 'random' | 'clock'>>): StoreCycle<Row, OutcomeName>
  /** Gives rows back untouched, for another claim, at once or after a delay. */
  release(leases: readonly Lease[], delayMs?: number): Promise<Ended>
  /** Takes back what has expired, or all that an owner holds; of these ids only, where they are given. */
  reap(request?: ReapRequest): Promise<readonly Reaped[]>
}

/** Finished rows that are settled with one outcome, and the arguments of the outcome for each. */
export interface Settlement<OutcomeName extends string = string> {
  readonly outcome: OutcomeName
  readonly leases: readonly Lease[]
  readonly args?: readonly OutcomeArgs[] | undefined
}

export interface StoreCycle<Row extends object, OutcomeName extends string = string> extends Pick<
  LeaseCycle<Row>,
  'wake' | 'keysFreed'
> {
  send(request: {
    readonly settlements: readonly Settlement<OutcomeName>[]
    readonly room?: ClaimRoom | undefined
  }): Promise<CycleAnswer<Row>>
}

export interface StoreOptions {
  readonly owner: string
  /** Default 0. */
  readonly bucket?: number | 'all'
  readonly clock?: Clock
  /** How many buckets there are. Default: that is not known, and those with rows are found. */
  readonly bucketCount?: () => number
  /** Told of each row that stops a claim, a renewal or a reap with a data error; `settle` and `release` return theirs. */
  readonly onDataError?: (report: DataErrorReport) => void
}

const OPTIONS = namesOf<StoreOptions>({
  owner: true,
  bucket: true,
  bucketCount: true,
  clock: true,
  onDataError: true,
})

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
  const { owner, bucket = 0, bucketCount = () => Number.POSITIVE_INFINITY } = options
  const { clock = systemClock, onDataError = () => undefined } = options
  const runner = new StatementRunner(db, table, shape, owner)
  const { statements } = runner
  const batches = new LeaseBatches(runner, table.bucket === undefined ? 0 : bucket)
  const single = new LeaseCycle<Row>(runner, batches, bucket, { clock, onDataError, bucketCount })
  /** Rows that stopped a reap with a data error. */
  const notReaped = new ExcludedRows(clock)

  async function end(parts: readonly Batch[], tx?: Queryable): Promise<Ended> {
    return joined(await (tx === undefined ? batches.send(parts) : batches.sendIn(tx, parts)))
  }

  function settlementOf({ outcome, leases, args }: Settlement<OutcomeName>): Batch[] {
    return batches.of(settleStatement(outcome), leases, argsFor(outcome, leases, args))
  }

  function settleStatement(outcome: string): BatchStatements {
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

    async claim(request) {
      checkClaim(table, bucket, request)
      const { ids, limit, leaseMs, groups, bytes = Number.POSITIVE_INFINITY, takeExpired = true } = request
      const ofBucket = table.bucket === undefined ? undefined : bucket === 'all' ? request.bucket : bucket
      // What an expiry costs a row is the business of one statement, whoever sends it (D4, D5, D10).
      const expired =
        takeExpired && table.onExpiry === 'claimable' ? await reapIn(ofBucket, { ids, limit: MAX_BATCH }) : []
      const suspects = { suspects: request.suspects ?? 1, alone: true }
      const claim =
        ids === undefined
          ? await single.claimOnce({ rows: limit, bytes, leaseMs, groups, suspects }, ofBucket)
          : await single.claimRows(ids, { leaseMs }, ofBucket)
      return expired.length === 0 ? claim : { ...claim, reaped: expired }
    },

    cycle(cycleOptions) {
      const cycle = new LeaseCycle<Row>(runner, batches, bucket, {
        clock,
        onDataError,
        bucketCount,
        ...cycleOptions,
      })
      return {
        wake: () => cycle.wake(),
        keysFreed: (leases) => cycle.keysFreed(leases),
        send: async ({ settlements, room }) =>
          cycle.send({ settlements: settlements.map(settlementOf), room }),
      }
    },

    addressOf: ({ id, bucket: ofBucket }) => (table.bucket === undefined ? id : `${ofBucket ?? ''} ${id}`),

    leaseAt(address, token) {
      const at = table.bucket === undefined ? -1 : address.indexOf(' ')
      const [ofBucket, id] = [address.slice(0, Math.max(0, at)), address.slice(at + 1)]
      return { id, owner, bucket: ofBucket === '' ? undefined : Number(ofBucket), token, until: new Date(0) }
    },

    byNode(leases) {
      const nodes = new Map<string, Lease[]>()
      for (const lease of leases) {
        const node = shape.distributed ? String(lease.bucket) : ''
        nodes.set(node, [...(nodes.get(node) ?? []), lease])
      }
      return nodes
    },

    async renew(leases, leaseMs) {
      checkLease(leaseMs)
      const until = trustedUntil(clock.monotonicNow(), leaseMs)
      const { ended, busy, fencedOff, refused } = await end(
        batches.of(statements.renew, leases, () => ({ leaseMs })),
      )
      for (const { lease, error } of refused) onDataError({ verb: 'renew', id: lease.id, error })
      return {
        renewed: ended,
        busy: [...busy, ...refused.map(({ lease }) => lease)],
        lost: fencedOff,
        trustedUntil: until,
      }
    },

    async settle(outcome, leases, { args, tx } = {}) {
      return end(settlementOf({ outcome, leases, args }), tx)
    },

    async release(leases, delayMs = 0) {
      checkDelay(delayMs)
      return end(batches.of(statements.release, leases, () => ({ delayMs })))
    },

    async reap(request = {}) {
      if (bucket !== 'all' || statements.buckets === undefined)
        return reapIn(bucket === 'all' ? undefined : bucket, request)
      const reaped: Reaped[] = []
      const { limit = 500 } = request
      for (const [ofBucket] of await runner.run(statements.buckets.leased, {})) {
        if (reaped.length >= limit) break
        reaped.push(...(await reapIn(Number(ofBucket), { ...request, limit: limit - reaped.length })))
      }
      return reaped
    },
  }

  async function reapIn(
    ofBucket: number | undefined,
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
      return (await runner.run(statements.reap[which], { ...values, ...wanted })).map(readReaped)
    } catch (error) {
      if (!isDataError(error)) throw error
      const found = await runner.run(statements.findExpired[which], values)
      const parts = await inHalves(
        found.map(([id]) => String(id)),
        async (part) => runner.run(statements.reap[which], { ...values, ...runner.idArrays('id', part) }),
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

/** Without a token column, the token is at the end of the owner value. */
function readReaped([id, stored, token, exhausted, stale]: AnswerRow): Reaped {
  const rest = { id: String(id), staleMs: Number(stale), exhausted: exhausted === true }
  const held = String(stored)
  // The statement returns it as a text.
  if (token !== null) return stringifiable({ ...rest, owner: held, token: BigInt(token as string) })
  const [, owner = held, carried = '0'] = /^(.*)#(\d+)$/s.exec(held) ?? []
  return stringifiable({ ...rest, owner, token: BigInt(carried) })
}
