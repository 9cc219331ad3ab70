import { type Clock, systemClock } from '../clock.ts'
import type { Way } from './statements.ts'
import type { Claim, ClaimRequest, Cursor, Ended, LeaseStore, Settlement } from './store.ts'

/**
 * Scans from the start may take this share of the time, apart from what it takes to claim the rows that they find; the
 * others continue where the last claim ended.
 */
const SHARE_FOR_FULL_SCANS = 0.03

/** The share while the cursor has reached the end and a scan from the start is unfinished. */
const SHARE_WHEN_DRAINED = 0.1

/** However long a scan from the start took (it may have waited for a lock), the next one is due after this. */
const MAX_FULL_SCAN_PAUSE_MS = 5_000

/** A way that had nothing to claim is tried after this time, although another way still has rows. */
const RECHECK_MS = 250

export type CursorRequest = Omit<
  ClaimRequest,
  'cursor' | 'way' | 'continueOnly' | 'rows' | 'oldestFirst' | 'overlapMs' | 'freed'
>

/** A claim by key that has come to the end of what is due starts so far before it: longer transactions are rare. */
const OVERLAP_MS = 1_000

/** How many rows a part of a scan from the start reads, by ordering key, and how many any claim reads at most: 20 ms. */
const ROWS_READ = 1_000
const MAX_ROWS_READ = 16_000

/** A scan from the start that takes less than this is made whenever the cursor has nothing more. */
const CHEAP_SCAN_MS = 5

/** How many freed keys are remembered: the next rows of others are found by a scan from the start. */
const MAX_FREED = 10_000

/** What claiming a row costs apart from finding it, roughly; not counted as cost of the scan. */
const CLAIM_MS_PER_ROW = 0.05

export interface Scanned {
  /** No way of finding rows has more to claim at this moment. */
  readonly drained: boolean
  /** When a scan from the start is affordable that may find rows before the cursor. */
  readonly fullScanInMs?: number
}

interface WayState {
  cursor: Cursor | undefined
  /** The one before it: where claims in order start, so that neighbours that committed out of order are found. */
  previous: Cursor | undefined
  /** The last claim from the cursor on did not come to the end. */
  more: boolean
  /** How many rows the next one reads, by ordering key: more and more, as long as none of them can be claimed. */
  rows: number
  /** Where the scan from the start continues that takes several claims. */
  fullScanCursor: Cursor | undefined
  /** How many rows its next claim reads: more and more, as long as none of them can be claimed. */
  fullScanRows: number
  /** What the last claim of a scan from the start has cost. */
  fullScanMs: number
  /** When the next one is affordable. */
  nextFullScan: number
  drainedUntil: number
}

/**
 * Decides where each claim of a worker starts, and in a table with ordering keys by which way rows are found.
 *
 * While an old snapshot is open anywhere in the database, the index entries of finished rows cannot be removed, and
 * every scan from the start walks past all of them (docs/decisions/003-claim-cursor.md). So a claim continues where
 * the one before it ended. What becomes claimable before the cursor (a late commit, a retry, a released row) is found by
 * a scan from the start, which goes on as often as its measured cost allows. It may take several claims: rows that wait
 * for another row of their ordering key are read and not claimed.
 *
 * The next row of an ordering key is mostly claimed as the one before it is settled. Where that could not be, the key is
 * remembered as freed, and one of the next claims names it.
 */
export class ClaimCursor<Row extends object> {
  readonly #store: LeaseStore<Row>
  readonly #clock: Clock
  readonly #ways: ReadonlyMap<Way, WayState>
  #last: Way | undefined
  /** One row of each key that has become free, by the order in which they did. */
  readonly #freed = new Set<string>()
  /** The next claim by key names no freed keys, as long as there are others: busy keys must not take all the room. */
  #isOthersTurn = false
  /** How often something may have become claimable: a claim that began before does not know of it. */
  #wakes = 0

  constructor(store: LeaseStore<Row>, clock: Clock = systemClock) {
    this.#store = store
    this.#clock = clock
    this.#ways = new Map(store.ways.map((way) => [way, newState()]))
  }

  /** Something may have become claimable by any way. */
  wake(): void {
    this.#wakes += 1
    for (const state of this.#ways.values()) state.drainedUntil = Number.NEGATIVE_INFINITY
  }

  /** The ordering keys of these rows may have become free, without a claim of their next rows. */
  keysFreed(rows: readonly string[]): void {
    if (!this.#ways.has('key')) return
    if (this.#freed.size === 0) this.#isOthersTurn = true
    for (const id of rows) if (this.#freed.size < MAX_FREED) this.#freed.add(id)
  }

  async claim(request: CursorRequest): Promise<Claim<Row> & Scanned> {
    const way = this.#nextWay()
    return this.#scan(way, request, async (whole) => this.#store.claim(whole))
  }

  /** Settles a batch and claims the next one by the given way: rows with an ordering key make room for their followers. */
  async settleAndClaim(
    way: Way,
    settlement: Settlement,
    request: CursorRequest,
  ): Promise<Ended & Claim<Row> & Scanned> {
    return this.#scan(way, request, async (whole) => this.#store.settleAndClaim(settlement, whole))
  }

  async #scan<Result extends Claim<Row>>(
    way: Way,
    request: CursorRequest,
    send: (request: ClaimRequest) => Promise<Result>,
  ): Promise<Result & Scanned> {
    const state = this.#ways.get(way) ?? newState()
    const startedAt = this.#clock.monotonicNow()
    const wakes = this.#wakes
    const start = startOf(way, state, startedAt)
    const { fullScan, ...from } = start
    // Another claim that starts meanwhile does not do the same.
    if (fullScan) state.nextFullScan = startedAt + MAX_FULL_SCAN_PAUSE_MS
    const freed = way === 'key' ? this.#takeFreed(request.limit, state.more) : []
    const claim = await send({ ...request, way, freed, ...from }).catch((error: unknown) => {
      this.keysFreed(freed)
      throw error
    })
    this.keysFreed(claim.freed ?? [])
    const endedAt = this.#clock.monotonicNow()
    const isOfCursor = remember(state, start, claim)
    if (fullScan) {
      const { claimed, found = claimed.length } = claim
      const costOf = (rows: number): number => Math.max(0, endedAt - startedAt - rows * CLAIM_MS_PER_ROW)
      state.fullScanMs = costOf(claimed.length)
      const isUnderWay = !state.more && state.fullScanCursor !== undefined
      const share = isUnderWay ? SHARE_WHEN_DRAINED : SHARE_FOR_FULL_SCANS
      // While the cursor has more, what the scan found is mostly what the cursor would have found without it.
      const cost = state.more && found > 0 ? endedAt - startedAt : costOf(found)
      state.nextFullScan = endedAt + Math.min(cost / share, MAX_FULL_SCAN_PAUSE_MS)
    }
    const isDrained = !state.more && wakes === this.#wakes
    if (isOfCursor) state.drainedUntil = isDrained ? endedAt + RECHECK_MS : Number.NEGATIVE_INFINITY
    const drained =
      this.#freed.size === 0 && [...this.#ways.values()].every(({ drainedUntil }) => drainedUntil > endedAt)
    const hasSeenAll = fullScan && state.fullScanCursor === undefined
    const next = state.more || hasSeenAll ? 0 : state.nextFullScan
    return { ...claim, drained, ...(next > endedAt ? { fullScanInMs: Math.max(1, next - endedAt) } : {}) }
  }

  /** As many as there is room for, in every second claim. */
  #takeFreed(limit: number, hasOthers: boolean): string[] {
    const isOthersTurn = this.#isOthersTurn && hasOthers
    this.#isOthersTurn = !isOthersTurn
    const taken = isOthersTurn ? [] : [...this.#freed].slice(0, limit)
    for (const id of taken) this.#freed.delete(id)
    return taken
  }

  /** The ways take turns, as long as they have rows to claim. */
  #nextWay(): Way {
    const now = this.#clock.monotonicNow()
    const ways = [...this.#ways.keys()]
    const at = this.#last === undefined ? -1 : ways.indexOf(this.#last)
    const inTurn = [...ways.slice(at + 1), ...ways.slice(0, at + 1)]
    const hasRows = (each: Way): boolean =>
      (each === 'key' && this.#freed.size > 0) || (this.#ways.get(each)?.drainedUntil ?? 0) <= now
    const way = inTurn.find(hasRows) ?? inTurn[0] ?? 'order'
    this.#last = way
    return way
  }
}

function newState(): WayState {
  return {
    cursor: undefined,
    previous: undefined,
    more: false,
    rows: 0,
    fullScanCursor: undefined,
    fullScanRows: ROWS_READ,
    fullScanMs: 0,
    nextFullScan: Number.NEGATIVE_INFINITY,
    drainedUntil: Number.NEGATIVE_INFINITY,
  }
}

interface Start {
  readonly cursor: Cursor | undefined
  /** The claim is part of a scan from the start, because that is due or costs little. */
  readonly fullScan: boolean
  readonly rows?: number
  readonly oldestFirst?: boolean
  readonly overlapMs?: number
}

function startOf(way: Way, state: WayState, now: number): Start {
  const { cursor, previous, more, rows, fullScanCursor, fullScanMs, nextFullScan } = state
  const isCheap = !more && fullScanCursor === undefined && fullScanMs < CHEAP_SCAN_MS
  if (now >= nextFullScan || isCheap)
    return { cursor: fullScanCursor, fullScan: true, rows: state.fullScanRows, oldestFirst: true }
  if (way === 'order') return { cursor: previous ?? cursor, fullScan: false }
  return { cursor, fullScan: false, rows, overlapMs: more ? 0 : OVERLAP_MS }
}

/** Returns false if the claim does not show whether there are rows after the cursor. */
function remember(
  state: WayState,
  { fullScan, rows = 0, overlapMs = 0 }: Start,
  claim: Claim<unknown>,
): boolean {
  const { claimed, found = claimed.length } = claim
  if (fullScan) {
    // It goes on past rows that wait. A scan that found rows restarts at the beginning: it would go on through the backlog
    // that the cursor has yet to reach, and late commits would wait.
    const isWhole = !claim.more || state.cursor === undefined
    const isOver = isWhole || found > 0
    state.fullScanCursor = isOver ? undefined : claim.cursor
    state.fullScanRows = isOver ? ROWS_READ : twice(state.fullScanRows)
    // Where the cursor has come to the end, it goes back to what was found before it, of which there may be thousands.
    if (!isWhole && (state.more || found === 0)) return false
  }
  state.more = claim.more
  const isFruitless = claim.more && claimed.length === 0
  state.rows = isFruitless ? twice(rows) : 0
  // More rows than a claim reads have arrived within the overlap, and none of them can be claimed: the next claim starts at
  // the cursor.
  const isOverlapFruitless = overlapMs > 0 && claim.more && found === 0
  if (claim.cursor !== undefined && !isOverlapFruitless) {
    // A cursor that has gone back to what was found before it stays there.
    state.previous = fullScan && claim.more ? undefined : state.cursor
    state.cursor = claim.cursor
  }
  return true
}

function twice(rows: number): number {
  return Math.min(MAX_ROWS_READ, Math.max(ROWS_READ, 2 * rows))
}
