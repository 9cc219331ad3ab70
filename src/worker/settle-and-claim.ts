import { setTimeout as pause } from 'node:timers/promises'
import { isLeaseholdError } from '../errors.ts'
import { ClaimCursor, type Scanned } from '../lease/claim-cursor.ts'
import { SUCCESS } from '../lease/statements.ts'
import type { Claim, Ended, Group } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { isReadOnly, isUnavailable } from '../postgres/failures.ts'
import { type Groups, roomIn } from './groups.ts'
import type { Handling } from './handling.ts'
import type { Outcome } from './outcome.ts'
import { Pace } from './pace.ts'
import type { WorkerSettings } from './settings.ts'
import { Settlements, type SettlementBatch, settlementOf } from './settlements.ts'
import { Settling, type SettlingOptions } from './settling.ts'
import { Signal } from './signal.ts'
import type { SuspectSlot } from './suspect-slot.ts'

export interface SettleAndClaimOptions<Row extends object> extends Pick<
  SettlingOptions<Row>,
  'store' | 'clock' | 'events' | 'isTrusted' | 'onGone'
> {
  readonly random: () => number
  readonly settings: () => WorkerSettings
  /** How many rows the worker could take beside those that are being settled or claimed here. */
  readonly room: () => number
  /** The bytes it could take; infinite where the table does not say how large a row is. */
  readonly bytes: () => number
  /** Nothing is being processed: finished rows need not wait for others. */
  readonly isQuiet: () => boolean
  readonly isWoken: () => boolean
  readonly onClaimed: (claim: Claim<Row>, sentAt: number) => void
  /** A statement succeeded, or failed: whether handlers may be started can have changed. */
  readonly onAnswer: () => void
  /** Where the table has groups. */
  readonly groups: Groups<Row> | undefined
  readonly suspects: SuspectSlot
}

/** What one loop does next: settle a batch, claim up to a limit, or both in one statement. */
interface Turn<Row> {
  readonly batch: SettlementBatch<Row> | undefined
  readonly limit: number
  readonly groups: readonly Group[] | undefined
  /** The most bytes to claim. */
  readonly bytes: number
  /** Claim only the next rows of the keys that are settled. */
  readonly continueOnly: boolean
  /** How often a claim had been asked for when this turn was taken. */
  readonly asked: number
}

type Plan<Row> = Omit<Turn<Row>, 'bytes' | 'asked'>

/** What came of it. */
type Answer<Row> = Partial<Ended> & Partial<Claim<Row> & Scanned>

/** Every so many settlements that leave room for followers only, a claim for other keys and rows comes between. */
const TURNS_FOR_OTHERS = 4

/** A row that another session has locked is settled after this time, if it is free by then. */
const BUSY_RETRY_MS = 200

/** A settlement that takes longer than this is stalled: no further handler is started until it is answered. */
const STALLED_MS = 1_000

/** The database side of a worker: loops that take turns at settling what is finished and claiming what is next. */
export class SettleAndClaim<Row extends object> {
  readonly #options: SettleAndClaimOptions<Row>
  readonly #settlements: Settlements<Row>
  readonly #cursor: ClaimCursor<Row>
  readonly #signal = new Signal()
  readonly #pace: Pace
  readonly #settling: Settling<Row>
  readonly #of: { readonly worker: string; readonly table: string }
  #loops: Promise<void>[] = []
  #hurry = false
  #tightTurns = 0
  #over = false
  /** Rows in statements that settle or release them, or waiting because they were locked. */
  #leaving = 0
  /** The room those statements take up. A statement that settles and claims holds the ones or the others, never both. */
  #reserved = 0
  /** The bytes that claims on their way may take. */
  #reservedBytes = 0
  /** How often rows became claimable of which no wake-up tells. */
  #asked = 0
  /** The settlements that are not answered yet, in the order in which they were sent. */
  readonly #unanswered = new Set<{ readonly sentAt: number }>()
  /** The last settlement that came back has failed. */
  #settlementFailed = false
  /** Since the table was last drained, a claim may have passed over suspects. */
  #skippedSuspects = false
  readonly #claimSuspect = (): void => this.claimSoon()

  constructor(options: SettleAndClaimOptions<Row>) {
    this.#options = options
    this.#settlements = new Settlements(options.store.table)
    this.#cursor = new ClaimCursor(options.store, options.clock)
    this.#pace = new Pace(options.random)
    this.#of = { worker: options.store.owner, table: tableName(options.store.table) }
    this.#settling = new Settling<Row>({
      ...options,
      onBusy: (batch) => this.#settleLater(batch),
      onRetryIn: (ms) => this.#pace.expect(this.#now() + ms),
    })
  }

  /** Rows that are finished, but still leased. */
  get size(): number {
    return this.#settlements.size + this.#leaving
  }

  /** A claim was sent, and what it takes is not in hand yet. */
  get isClaiming(): boolean {
    return this.#pace.isClaiming
  }

  /**
   * Settlements cannot be written at the moment: no further handler is started, so that what was done is done again for
   * as few rows as possible (RULE-020-012).
   */
  get isStalled(): boolean {
    if (this.#pace.isFailing || (this.#settlementFailed && this.size > 0)) return true
    const [oldest] = this.#unanswered
    return oldest !== undefined && this.#now() - oldest.sentAt > STALLED_MS
  }

  start(): void {
    this.#options.groups?.onRoom(() => this.claimSoon())
    for (let i = 0; i < this.#options.settings().claimLoops; i += 1) this.#loops.push(this.#takeTurns())
  }

  /** From now on no finished row waits for others. */
  hurry(): void {
    this.#hurry = true
    this.#signal.notify()
  }

  async stop(): Promise<void> {
    this.#over = true
    this.#signal.notify()
    await Promise.all(this.#loops)
  }

  /** To be settled with others; `notify` tells that it may be time. */
  settle(handling: Handling<Row>, outcome: Outcome, now: number): void {
    this.#settlements.add(handling, outcome, now)
  }

  /** Rows go back untouched. If the database does not hear it, the reaper will find them. */
  release(handlings: readonly Handling<Row>[], delayMs = 0): void {
    if (handlings.length === 0) return
    this.#leaving += handlings.length
    this.#reserved += handlings.length
    this.#giveBack(handlings, delayMs).catch((error: unknown) => this.#trouble('releasing rows', error))
  }

  /** A row that another session has locked goes back when it is free: it is not to lose an attempt to that (D9). */
  async #giveBack(handlings: readonly Handling<Row>[], delayMs: number): Promise<void> {
    let waiting = handlings
    while (waiting.length > 0) {
      const busy = new Set(await this.#settling.release(waiting, delayMs))
      for (const handling of waiting) {
        if (busy.has(handling)) continue
        this.#leaving -= 1
        this.#reserved -= 1
        this.#options.onGone(handling, undefined)
      }
      this.#signal.notify()
      waiting = [...busy]
      if (waiting.length > 0) await pause(BUSY_RETRY_MS)
    }
  }

  /** Something may have become claimable. */
  wake(): void {
    this.#cursor.wake()
    this.#pace.wake()
    this.#signal.notify()
  }

  /** The next claim is due at once, also when the answer of one that was sent before this says otherwise. */
  claimSoon(): void {
    this.#asked += 1
    this.#claimNow()
    this.#signal.notify()
  }

  #claimNow(): void {
    this.#cursor.wake()
    this.#pace.claimNow()
  }

  /** Claims nothing for this time, unless something wakes it. */
  rest(forMs: number): void {
    this.#pace.rest(this.#now() + forMs)
  }

  /** Something has changed that may make a turn due. */
  notify(): void {
    this.#signal.notify()
  }

  /** Resolves when something has changed, or after this time. */
  async change(ms: number): Promise<void> {
    await this.#signal.wait(ms)
  }

  async #takeTurns(): Promise<void> {
    while (!this.#over) {
      const now = this.#now()
      const turn = this.#nextTurn(now)
      if (turn === undefined) await this.#signal.wait(this.#idleFor(now))
      else await this.#take(turn).catch((error: unknown) => this.#trouble('taking a turn', error))
    }
  }

  #nextTurn(now: number): Turn<Row> | undefined {
    if (this.#pace.isBackingOff(now)) return undefined
    const { batch: most } = this.#options.settings()
    // What is settled in the same statement makes room at the same moment; what has to wait takes it up.
    const shares = this.#options.store.canSettleAndClaim ? Math.min(most, this.#settlements.nextSize(now)) : 0
    const room = this.#options.room() - this.#reserved - (this.#settlements.size - shares)
    const bytes = this.#options.bytes() - this.#reservedBytes
    const claimable = bytes <= 0 ? 0 : Math.max(0, Math.min(most, room))
    const wanted = this.#pace.mayClaim(now) ? claimable : 0
    const batch = this.#settlementIsDue(now, wanted > 0)
      ? this.#settling.trusted(this.#settlements.take(most, now), now)
      : undefined
    const plan =
      batch === undefined ? this.#claimTurn(wanted, now) : this.#settleTurn(batch, wanted, claimable)
    if (plan === undefined) return undefined
    const turn = { ...plan, bytes: this.#share(bytes, plan.limit), asked: this.#asked }
    const leaving = batch?.rows.length ?? 0
    this.#leaving += leaving
    this.#reserved += Math.max(leaving, turn.limit)
    if (Number.isFinite(turn.bytes)) this.#reservedBytes += turn.bytes
    // The row that is due now may be one that the next way in turn does not find.
    if (turn.limit > 0 && this.#pace.began(now)) this.#cursor.wake()
    return turn
  }

  /** An equal part for each loop that is not claiming yet. */
  #share(bytes: number, limit: number): number {
    if (limit === 0) return 0
    const loops = Math.max(1, this.#options.settings().claimLoops - this.#pace.claims)
    return Math.max(1, Math.floor(bytes / loops))
  }

  #claimTurn(wanted: number, now: number): Plan<Row> | undefined {
    const { groups, room } = this.#openGroups(wanted, now)
    return room === 0 ? undefined : { batch: undefined, limit: room, groups, continueOnly: false }
  }

  /** Success is settled together with the next claim. Rows of a key are followed by others of it in any case. */
  #settleTurn(batch: SettlementBatch<Row>, wanted: number, claimable: number): Plan<Row> {
    const shares = this.#options.store.canSettleAndClaim && batch.outcome === SUCCESS
    const followers = batch.way === 'key' ? Math.min(claimable, batch.rows.length) : 0
    // Where there is room for no more than followers, busy keys would have all of it: now and then others come first.
    const isTight = batch.way === 'key' && claimable <= batch.rows.length
    this.#tightTurns += isTight ? 1 : 0
    const limit =
      shares && !(isTight && this.#tightTurns % TURNS_FOR_OTHERS === 0) ? Math.max(wanted, followers) : 0
    return { batch, limit, groups: undefined, continueOnly: wanted === 0 }
  }

  #openGroups(wanted: number, now: number): { groups: readonly Group[] | undefined; room: number } {
    const { groups } = this.#options
    if (groups === undefined || wanted === 0) return { groups: undefined, room: wanted }
    const { groups: open, againInMs } = groups.open(wanted)
    if (againInMs < Infinity) {
      if (open.length === 0) this.#pace.rest(now + againInMs)
      else this.#pace.expect(now + againInMs)
    }
    return { groups: open, room: Math.min(wanted, roomIn(open)) }
  }

  #settlementIsDue(now: number, claiming: boolean): boolean {
    const settlements = this.#settlements
    if (settlements.size === 0) return false
    return (
      claiming || this.#hurry || settlements.isDue(now, this.#options.settings()) || this.#options.isQuiet()
    )
  }

  #idleFor(now: number): number {
    if (this.#pace.isBackingOff(now)) return Math.max(1, this.#pace.nextAt(now) - now)
    const settleAt = this.#settlements.oldestAt + this.#options.settings().settleDelayMs
    return Math.max(1, Math.min(this.#pace.nextAt(now), settleAt) - now)
  }

  async #take(turn: Turn<Row>): Promise<void> {
    const { batch, limit, bytes } = turn
    const sent = { sentAt: this.#now() }
    if (batch !== undefined) this.#unanswered.add(sent)
    try {
      const answer = await this.#ask(turn)
      this.#unanswered.delete(sent)
      if (batch !== undefined) this.#settlementFailed = false
      if (this.#pace.reached()) this.#options.events.emit('databaseBack', { worker: this.#of.worker })
      await this.#answered(turn, answer, sent.sentAt)
    } catch (error) {
      this.#failed(error, batch)
    } finally {
      this.#unanswered.delete(sent)
      const leaving = batch?.rows.length ?? 0
      this.#leaving -= leaving
      this.#reserved -= Math.max(leaving, limit)
      if (Number.isFinite(bytes)) this.#reservedBytes -= bytes
      if (limit > 0) this.#pace.ended()
      this.#options.onAnswer()
      this.#signal.notify()
    }
  }

  /** Sends the statement, and tells those who handed out room for it what was taken. */
  async #ask(turn: Turn<Row>): Promise<Answer<Row>> {
    const { groups } = turn
    const maySuspect = this.#takeSuspectSlot(turn)
    let answer: Answer<Row> | undefined
    try {
      answer = await this.#send(turn, maySuspect)
      return answer
    } finally {
      const { claimed = [], suspect, more = true, drained } = answer ?? {}
      // A suspect that was claimed frees the slot when it is no longer in flight. There may be others.
      if (claimed.some(({ lease }) => lease.id === suspect)) this.#skippedSuspects = true
      else if (maySuspect) this.#options.suspects.free()
      if (drained === true) this.#claimSkippedSuspects()
      if (groups !== undefined)
        this.#options.groups?.claimed(
          groups,
          claimed.map(({ row }) => row),
          more,
        )
    }
  }

  #takeSuspectSlot({ limit }: Turn<Row>): boolean {
    const { store, suspects } = this.#options
    if (limit === 0 || store.table.attempts?.expiries === undefined) return false
    if (suspects.take()) return true
    this.#skippedSuspects = true
    return false
  }

  /** There is nothing to claim but, maybe, suspects. */
  #claimSkippedSuspects(): void {
    if (!this.#skippedSuspects) return
    this.#skippedSuspects = false
    this.#options.suspects.whenFree(this.#claimSuspect)
  }

  async #send(turn: Turn<Row>, maySuspect: boolean): Promise<Answer<Row>> {
    const { batch, limit, groups, continueOnly } = turn
    if (batch !== undefined && limit === 0) return this.#settling.send(batch)
    const { leaseMs } = this.#options.settings()
    const bytes = Number.isFinite(turn.bytes) ? turn.bytes : undefined
    const request = { limit, leaseMs, groups, bytes, suspects: maySuspect ? 1 : 0 } as const
    if (batch === undefined) return this.#cursor.claim(request)
    const { way } = batch
    const settlement = settlementOf(batch)
    // A claim that scans nothing tells the cursor nothing.
    if (continueOnly) return this.#options.store.settleAndClaim(settlement, { ...request, way, continueOnly })
    return this.#cursor.settleAndClaim(way, settlement, request)
  }

  async #answered(turn: Turn<Row>, answer: Answer<Row>, sentAt: number): Promise<void> {
    const { batch, continueOnly, asked } = turn
    const { claimed, trustedUntil = 0, leaseMs = 0, cursor, more = false, drained = false } = answer
    // What was claimed does not wait for what is still to be found out about the batch.
    if (claimed !== undefined) {
      const claim = { ...answer, claimed, trustedUntil, leaseMs, cursor, more }
      if (!continueOnly) this.#paceAfter({ more, drained })
      // It was sent before something became claimable, and need not have seen it.
      if (asked !== this.#asked) this.#claimNow()
      if (claimed.length > 0) {
        const durationMs = this.#now() - sentAt
        this.#options.events.emit('claimed', { ...this.#of, count: claimed.length, full: more, durationMs })
      }
      if (claimed.length > 0 || more) this.#options.onClaimed(claim, sentAt)
    }
    if (batch !== undefined) {
      const { ended = [], fencedOff = [], busy = [], refused = [] } = answer
      await this.#settling.settled(batch, { ended, fencedOff, busy, refused }, sentAt)
      // The next rows of these keys are claimable now, and no wake-up tells of them.
      const mayHaveFollowers = claimed === undefined || (continueOnly && (more || refused.length > 0))
      if (mayHaveFollowers && batch.way === 'key') this.claimSoon()
    }
    const { dueInMs, fullScanInMs } = answer
    if (dueInMs !== undefined) this.#pace.expect(this.#now() + dueInMs)
    if (fullScanInMs !== undefined) this.#pace.expect(this.#now() + fullScanInMs)
  }

  #paceAfter(scan: { readonly more: boolean; readonly drained: boolean }): void {
    const { settings, isWoken } = this.#options
    this.#pace.found(scan, this.#now(), { ms: settings().pollMs, woken: isWoken() })
  }

  #settleLater(batch: SettlementBatch<Row>): void {
    const { length } = batch.rows
    this.#leaving += length
    this.#reserved += length
    setTimeout(() => {
      this.#leaving -= length
      this.#reserved -= length
      this.#settlements.putBack(batch, this.#now())
      this.#signal.notify()
    }, BUSY_RETRY_MS)
  }

  /** A database that cannot be reached, or takes no writes, is waited for; so is one that is in other trouble. */
  #failed(error: unknown, batch: SettlementBatch<Row> | undefined): void {
    const { events } = this.#options
    const away = isUnavailable(error) || isReadOnly(error) || isLeaseholdError(error, 'QUERY_TIMEOUT')
    const now = this.#now()
    const retryInMs = this.#pace.failed(now, away)
    this.#cursor.wake()
    if (batch !== undefined) {
      this.#settlementFailed = true
      this.#settlements.putBack(batch, now)
    }
    if (away) events.emit('databaseLost', { worker: this.#of.worker, error, retryInMs })
    else this.#trouble(`claiming or settling rows of ${this.#of.table}`, error)
  }

  #trouble(what: string, error: unknown): void {
    this.#options.events.emit('trouble', { ...this.#of, what, error })
  }

  #now(): number {
    return this.#options.clock.monotonicNow()
  }
}
