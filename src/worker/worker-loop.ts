import type { Clock } from '../clock.ts'
import { BucketTurns, type ClaimSource, type WakeReason } from '../lease/bucket-turns.ts'
import { ClaimCursor, type Scanned } from '../lease/claim-cursor.ts'
import { SUCCESS } from '../lease/statements.ts'
import type { Claim, Ended, LeaseStore } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { ClaimTiming } from './claiming/claim-timing.ts'
import { type Groups, type OpenGroups, roomIn } from './claiming/groups.ts'
import type { PauseGate } from './claiming/pausing.ts'
import type { SuspectRoom, SuspectSlot } from './claiming/suspect-slot.ts'
import type { Outcome } from './completion/outcome.ts'
import { Settler } from './completion/settle.ts'
import { type SettlementBatch, settlementOf, SettlementQueue } from './completion/settlement-queue.ts'
import { type Events, isDatabaseAway, mayHaveBeenWritten, reportError } from './events.ts'
import type { RowInFlight, RowsInFlight } from './rows-in-flight.ts'
import type { WorkerSettings } from './settings.ts'
import type { Slots } from './slots/slots.ts'
import { Signal } from './waiting.ts'

export interface WorkerLoopOptions<Row extends object> {
  readonly store: LeaseStore<Row>
  readonly clock: Clock
  readonly random: () => number
  readonly events: Events
  readonly settings: () => WorkerSettings
  readonly gate: PauseGate
  readonly inFlight: RowsInFlight<Row>
  /** Where the table has groups. */
  readonly groups?: Groups<Row> | undefined
  readonly suspects: SuspectSlot
  /** A claim got no answer, and may have leased rows for this time. */
  readonly onClaimUnanswered: (leaseMs: number) => void
  /** How many buckets there are. */
  readonly bucketCount: () => number
  /** Wake-ups arrive: an idle worker need not poll as often. */
  readonly isWoken: () => boolean
}

/** What one loop does next: settle a batch, claim up to a limit, or both in one statement. */
interface Turn<Row> {
  readonly batch: SettlementBatch<Row> | undefined
  readonly limit: number
  readonly groups: OpenGroups | undefined
  /** The most bytes to claim. */
  readonly bytes: number
  /** Claim only the next rows of the keys that are settled. */
  readonly continueOnly: boolean
  /** How often `claimSoon` had been called when this turn was taken. */
  readonly claimsRequested: number
}

/** What there is room for. The bytes are infinite where the table does not declare how large a row is. */
interface Room {
  readonly rows: number
  readonly bytes: number
}

type Plan<Row> = Omit<Turn<Row>, 'bytes' | 'claimsRequested'>

type Answer<Row> = Partial<Ended> & Partial<Claim<Row> & Scanned>

/**
 * When there is room only for the followers of the settled rows, busy keys would keep all slots. So every fourth such
 * settlement claims nothing, and the freed room goes to what the next scan finds: other keys, and rows without one.
 */
const YIELD_EVERY = 4

const NO_SUSPECTS: SuspectRoom = { suspects: 0, alone: false }

/** A settlement that takes longer than this is stalled: no further handler is started until it is answered. */
const STALLED_MS = 1_000

/**
 * The worker loop: `claimLoops` concurrent loops that take turns at settling finished rows and claiming the next ones,
 * both in one statement where both are due and the outcome is `done`.
 */
export class WorkerLoop<Row extends object> {
  readonly #options: WorkerLoopOptions<Row>
  readonly #queue: SettlementQueue<Row>
  readonly #settler: Settler<Row>
  readonly #hasBuckets: boolean
  readonly #cursor: ClaimSource<Row>
  readonly #timing: ClaimTiming
  readonly #signal = new Signal()
  readonly #source: { readonly worker: string; readonly table: string }
  #loops: Promise<void>[] = []
  #isHurried = false
  #isOver = false
  #settlementsWithoutSpareRoom = 0
  /** Rows in statements that settle them. */
  #settling = 0
  /** The room that the statements on their way take up: what they settle or what they claim, whichever is more. */
  #reserved = 0
  /** The bytes that claims on their way may take. */
  #reservedBytes = 0
  /** How often `claimSoon` was called. */
  #claimsRequested = 0
  /** The settlements that are not answered yet, in the order in which they were sent. */
  readonly #unanswered = new Set<{ readonly sentAt: number }>()
  /** The last settlement that was answered has failed. */
  #settlementFailed = false
  /** Since the table was last drained, a claim may have passed over suspects. */
  #skippedSuspects = false
  #emptyScans = 0
  readonly #claimSuspect = (): void => this.claimSoon()

  constructor(options: WorkerLoopOptions<Row>) {
    const { store, clock, random } = options
    this.#options = options
    this.#queue = new SettlementQueue(store.table)
    this.#hasBuckets = store.bucket === 'all' && store.table.bucket !== undefined
    this.#cursor = this.#hasBuckets
      ? new BucketTurns(store, { clock, random, count: options.bucketCount })
      : new ClaimCursor(store, clock)
    this.#timing = new ClaimTiming(random)
    this.#source = { worker: store.owner, table: tableName(store.table) }
    this.#settler = new Settler<Row>({
      ...options,
      queue: this.#queue,
      timing: this.#timing,
      signal: this.#signal,
    })
  }

  /** Rows that are finished or being released, but still leased. */
  get unsettled(): number {
    return this.#queue.size + this.#settling + this.#settler.pending
  }

  /** A claim was sent, and what it takes is not known yet. */
  get isClaiming(): boolean {
    return this.#timing.claims > 0
  }

  /** How often there was nothing to claim: a scan found no row, or no group had room and none was about to have. */
  get emptyScans(): number {
    return this.#emptyScans
  }

  /** No statement has succeeded since the last one failed. */
  get isFailing(): boolean {
    return this.#timing.isFailing
  }

  /**
   * Settlements cannot be written at the moment: no further handler is started, so that as few rows as possible are
   * processed twice (RULE-020-012).
   */
  get isStalled(): boolean {
    if (this.#timing.isFailing || (this.#settlementFailed && this.unsettled > 0)) return true
    const [oldest] = this.#unanswered
    return oldest !== undefined && this.#now() - oldest.sentAt > STALLED_MS
  }

  get #hasSeveralBuckets(): boolean {
    return this.#hasBuckets && this.#options.bucketCount() > 1
  }

  /**
   * Claims rows for these slots from now on. With several buckets each statement concerns few rows, and the loops wait for
   * more commits: one more loop makes up for some of that.
   */
  start(slots: Slots<Row>): void {
    this.#options.groups?.onRoom(() => this.claimSoon())
    for (let i = 0; i < this.#options.settings().claimLoops; i += 1) this.#loops.push(this.#takeTurns(slots))
    if (this.#hasBuckets) this.#loops.push(this.#takeTurns(slots, () => this.#hasSeveralBuckets))
  }

  /** From now on no finished row waits for others. */
  hurry(): void {
    this.#isHurried = true
    this.#signal.notify()
  }

  async stop(): Promise<void> {
    this.#isOver = true
    this.#signal.notify()
    await Promise.all(this.#loops)
  }

  /** Settles the row together with others; call `notify` afterwards, since a turn may be due now. */
  settle(row: RowInFlight<Row>, outcome: Outcome, now: number): void {
    this.#queue.add(row, outcome, now)
  }

  /** Rows go back untouched, for another claim, at once or after a delay. */
  release(rows: readonly RowInFlight<Row>[], delayMs = 0): void {
    if (rows.length > 0) this.#settler.release(rows, delayMs)
  }

  /** Releases rows that are not to be claimed for this time. */
  releaseFor(rows: readonly RowInFlight<Row>[], forMs: number): void {
    this.release(rows, forMs)
    const { release } = this.#options.store.table.writes
    const canDelay = Object.values(release).some((expression) => expression.includes('$delay_ms'))
    // From a table that cannot make rows wait, the next claim would take the same rows.
    if (!canDelay) this.#timing.rest(this.#now() + forMs)
  }

  /** Something may have become claimable, and so many workers, in all processes, are told of it. */
  wake(workers = 1): void {
    // A claim that is due later tells the cursor when it is sent.
    if (this.#timing.wake(this.#now(), workers)) this.#cursor.wake('news')
    this.#signal.notify()
  }

  /** The next rows of the ordering keys of these rows can be claimed now, and no wake-up says so. */
  keysFreed(rows: readonly string[], bucket: number | undefined): void {
    this.#cursor.keysFreed(rows, bucket)
    this.#claimSoon('time')
  }

  /** The next claim is due at once, also when the answer of one that was sent before says otherwise. */
  claimSoon(): void {
    this.#claimSoon('room')
  }

  #claimSoon(reason: WakeReason): void {
    this.#claimsRequested += 1
    this.#claimNow(reason)
    this.#signal.notify()
  }

  #claimNow(reason: WakeReason): void {
    this.#cursor.wake(reason)
    this.#timing.claimNow()
  }

  /** Something has changed that may make a turn due. */
  notify(): void {
    this.#signal.notify()
  }

  /** Resolves when something has changed, or after this time. */
  async waitForChange(ms: number): Promise<void> {
    await this.#signal.wait(ms)
  }

  async #takeTurns(slots: Slots<Row>, isNeeded = () => true): Promise<void> {
    while (!this.#isOver) {
      const now = this.#now()
      const rests = !isNeeded() || this.#timing.isBackingOff(now)
      const turn = rests ? undefined : this.#planTurn(slots, now)
      if (turn === undefined) {
        await this.#signal.wait(this.#idleFor(now))
      } else {
        this.#reserve(turn, now)
        await this.#take(turn, slots).catch((error: unknown) => this.#trouble('taking a turn', error))
      }
    }
  }

  /** How many rows the next statement may claim, and how many bytes; with none left, no rows either. */
  #roomFor(slots: Slots<Row>, now: number): Room {
    const { gate, settings, store } = this.#options
    const { batch: most } = settings()
    const bytes = this.#freeBytes()
    if (!gate.open || bytes <= 0) return { rows: 0, bytes }
    // What is settled in the same statement makes room at the same moment; what has to wait takes it up.
    const shared = store.canSettleAndClaim ? Math.min(most, this.#queue.nextSize(now)) : 0
    const taken = this.#reserved + this.#settler.pending + this.#queue.size - shared
    return { rows: Math.max(0, Math.min(most, slots.room - taken)), bytes }
  }

  /** Takes what is due to be settled out of the queue, and drops those of its rows whose lease is no longer trusted. */
  #planTurn(slots: Slots<Row>, now: number): Turn<Row> | undefined {
    const room = this.#roomFor(slots, now)
    const wanted = this.#timing.mayClaim(now) ? room.rows : 0
    const batch = this.#isSettlementDue(slots, now, wanted > 0)
      ? this.#settler.trusted(this.#queue.take(this.#options.settings().batch, now), now)
      : undefined
    const plan =
      batch === undefined ? this.#claimTurn(wanted, now) : this.#settleTurn(batch, wanted, room.rows)
    if (plan === undefined) return undefined
    return { ...plan, bytes: this.#shareOf(room.bytes, plan.limit), claimsRequested: this.#claimsRequested }
  }

  #reserve({ batch, limit, bytes }: Turn<Row>, now: number): void {
    const settling = batch?.rows.length ?? 0
    this.#settling += settling
    this.#reserved += Math.max(settling, limit)
    if (Number.isFinite(bytes)) this.#reservedBytes += bytes
    // The row that is due now may be one that the next way in turn does not find.
    if (limit > 0 && this.#timing.claimSent(now)) this.#cursor.wake('time')
  }

  #unreserve({ batch, limit, bytes }: Turn<Row>): void {
    const settling = batch?.rows.length ?? 0
    this.#settling -= settling
    this.#reserved -= Math.max(settling, limit)
    if (Number.isFinite(bytes)) this.#reservedBytes -= bytes
    if (limit > 0) this.#timing.claimReturned()
  }

  /** Infinite where the table does not declare how large a row is. */
  #freeBytes(): number {
    const { store, settings, inFlight } = this.#options
    if (store.table.bytes === undefined) return Number.POSITIVE_INFINITY
    return settings().prefetchBytes - inFlight.bytes - this.#reservedBytes
  }

  /** An equal part for each loop that is not claiming yet. */
  #shareOf(bytes: number, limit: number): number {
    if (limit === 0) return 0
    const { claimLoops } = this.#options.settings()
    const all = this.#hasSeveralBuckets ? claimLoops + 1 : claimLoops
    const loops = Math.max(1, all - this.#timing.claims)
    return Math.max(1, Math.floor(bytes / loops))
  }

  #claimTurn(wanted: number, now: number): Plan<Row> | undefined {
    const { groups, room } = this.#openGroups(wanted, now)
    return room === 0 ? undefined : { batch: undefined, limit: room, groups, continueOnly: false }
  }

  /** A batch of `done` rows shares its statement with the next claim, which always includes the next rows of its keys. */
  #settleTurn(batch: SettlementBatch<Row>, wanted: number, claimable: number): Plan<Row> {
    const canShare = this.#options.store.canSettleAndClaim && batch.outcome === SUCCESS
    const followers = batch.way === 'key' ? Math.min(claimable, batch.rows.length) : 0
    const hasSpareRoom = batch.way !== 'key' || claimable > batch.rows.length
    if (!hasSpareRoom) this.#settlementsWithoutSpareRoom += 1
    const isYielding = !hasSpareRoom && this.#settlementsWithoutSpareRoom % YIELD_EVERY === 0
    const limit = canShare && !isYielding ? Math.max(wanted, followers) : 0
    return { batch, limit, groups: undefined, continueOnly: wanted === 0 }
  }

  #openGroups(wanted: number, now: number): { groups: OpenGroups | undefined; room: number } {
    const { groups, settings } = this.#options
    if (groups === undefined || wanted === 0) return { groups: undefined, room: wanted }
    const open = groups.open(wanted, settings().concurrency)
    const { pollMs } = settings()
    if (open.groups.length > 0) {
      if (open.recheckInMs < Infinity) this.#timing.expect(now + open.recheckInMs)
    } else if (open.recheckInMs < pollMs) this.#timing.rest(now + open.recheckInMs)
    else {
      // Room that comes with time, such as that of a circuit that was open, is found by a poll at the latest.
      this.#timing.restUntilPoll(now, pollMs)
      this.#emptyScans += 1
      this.#signal.notify()
    }
    return { groups: open, room: Math.min(wanted, roomIn(open)) }
  }

  #isSettlementDue(slots: Slots<Row>, now: number, isClaiming: boolean): boolean {
    if (this.#queue.size === 0) return false
    // A statement settles one bucket: while rows wait for a slot, more of the same bucket may be finished soon.
    const isTogether = !this.#hasSeveralBuckets || slots.ready === 0
    // With nothing in processing there are no others to wait for.
    return (
      (isClaiming && isTogether) ||
      this.#isHurried ||
      slots.isEmpty ||
      this.#queue.isDue(now, this.#options.settings())
    )
  }

  #idleFor(now: number): number {
    if (this.#timing.isBackingOff(now)) return Math.max(1, this.#timing.nextAt(now) - now)
    const settleAt = this.#queue.waitsSince + this.#options.settings().settleDelayMs
    return Math.max(1, Math.min(this.#timing.nextAt(now), settleAt) - now)
  }

  async #take(turn: Turn<Row>, slots: Slots<Row>): Promise<void> {
    const { batch } = turn
    const sent = { sentAt: this.#now() }
    if (batch !== undefined) this.#unanswered.add(sent)
    try {
      const answer = await this.#sendAndAccount(turn)
      this.#unanswered.delete(sent)
      if (batch !== undefined) this.#settlementFailed = false
      if (this.#timing.succeeded()) this.#options.events.emit('databaseBack', { worker: this.#source.worker })
      // What was claimed does not wait for what is still to be found out about the batch.
      this.#claimAnswered(turn, answer, slots, sent.sentAt)
      await this.#settlementAnswered(turn, answer, sent.sentAt)
      this.#expectRows(answer)
    } catch (error) {
      this.#failed(error, turn)
    } finally {
      this.#unanswered.delete(sent)
      this.#unreserve(turn)
      // Whether handlers may be started can have changed.
      slots.fill()
      this.#signal.notify()
    }
  }

  /** Sends the statement, and tells suspect slot and groups what was claimed of the room they had given. */
  async #sendAndAccount(turn: Turn<Row>): Promise<Answer<Row>> {
    const { groups } = turn
    const suspectRoom = this.#takeSuspectRoom(turn)
    let answer: Answer<Row> | undefined
    try {
      answer = await this.#send(turn, suspectRoom)
      return answer
    } finally {
      const { claimed = [], suspects: named = [], alone, more = true, drained } = answer ?? {}
      const suspects = claimed.filter(({ lease }) => named.includes(lease.id)).length
      // There may be others, also such as have to wait until they can run alone.
      if (suspects > 0 || suspectRoom?.alone === false) this.#skippedSuspects = true
      if (suspectRoom !== undefined) this.#options.suspects.claimed(suspects, alone)
      if (drained === true) this.#claimSkippedSuspects()
      if (groups !== undefined)
        this.#options.groups?.claimed(
          groups,
          claimed.map(({ row }) => row),
          more,
        )
    }
  }

  #takeSuspectRoom({ limit }: Turn<Row>): SuspectRoom | undefined {
    const { store, suspects } = this.#options
    if (limit === 0 || store.table.attempts?.expiries === undefined) return undefined
    const room = suspects.take()
    if (room === undefined) this.#skippedSuspects = true
    return room
  }

  /** There is nothing to claim except, perhaps, suspects. */
  #claimSkippedSuspects(): void {
    if (!this.#skippedSuspects) return
    this.#skippedSuspects = false
    this.#options.suspects.whenFree(this.#claimSuspect)
  }

  async #send(turn: Turn<Row>, suspectRoom: SuspectRoom = NO_SUSPECTS): Promise<Answer<Row>> {
    const { batch, limit, groups, continueOnly } = turn
    if (batch !== undefined && limit === 0) return this.#settler.send(batch)
    const { leaseMs } = this.#options.settings()
    const bytes = Number.isFinite(turn.bytes) ? turn.bytes : undefined
    // The process takes expired leases back by itself, and reports them.
    const request = {
      limit,
      leaseMs,
      groups: groups?.groups,
      bytes,
      ...suspectRoom,
      takeExpired: false,
    } as const
    if (batch === undefined) return this.#cursor.claim(request)
    const { way, bucket } = batch
    const settlement = settlementOf(batch)
    // A claim that scans nothing tells the cursor nothing.
    if (continueOnly)
      return this.#options.store.settleAndClaim(settlement, { ...request, way, bucket, continueOnly })
    return this.#cursor.settleAndClaim(way, settlement, request)
  }

  #claimAnswered(turn: Turn<Row>, answer: Answer<Row>, slots: Slots<Row>, sentAt: number): void {
    const { claimed, trustedUntil = 0, leaseMs = 0, cursor, more = false, drained = false } = answer
    if (claimed === undefined) return
    const { events, settings, isWoken, gate, inFlight } = this.#options
    if (!turn.continueOnly)
      this.#timing.scanned({ more, drained }, this.#now(), { ms: settings().pollMs, woken: isWoken() })
    const isRoomSoon = (turn.groups?.recheckInMs ?? Number.POSITIVE_INFINITY) < settings().pollMs
    if (claimed.length === 0 && drained && !turn.continueOnly && !isRoomSoon) this.#emptyScans += 1
    // It was sent before something became claimable, and need not have seen it.
    if (turn.claimsRequested !== this.#claimsRequested) this.#claimNow('time')
    // A claim that scanned for nothing does not know of a backlog.
    const full = more && !turn.continueOnly
    if (claimed.length > 0) {
      const durationMs = this.#now() - sentAt
      events.emit('claimed', { ...this.#source, count: claimed.length, full, durationMs })
    }
    if (full) slots.sawBacklog()
    if (claimed.length === 0) return
    const rows = inFlight.add({ ...answer, claimed, trustedUntil, leaseMs, cursor, more }, sentAt)
    if (!gate.open) {
      this.release(rows)
      return
    }
    slots.add(rows)
    slots.fill()
  }

  async #settlementAnswered(turn: Turn<Row>, answer: Answer<Row>, sentAt: number): Promise<void> {
    const { batch, continueOnly } = turn
    if (batch === undefined) return
    const { claimed, freed = [] } = answer
    const { ended = [], fencedOff = [], busy = [], refused = [], unanswered } = answer
    const answered = { ended, fencedOff, busy, refused, ...(unanswered === undefined ? {} : { unanswered }) }
    await this.#settler.answered(batch, answered, sentAt)
    if (batch.way !== 'key') return
    const rows = claimed === undefined ? ended.map(({ id }) => id) : continueOnly ? freed : []
    if (rows.length > 0) this.keysFreed(rows, batch.bucket)
  }

  #expectRows({ dueInMs, fullScanInMs }: Answer<Row>): void {
    if (dueInMs !== undefined) this.#timing.expect(this.#now() + dueInMs)
    if (fullScanInMs !== undefined) this.#timing.expect(this.#now() + fullScanInMs)
  }

  /** A database that cannot be reached, or takes no writes, is waited for; so is one that fails otherwise. */
  #failed(error: unknown, { batch, limit }: Turn<Row>): void {
    const isAway = isDatabaseAway(error)
    const now = this.#now()
    this.#timing.failed(now, isAway)
    this.#cursor.wake('news')
    const { onClaimUnanswered, settings } = this.#options
    if (limit > 0 && mayHaveBeenWritten(error)) onClaimUnanswered(settings().leaseMs)
    if (batch !== undefined) {
      this.#settlementFailed = true
      if (mayHaveBeenWritten(error)) for (const row of batch.rows) row.isSettlementUnanswered = true
      this.#queue.putBack(batch, now)
    }
    this.#trouble(`claiming or settling rows of ${this.#source.table}`, error)
  }

  #trouble(what: string, error: unknown): void {
    reportError(this.#options.events, this.#source.worker, what, error)
  }

  #now(): number {
    return this.#options.clock.monotonicNow()
  }
}
