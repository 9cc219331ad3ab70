import type { Clock } from '../clock.ts'
import { orderingKeyOf } from '../lease/claims.ts'
import type { Lease } from '../lease/lease.ts'
import type { CycleAnswer, CycleClaim, LeaseStore, StoreCycle, SuspectRoom } from '../lease/store.ts'
import { tableName } from '../lease/table.ts'
import { ClaimTiming } from './claiming/claim-timing.ts'
import { type Groups, type OpenGroups, roomIn } from './claiming/groups.ts'
import type { PauseGate } from './claiming/pausing.ts'
import type { SuspectSlot } from './claiming/suspect-slot.ts'
import { type FinishedBatch, FinishedRows } from './completion/finished-rows.ts'
import type { Outcome } from './completion/outcome.ts'
import { Settler } from './completion/settle.ts'
import { type Events, isDatabaseAway, mayHaveBeenWritten, reportError } from './events.ts'
import type { RowInFlight, RowsInFlight } from './rows-in-flight.ts'
import type { WorkerSettings } from './settings.ts'
import type { Slots } from './slots/slots.ts'
import { Signal } from './waiting.ts'

export interface WorkerCycleOptions<Row extends object> {
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
  /** Wake-ups arrive: an idle worker need not poll as often. */
  readonly isWoken: () => boolean
}

/** What is due, and is sent as one pipeline. */
interface Due<Row> {
  /** Finished rows, a batch for each outcome. */
  readonly finished: readonly FinishedBatch<Row>[]
  /** How many rows to claim; 0: none. */
  readonly rows: number
  /** The most bytes to claim. */
  readonly bytes: number
  readonly groups: OpenGroups | undefined
  /** Claim only the next rows of the keys of finished rows. */
  readonly continueOnly: boolean
  readonly suspects: SuspectRoom | undefined
  /** How often `claimSoon` had been called when this was taken. */
  readonly claimsRequested: number
}

/** A settlement that takes longer than this is stalled: no further handler is started until it is answered. */
const STALLED_MS = 1_000

/** While a claim is on its way, finished rows wait so long for the next pipeline, unless they fill one. */
const JOIN_NEXT_PIPELINE_MS = 50

/**
 * The cycle of a worker: it gathers what is due (finished rows to settle, the next ones to claim), sends it as one pipeline,
 * and hands out what comes back. `claimLoops` pipelines may be on their way at once. As long as claims find all rows that
 * are due, one of them claims, and the others only settle.
 */
export class WorkerCycle<Row extends object> {
  readonly #options: WorkerCycleOptions<Row>
  readonly #finished = new FinishedRows<Row>()
  readonly #settler: Settler<Row>
  readonly #cycle: StoreCycle<Row>
  readonly #timing: ClaimTiming
  readonly #signal = new Signal()
  readonly #source: { readonly worker: string; readonly table: string }
  #loops: Promise<void>[] = []
  #isHurried = false
  #isOver = false
  /** Rows in pipelines that settle them. */
  #settling = 0
  /** The room that pipelines on their way take up: what they settle, and what they claim. */
  #reserved = 0
  /** How often `claimSoon` was called. */
  #claimsRequested = 0
  /** The settlements that are not answered yet, in the order in which they were sent. */
  readonly #unanswered = new Set<{ readonly sentAt: number }>()
  /** The last settlement that was answered has failed. */
  #settlementFailed = false
  /** Since the table was last drained, a claim may have passed over suspects. */
  #skippedSuspects = false
  /** The last ordering keys of which rows were settled had further rows: they do not wait for others. */
  #isContinuing = false
  #emptyScans = 0
  readonly #claimSuspect = (): void => this.claimSoon()

  constructor(options: WorkerCycleOptions<Row>) {
    const { store, random } = options
    this.#options = options
    this.#timing = new ClaimTiming(random)
    this.#cycle = store.cycle({ random })
    this.#source = { worker: store.owner, table: tableName(store.table) }
    this.#settler = new Settler<Row>({
      ...options,
      finished: this.#finished,
      timing: this.#timing,
      signal: this.#signal,
    })
  }

  /** Rows that are finished or being released, but still leased. */
  get unsettled(): number {
    return this.#finished.size + this.#settling + this.#settler.pending
  }

  /** A claim was sent, and what it takes is not known yet. */
  get isClaiming(): boolean {
    return this.#timing.isClaiming
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

  /** Claims rows for these slots from now on. */
  start(slots: Slots<Row>): void {
    this.#options.groups?.onRoom(() => this.claimSoon())
    for (let i = 0; i < this.#options.settings().claimLoops; i += 1) this.#loops.push(this.#run(slots))
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

  /** Settles the row together with others; call `notify` afterwards, since a pipeline may be due now. */
  settle(row: RowInFlight<Row>, outcome: Outcome, now: number): void {
    this.#finished.add(row, outcome, now)
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
    // A claim that is due later tells the cycle when it is sent.
    if (this.#timing.wake(this.#now(), workers)) this.#cycle.wake()
    this.#signal.notify()
  }

  /** The next rows of the ordering keys of these rows can be claimed now, and no wake-up says so. */
  keysFreed(leases: readonly Lease[]): void {
    this.#cycle.keysFreed(leases)
    this.claimSoon()
  }

  /** The next claim is due at once, also when the answer of one that was sent before says otherwise. */
  claimSoon(): void {
    this.#claimsRequested += 1
    this.#claimNow()
    this.#signal.notify()
  }

  #claimNow(): void {
    this.#cycle.wake()
    this.#timing.claimNow()
  }

  /** Something has changed that may make a pipeline due. */
  notify(): void {
    this.#signal.notify()
  }

  /** Resolves when something has changed, or after this time. */
  async waitForChange(ms: number): Promise<void> {
    await this.#signal.wait(ms)
  }

  async #run(slots: Slots<Row>): Promise<void> {
    while (!this.#isOver) {
      const now = this.#now()
      const due = this.#timing.isBackingOff(now) ? undefined : this.#whatIsDue(slots, now)
      if (due === undefined) await this.#signal.wait(this.#idleFor(now))
      else await this.#send(due, slots).catch((error: unknown) => this.#trouble('taking a turn', error))
    }
  }

  /** Takes what is due to be settled, and the room for what is due to be claimed. */
  #whatIsDue(slots: Slots<Row>, now: number): Due<Row> | undefined {
    const { settings, gate, groups: tableGroups } = this.#options
    const { batch } = settings()
    const bytes = this.#freeBytes()
    const isBeside = this.#timing.isClaiming
    const canClaim =
      gate.open && bytes > 0 && (!isBeside || (this.#timing.sawMore && tableGroups === undefined))
    const mayClaim = canClaim && this.#timing.mayClaim(now)
    const isSettling = this.#isSettlementDue(slots, now, mayClaim)
    // A row is in flight until it is known to be settled: another session may have locked it (RULE-020-041).
    const unsettled = this.#reserved + this.#settler.pending + this.#finished.size
    const room = Math.max(0, Math.min(batch, slots.room - unsettled))
    const finished = isSettling ? this.#settler.trusted(this.#finished.take(batch, now), now) : []
    // The next rows of the keys that are settled can be claimed now.
    const isWorthIt = !isBeside || 2 * room >= batch
    const wanted = isWorthIt && (mayClaim || (canClaim && haveKeys(finished))) ? room : 0
    const continueOnly = !mayClaim && tableGroups === undefined
    const { groups, rows } = this.#openGroups(tableGroups, wanted, now)
    if (finished.length === 0 && rows === 0) return undefined
    const suspects = continueOnly ? undefined : this.#takeSuspectRoom(rows)
    return { finished, rows, bytes, groups, continueOnly, suspects, claimsRequested: this.#claimsRequested }
  }

  /** Infinite where the table does not declare how large a row is. */
  #freeBytes(): number {
    const { store, settings, inFlight } = this.#options
    if (store.table.bytes === undefined) return Number.POSITIVE_INFINITY
    return settings().prefetchBytes - inFlight.bytes
  }

  #openGroups(
    groups: Groups<Row> | undefined,
    wanted: number,
    now: number,
  ): { readonly groups: OpenGroups | undefined; readonly rows: number } {
    if (groups === undefined || wanted === 0) return { groups: undefined, rows: wanted }
    const { settings } = this.#options
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
    return { groups: open, rows: Math.min(wanted, roomIn(open)) }
  }

  #takeSuspectRoom(rows: number): SuspectRoom | undefined {
    const { store, suspects } = this.#options
    if (rows === 0 || store.table.attempts?.expiries === undefined) return undefined
    const room = suspects.take()
    if (room === undefined) this.#skippedSuspects = true
    return room
  }

  #isSettlementDue(slots: Slots<Row>, now: number, isClaiming: boolean): boolean {
    if (this.#finished.size === 0) return false
    const { batch, settleDelayMs } = this.#options.settings()
    const waitMs = this.#settleDelayMs
    if (isClaiming || this.#isHurried || this.#finished.isDue(now, { batch, settleDelayMs: waitMs }))
      return true
    // With nothing in processing there are no others to wait for, unless a claim is about to be sent anyway.
    if (!slots.isEmpty || this.#timing.isClaiming) return false
    return this.#isContinuing || this.#timing.nextAt(now) > now + settleDelayMs
  }

  /** How long finished rows wait for others. */
  get #settleDelayMs(): number {
    const { settleDelayMs } = this.#options.settings()
    return this.#timing.isClaiming ? Math.max(settleDelayMs, JOIN_NEXT_PIPELINE_MS) : settleDelayMs
  }

  #idleFor(now: number): number {
    if (this.#timing.isBackingOff(now)) return Math.max(1, this.#timing.nextAt(now) - now)
    const settleAt = this.#finished.waitsSince + this.#settleDelayMs
    return Math.max(1, Math.min(this.#timing.nextAt(now), settleAt) - now)
  }

  async #send(due: Due<Row>, slots: Slots<Row>): Promise<void> {
    const { finished, rows, continueOnly } = due
    const isScanning = rows > 0 && !continueOnly
    const sent = { sentAt: this.#now() }
    const settling = finished.reduce((sum, batch) => sum + batch.rows.length, 0)
    this.#settling += settling
    this.#reserved += settling + rows
    if (settling > 0) this.#unanswered.add(sent)
    // The row that is due now may be one that a scan from the cursor on does not find.
    if (isScanning && this.#timing.claimSent(sent.sentAt)) this.#cycle.wake()
    let claim: CycleClaim<Row> | undefined
    let isAnswered = false
    const release = (): void => {
      if (isAnswered) return
      isAnswered = true
      this.#reserved -= rows
      if (isScanning) this.#timing.claimReturned()
      this.#tellRoom(due, claim)
    }
    try {
      const answer = await this.#sendPipeline(due)
      ;({ claim } = answer)
      if (answer.failure !== undefined) this.#nodeFailed(answer.failure, due)
      this.#unanswered.delete(sent)
      if (settling > 0) this.#settlementFailed = false
      if (this.#timing.succeeded()) this.#options.events.emit('databaseBack', { worker: this.#source.worker })
      release()
      // No claim of this pipeline has continued the keys that it has settled.
      if (rows === 0 && haveKeys(finished)) this.#timing.claimNow()
      // What was claimed does not wait for what is still to be found out about the batches.
      this.#claimAnswered(due, claim, slots, sent.sentAt)
      for (const [i, batch] of finished.entries()) {
        const ended = answer.ended[i]
        if (ended !== undefined) await this.#settler.answered(batch, ended, sent.sentAt)
      }
    } catch (error) {
      this.#failed(error, due)
    } finally {
      this.#unanswered.delete(sent)
      this.#settling -= settling
      this.#reserved -= settling
      release()
      // Whether handlers may be started can have changed.
      slots.fill()
      this.#signal.notify()
    }
  }

  async #sendPipeline({
    finished,
    rows,
    bytes,
    groups,
    continueOnly,
    suspects,
  }: Due<Row>): Promise<CycleAnswer<Row>> {
    const { leaseMs } = this.#options.settings()
    return this.#cycle.send({
      settlements: finished.map(({ outcome, rows: ended, args }) => ({
        outcome,
        leases: ended.map(({ lease }) => lease),
        args,
      })),
      ...(rows === 0
        ? {}
        : { room: { rows, bytes, leaseMs, groups: groups?.groups, suspects, continueOnly } }),
    })
  }

  /** Tells the suspect slot and the groups what was claimed of the room that they had given. */
  #tellRoom({ groups, suspects: room }: Due<Row>, claim: CycleClaim<Row> | undefined): void {
    const { claimed = [], suspects = [], alone, more = true, drained = false } = claim ?? {}
    // There may be others, also such as have to wait until they can run alone.
    if (suspects.length > 0 || room?.alone === false) this.#skippedSuspects = true
    if (room !== undefined) this.#options.suspects.claimed(suspects.length, alone)
    if (drained) this.#claimSkippedSuspects()
    if (groups === undefined) return
    const rows = claimed.map(({ row }) => row)
    this.#options.groups?.claimed(groups, rows, more || !drained)
  }

  /** There is nothing to claim except, perhaps, suspects. */
  #claimSkippedSuspects(): void {
    if (!this.#skippedSuspects) return
    this.#skippedSuspects = false
    this.#options.suspects.whenFree(this.#claimSuspect)
  }

  #claimAnswered(due: Due<Row>, claim: CycleClaim<Row> | undefined, slots: Slots<Row>, sentAt: number): void {
    if (claim === undefined) return
    const { events, settings, isWoken, gate, inFlight } = this.#options
    const { claimed, drained, more, dueInMs, nextScanInMs } = claim
    const now = this.#now()
    const found = claimed.length
    if (claim.continued > 0 || haveKeys(due.finished)) this.#isContinuing = claim.continued > 0
    if (due.continueOnly && more) this.#timing.claimNow()
    if (!due.continueOnly) {
      this.#timing.scanned({ found, more, drained }, now, { ms: settings().pollMs, woken: isWoken() })
      const isRoomSoon = (due.groups?.recheckInMs ?? Number.POSITIVE_INFINITY) < settings().pollMs
      if (found === 0 && drained && !isRoomSoon && !this.#timing.isClaiming) this.#emptyScans += 1
      // It was sent before something became claimable, and need not have seen it.
      if (due.claimsRequested !== this.#claimsRequested) this.#claimNow()
      if (dueInMs !== undefined) this.#timing.expect(now + dueInMs)
      if (nextScanInMs !== undefined) this.#timing.expect(now + nextScanInMs)
      if (more) slots.sawBacklog()
    }
    if (found === 0) return
    events.emit('claimed', { ...this.#source, count: found, full: more, durationMs: now - sentAt })
    const rows = inFlight.add(claim, sentAt)
    if (!gate.open) {
      this.release(rows)
      return
    }
    slots.add(rows)
    slots.fill()
  }

  /** What was to be settled there is sent once more, as what is locked is. */
  #nodeFailed(error: unknown, { rows }: Due<Row>): void {
    const { onClaimUnanswered, settings } = this.#options
    if (rows > 0 && mayHaveBeenWritten(error)) onClaimUnanswered(settings().leaseMs)
    this.#trouble(`claiming or settling rows of ${this.#source.table}`, error)
  }

  /** A database that cannot be reached, or takes no writes, is waited for; so is one that fails otherwise. */
  #failed(error: unknown, { finished, rows }: Due<Row>): void {
    const isAway = isDatabaseAway(error)
    const now = this.#now()
    this.#timing.failed(now, isAway)
    this.#cycle.wake()
    const { onClaimUnanswered, settings } = this.#options
    if (rows > 0 && mayHaveBeenWritten(error)) onClaimUnanswered(settings().leaseMs)
    for (const batch of finished) {
      this.#settlementFailed = true
      if (mayHaveBeenWritten(error)) for (const row of batch.rows) row.isSettlementUnanswered = true
      this.#finished.putBack(batch, now)
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

function haveKeys<Row>(finished: readonly FinishedBatch<Row>[]): boolean {
  return finished.some(({ rows }) => rows.some(({ lease }) => orderingKeyOf(lease) !== undefined))
}
