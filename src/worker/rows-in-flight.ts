/** The rows that a worker holds: from their claim until they are settled, released or lost. */
import { LeaseholdError } from '../errors.ts'
import type { Lease } from '../lease/lease.ts'
import type { Claim, Claimed, LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import type { Groups } from './claiming/groups.ts'
import type { SuspectSlot } from './claiming/suspect-slot.ts'
import type { Outcome } from './completion/outcome.ts'
import type { Events, LossReason } from './events.ts'
import type { HeldRow, HeldRows } from './heartbeat/held-rows.ts'

interface ClaimFacts {
  readonly leaseMs: number
  readonly claimedAt: number
  readonly attempt: number
  readonly isSuspect: boolean
  readonly bytes: number
}

/** One row in flight. */
export class RowInFlight<Row> implements HeldRow {
  readonly lease: Lease
  readonly row: Row
  readonly index: number
  readonly generation: number
  readonly claimedAt: number
  /** When it was claimed, by the database's clock. */
  readonly databaseClaimedAt: number
  readonly attempt: number
  /** A suspect: as long as it is in flight, this process has less room for others (D10). */
  hasSuspectSlot: boolean
  /** Its share of the bytes that were claimed with it. */
  readonly bytes: number
  /**
   * `waiting`: for a slot. `running`: its handler has not returned yet. `abandoned`: the same, and the lease was lost
   * meanwhile. `ended`: its handler has returned.
   */
  state: 'waiting' | 'running' | 'abandoned' | 'ended' = 'waiting'
  /** The key whose limits it counts towards, once it was started. */
  limitedBy: string | undefined = undefined
  /** Made when somebody asks for the signal, or when there is a reason to fire it. */
  abort: AbortController | undefined = undefined
  lost: LossReason | undefined = undefined
  /** The handler settled it in a transaction of its own. */
  settledAs: Outcome | undefined = undefined
  /** A settlement was sent whose answer never came: it may have been written. */
  isSettlementUnanswered = false
  /** `Groups.ended` was called for it. */
  hasLeftGroup = false

  constructor({ lease, row }: Claimed<Row>, held: HeldRow, facts: ClaimFacts) {
    this.lease = lease
    this.row = row
    this.index = held.index
    this.generation = held.generation
    this.claimedAt = facts.claimedAt
    this.databaseClaimedAt = lease.until.getTime() - facts.leaseMs
    this.attempt = facts.attempt
    this.hasSuspectSlot = facts.isSuspect
    this.bytes = facts.bytes
  }

  get id(): string {
    return this.lease.id
  }
}

export interface RowsInFlightOptions<Row extends object> {
  readonly store: Pick<LeaseStore<Row>, 'table' | 'addressOf'>
  readonly events: Events
  /** Shared with the heartbeat, which renews what is held there. */
  readonly held: HeldRows
  /** Tells the heartbeat of a row whose address is too long for the memory that they share. */
  readonly hold: (row: HeldRow, address: string) => void
  readonly suspects: SuspectSlot
  /** Gives back a row whose lease is not trusted any more. */
  readonly giveBack: (row: RowInFlight<Row>, hasRun: boolean) => void
  readonly groups?: Groups<Row> | undefined
}

/** All rows in flight of one worker: which leases can be trusted, and what is freed when a row is dropped. */
export class RowsInFlight<Row extends object> {
  readonly #options: RowsInFlightOptions<Row>
  readonly #table: string
  /** By their index in the memory that is shared with the heartbeat. */
  readonly #rows: (RowInFlight<Row> | undefined)[] = []
  #bytes = 0

  constructor(options: RowsInFlightOptions<Row>) {
    this.#options = options
    this.#table = tableName(options.store.table)
  }

  /** The bytes of all of them, in a table that declares how large a row is. */
  get bytes(): number {
    return this.#bytes
  }

  /** Takes in the rows of a claim. Their renewal starts no later than their handlers (WH-FR-001-AC1). */
  add(claim: Claim<Row>, claimedAt: number): RowInFlight<Row>[] {
    const { store, held, hold } = this.#options
    const attempts = store.table.attempts?.column
    const { leaseMs } = claim
    const bytes = (claim.bytes ?? 0) / Math.max(1, claim.claimed.length)
    const rows = claim.claimed.map((claimed) => {
      const counted: unknown = attempts === undefined ? 0 : Reflect.get(claimed.row, attempts)
      const attempt = Number(counted ?? 0) + 1
      const isSuspect = claim.suspects?.includes(claimed.lease.id) === true
      const facts = { claimedAt, leaseMs, attempt, isSuspect, bytes }
      const { token } = claimed.lease
      const address = store.addressOf(claimed.lease)
      const { trustedUntil } = claim
      const row = new RowInFlight(claimed, held.take({ trustedUntil, claimedAt, token, address }), facts)
      this.#rows[row.index] = row
      if (held.isTooLong(row)) hold(row, address)
      return row
    })
    this.#bytes += claim.bytes ?? 0
    return rows
  }

  /** Held, not lost, and within the time for which the lease can be trusted (D8). */
  isTrusted(row: RowInFlight<Row>, now: number): boolean {
    return this.#options.held.isTrusted(row, now)
  }

  /** Until when its lease can be trusted, or could, as long as it is not dropped. */
  trustedUntil(row: RowInFlight<Row>): number {
    return this.#options.held.trustedUntil(row)
  }

  /** The handler has returned: the row only waits to be settled. */
  finish(row: RowInFlight<Row>): void {
    this.#options.held.finish(row)
  }

  /** Tells a heartbeat that starts anew of the rows whose addresses are not in the shared memory. */
  holdAgain(): void {
    const { store, held, hold } = this.#options
    for (const row of this.#rows)
      if (row !== undefined && held.isTooLong(row)) hold(row, store.addressOf(row.lease))
  }

  /**
   * The lease is lost, whether the handler returns or not. A handler that never returns must not keep the process from
   * all other suspects.
   */
  lose(row: RowInFlight<Row>, reason: LossReason): void {
    row.lost = reason
    this.#options.held.lose(row)
    this.#freeSuspectSlot(row)
    this.#options.events.emit('lost', { ...refTo(row, this.#table), reason })
  }

  /** The row is no longer in flight. With an outcome that was not written: it was fenced off. */
  drop(row: RowInFlight<Row>, fencedOffAs?: string): void {
    // Called twice where a handler returns after its row was lost.
    if (this.#options.held.free(row)) {
      this.#bytes -= row.bytes
      this.#rows[row.index] = undefined
    }
    this.#freeSuspectSlot(row)
    // A row that was lost while its handler runs still takes up room in its group.
    if (row.state === 'waiting' || row.state === 'ended') this.leaveGroup(row)
    if (fencedOffAs !== undefined)
      this.#options.events.emit('fencedOff', {
        ...refTo(row, this.#table),
        outcome: fencedOffAs,
        isUncertain: row.isSettlementUnanswered,
      })
  }

  /** The same for a row that is still leased by this process, as far as it knows, and can no longer be settled or released. */
  giveUp(row: RowInFlight<Row>, fencedOffAs?: string, hasRun = row.state !== 'waiting'): void {
    this.drop(row, fencedOffAs)
    if (row.lost !== 'taken' && row.lost !== 'tooLong') this.#options.giveBack(row, hasRun)
  }

  /** The ids of all of them. */
  get ids(): string[] {
    return this.#rows.flatMap((row) => (row === undefined ? [] : [row.id]))
  }

  /** Called when the handler has returned, or when the row was never started; the group is told once. */
  leaveGroup(row: RowInFlight<Row>): void {
    if (this.#options.groups === undefined || row.hasLeftGroup) return
    row.hasLeftGroup = true
    this.#options.groups.ended(row.row)
  }

  #freeSuspectSlot(row: RowInFlight<Row>): void {
    if (!row.hasSuspectSlot) return
    row.hasSuspectSlot = false
    this.#options.suspects.ended(row.state === 'ended')
  }
}

/**
 * How long before `now`, a moment of the monotonic clock, the row was written: until its claim by the database's clock, and
 * from then on by our own. The clock of the host may therefore be wrong. The claim counts from when it was sent, so the
 * latency is too long by what the claim took to reach the database. Undefined: the row does not say when it was written.
 */
export function latencyOf<Row extends object>(
  row: RowInFlight<Row>,
  createdAt: string,
  now: number,
): number | undefined {
  const created: unknown = Reflect.get(row.row, createdAt)
  if (!(created instanceof Date)) return undefined
  // A producer may have written a moment that is yet to come.
  const latencyMs = Math.max(0, row.databaseClaimedAt - created.getTime() + now - row.claimedAt)
  return Number.isFinite(latencyMs) ? latencyMs : undefined
}

/** What the event `settled` says of the latencies of rows with this outcome. */
export function latenciesOf<Row extends object>(
  rows: readonly RowInFlight<Row>[],
  outcome: string,
  createdAt: string | undefined,
  now: number,
): { readonly latenciesMs?: readonly number[] } {
  if (createdAt === undefined || outcome !== 'done') return {}
  return {
    latenciesMs: rows.map((row) => latencyOf(row, createdAt, now)).filter((ms) => ms !== undefined),
  }
}

/** How events name the row. */
export function refTo(
  { lease: { owner, id, token } }: RowInFlight<unknown>,
  table: string,
): { worker: string; table: string; id: string; token: bigint } {
  return { worker: owner, table, id, token }
}

/** Why a signal fires. */
export type AbortReason = LossReason | 'stopping'

const EXPLANATIONS: Readonly<Record<AbortReason, string>> = {
  taken: 'another worker, or the reaper, has taken the row',
  untrusted: 'the lease could not be confirmed in time',
  heartbeatFailed: 'the database could not be reached to renew the lease',
  tooLong: 'the row was held for as many leases as it may be (maxLeases)',
  stopping: 'the worker is stopping and its time for that is over',
}

export function signalOf(row: RowInFlight<unknown>): AbortSignal {
  row.abort ??= new AbortController()
  return row.abort.signal
}

/**
 * Fires the handler's signal. After a loss, what the handler returns is not written. `stopping` is not a loss: the lease is
 * still good, and the row is settled if the handler returns in time.
 */
export function abort(row: RowInFlight<unknown>, reason: AbortReason): void {
  row.abort ??= new AbortController()
  const { id, token } = row.lease
  const what = reason === 'stopping' ? 'has to end' : 'is over'
  const message = `The lease on row ${id} (token ${token}) ${what}: ${EXPLANATIONS[reason]}.`
  row.abort.abort(
    new LeaseholdError('LEASE_LOST', message, { remedy: 'Stop working on the row.', cause: reason }),
  )
}
