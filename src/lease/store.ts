import { type Clock, systemClock } from '../clock.ts'
import { LeaseholdError } from '../errors.ts'
import { type Database } from '../postgres/database.ts'
import { type Queryable } from '../postgres/queryable.ts'
import { fitTable } from './fit.ts'
import { keyOf, type Lease, trustedUntil } from './lease.ts'
import { leaseStatements, MAX_BATCH } from './sql.ts'
import { type LeaseStatement } from './statement.ts'
import { type LeaseTable } from './table.ts'

/** The values of the order columns at which a claim ended; opaque to everyone but the next claim. */
export type Place = readonly string[]

export interface Claimed<Row> {
  readonly lease: Lease
  readonly row: Row
}

export interface Claim<Row> {
  /** In the table's order. */
  readonly claimed: readonly Claimed<Row>[]
  /** Where to go on; absent when nothing was claimed or the table's order has no such place. */
  readonly place: Place | undefined
  /** On the local monotonic clock (D8). */
  readonly trustedUntil: number
}

export interface Renewal {
  readonly renewed: readonly Lease[]
  /** Still ours, but the row is locked by another transaction just now: not extended, not lost. */
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
}

export interface Reaped {
  readonly id: string
  /** Who held the row. */
  readonly owner: string
  readonly token: bigint
  /** How long the lease had been over. */
  readonly staleMs: number
}

export interface SettleOptions {
  /** The arguments of the outcome, one record for each lease. */
  readonly args?: readonly Readonly<Record<string, unknown>>[]
  /** The caller's own transaction: the row is settled exactly if it commits. */
  readonly tx?: Queryable
}

/** The five verbs over one table, for one owner (and one bucket). Nothing else changes a lease. */
export interface LeaseStore<Row extends object = Record<string, unknown>, Outcome extends string = string> {
  readonly table: LeaseTable<Outcome>
  readonly owner: string
  claim(request: { limit: number; leaseMs: number; from?: Place | undefined }): Promise<Claim<Row>>
  renew(leases: readonly Lease[], leaseMs: number): Promise<Renewal>
  settle(outcome: Outcome, leases: readonly Lease[], options?: SettleOptions): Promise<Ended>
  /** Gives rows back untouched, for another claim. */
  release(leases: readonly Lease[]): Promise<Ended>
  reap(request?: { limit?: number }): Promise<readonly Reaped[]>
}

export interface StoreOptions {
  readonly owner: string
  readonly bucket?: number
  readonly clock?: Clock
}

/** Looks at the real table, refuses one that does not fit, and prepares its statements. */
export async function openLeaseStore<
  Row extends object = Record<string, unknown>,
  Outcome extends string = string,
>(db: Database, table: LeaseTable<Outcome>, options: StoreOptions): Promise<LeaseStore<Row, Outcome>> {
  const { owner, bucket = 0, clock = systemClock } = options
  if (owner.trim() === '') {
    throw new LeaseholdError('SETTING_INVALID', `owner is ${JSON.stringify(owner)}.`, {
      remedy: 'Give every worker a unique, non-empty id.',
    })
  }
  const statements = leaseStatements(table, await fitTable(db, table))

  async function run<Result extends object>(
    statement: LeaseStatement,
    values: Readonly<Record<string, unknown>>,
    on: Queryable = db,
  ): Promise<Result[]> {
    const bound: Readonly<Record<string, unknown>> = { owner, bucket, ...values }
    const { rows } = await on.query<Result>({
      name: statement.name,
      text: statement.text,
      values: statement.parameters.map((parameter) => bound[parameter]),
    })
    return rows
  }

  /** The leases as the arrays that the statements take. */
  function batch(leases: Iterable<Lease>): Record<string, unknown> {
    const keys: (readonly string[])[] = []
    const tokens: bigint[] = []
    for (const lease of leases) {
      keys.push(keyOf(table, lease.id))
      tokens.push(lease.token)
    }
    const columns = table.key.map((_, i) => [`"@k${i + 1}"`, keys.map((key) => key[i])] as const)
    return { ...Object.fromEntries(columns), tokens: `{${tokens.join(',')}}` }
  }

  async function end(
    statement: LeaseStatement,
    leases: readonly Lease[],
    args?: SettleOptions['args'],
    on?: Queryable,
  ): Promise<Ended> {
    const current = newestOfEachRow(leases)
    if (current.size === 0) return { ended: [], fencedOff: [] }
    const values = {
      ...batch(current.values()),
      ...(args === undefined ? {} : { args: argsById(leases, current, args) }),
    }
    const rows = await run<{ '@id': string }>(statement, values, on)
    const changed = new Set(rows.map((row) => current.get(row['@id'])))
    return {
      ended: leases.filter((lease) => changed.has(lease)),
      fencedOff: leases.filter((lease) => !changed.has(lease)),
    }
  }

  return {
    table,
    owner,

    async claim({ limit, leaseMs, from }) {
      checkLimit(limit)
      checkLease(leaseMs)
      const sentAt = clock.monotonicNow()
      const resumed = from === undefined ? undefined : statements.claimFrom
      const places = Object.fromEntries((from ?? []).map((value, i) => [`"@o${i + 1}"`, value]))
      const rows = await run<ClaimedRow>(resumed ?? statements.claim, { limit, leaseMs, ...places })
      return { ...readClaim<Row>(rows, owner), trustedUntil: trustedUntil(sentAt, leaseMs) }
    },

    async renew(leases, leaseMs) {
      checkLease(leaseMs)
      const sentAt = clock.monotonicNow()
      const until = trustedUntil(sentAt, leaseMs)
      const current = newestOfEachRow(leases)
      if (current.size === 0) return { renewed: [], busy: [], lost: [], trustedUntil: until }
      const values = { ...batch(current.values()), leaseMs }
      const rows = await run<{ '@id': string; '@busy': boolean }>(statements.renew, values)
      const busy = new Map(rows.map((row) => [current.get(row['@id']), row['@busy']]))
      return {
        renewed: leases.filter((lease) => busy.get(lease) === false),
        busy: leases.filter((lease) => busy.get(lease) === true),
        lost: leases.filter((lease) => !busy.has(lease)),
        trustedUntil: until,
      }
    },

    async settle(outcome, leases, { args, tx } = {}) {
      const statement = statements.settle.get(outcome)
      if (statement === undefined) {
        throw new TypeError(
          `${outcome} is not an outcome of ${table.schema}.${table.name}: it has ${Object.keys(table.outcomes).join(', ')}`,
        )
      }
      return end(statement, leases, args, tx)
    },

    async release(leases) {
      return end(statements.release, leases)
    },

    async reap({ limit = 500 } = {}) {
      checkLimit(limit)
      const rows = await run<ReapedRow>(statements.reap, { limit })
      return rows.map(readReaped)
    },
  }
}

/**
 * Of two leases on one row only the one with the higher token can be current, so only that one is asked about.
 * A lease that is in the batch twice stays one.
 */
function newestOfEachRow(leases: readonly Lease[]): Map<string, Lease> {
  const newest = new Map<string, Lease>()
  for (const lease of leases) {
    const other = newest.get(lease.id)
    if (other === undefined || other.token < lease.token) newest.set(lease.id, lease)
  }
  return newest
}

function argsById(
  leases: readonly Lease[],
  current: ReadonlyMap<string, Lease>,
  args: NonNullable<SettleOptions['args']>,
): string {
  const byId = leases.flatMap((lease, i) =>
    current.get(lease.id) === lease ? [[lease.id, args[i] ?? {}]] : [],
  )
  return JSON.stringify(Object.fromEntries(byId))
}

interface ClaimedRow {
  readonly '@id': string
  readonly '@token': string
  readonly '@until': Date
  readonly '@order': string[] | null
  readonly '@place': (string | null)[] | null
}

function readClaim<Row extends object>(
  rows: readonly ClaimedRow[],
  owner: string,
): { claimed: Claimed<Row>[]; place: Place | undefined } {
  const byId = new Map<string, Claimed<Row>>()
  let order: readonly string[] = []
  let place: Place | undefined
  for (const { '@id': id, '@token': token, '@until': until, '@order': ids, '@place': at, ...row } of rows) {
    // What is left of the result is the row as the table has it; the caller says of which type that is.
    byId.set(id, { lease: { id, owner, token: BigInt(token), until }, row: row as Row })
    if (ids !== null) order = ids
    if (at !== null && at.every((value) => value !== null)) place = at
  }
  return { claimed: order.flatMap((id) => byId.get(id) ?? []), place }
}

interface ReapedRow {
  readonly '@id': string
  readonly '@owner': string
  readonly '@token': string | null
  readonly '@staleMs': number
}

/** Without a token column, the token is at the end of the owner value. */
function readReaped(row: ReapedRow): Reaped {
  const { '@id': id, '@owner': held, '@token': token, '@staleMs': staleMs } = row
  if (token !== null) return { id, owner: held, token: BigInt(token), staleMs }
  const [, owner = held, carried = '0'] = /^(.*)#(\d+)$/s.exec(held) ?? []
  return { id, owner, token: BigInt(carried), staleMs }
}

function checkLimit(limit: number): void {
  if (Number.isInteger(limit) && limit >= 1 && limit <= MAX_BATCH) return
  throw new LeaseholdError('SETTING_INVALID', `limit is ${limit}.`, {
    remedy: `Ask for a whole number of rows from 1 to ${MAX_BATCH}.`,
  })
}

function checkLease(leaseMs: number): void {
  if (Number.isFinite(leaseMs) && leaseMs > 0) return
  throw new LeaseholdError('SETTING_INVALID', `leaseMs is ${leaseMs}.`, {
    remedy: 'Give a number of milliseconds above 0.',
  })
}
