import { type Clock, systemClock } from '../clock.ts'
import type { Way } from './statements.ts'
import type { Claim, ClaimRequest, Cursor, Ended, LeaseStore, Settlement } from './store.ts'

/** Scans from the start may take this share of the time; the others continue where the last claim ended. */
const SHARE_FOR_FULL_SCANS = 0.03

/** However long a scan from the start took (it may have waited for a lock), the next one is due after this. */
const MAX_FULL_SCAN_PAUSE_MS = 5_000

/** A walk that claims fewer rows than this in a millisecond visits keys that wait, and is followed by a pause. */
const MIN_CLAIMED_PER_MS = 0.5

/** The longest pause after a walk of keys that took several statements. */
const MAX_WALK_PAUSE_MS = 250

/** A way that had nothing to claim is tried after this time, although another way still has rows. */
const RECHECK_MS = 250

type Request = Omit<ClaimRequest, 'cursor' | 'way' | 'continueOnly'>

/** A scan from the start that takes less than this is made whenever the cursor has nothing more. */
const CHEAP_SCAN_MS = 5

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
  nextFullScan: number
  fullScanMs: number
  more: boolean
  /** Whether anything was claimed since the scan last started at the beginning. */
  claimedInScan: boolean
  walkStartedAt: number
  claimedInWalk: number
  /** No walk of keys starts before this. */
  nextWalk: number
  drainedUntil: number
}

/**
 * Decides where each claim of a worker starts, and in a table with ordering keys by which way rows are found.
 *
 * While an old snapshot is open anywhere in the database, the index entries of finished rows cannot be removed, and
 * every scan from the start walks past all of them: 65k rows/s fell to 18k within 500k rows. So a claim continues where
 * the one before it ended. What becomes claimable before the cursor (a late commit, a retry, a released row) is found by
 * a scan from the start; there is one as often as its measured cost allows.
 *
 * A walk of ordering keys always continues to the last key and then starts over at the first.
 */
export class ClaimCursor<Row extends object> {
  readonly #store: LeaseStore<Row>
  readonly #clock: Clock
  readonly #ways: ReadonlyMap<Way, WayState>
  #last: Way | undefined

  constructor(store: LeaseStore<Row>, clock: Clock = systemClock) {
    this.#store = store
    this.#clock = clock
    this.#ways = new Map(store.ways.map((way) => [way, newState()]))
  }

  /** Something may have become claimable by any way. */
  wake(): void {
    for (const state of this.#ways.values()) {
      state.drainedUntil = state.nextWalk
      // It may be before the key that a walk has reached: when that is over, another one follows.
      state.claimedInScan = true
    }
  }

  async claim(request: Request): Promise<Claim<Row> & Scanned> {
    const way = this.#nextWay()
    return this.#scan(way, request, async (whole) => this.#store.claim(whole))
  }

  /** Settles a batch and claims the next one by the given way: rows with an ordering key make room for their followers. */
  async settleAndClaim(
    way: Way,
    settlement: Settlement,
    request: Request,
  ): Promise<Ended & Claim<Row> & Scanned> {
    return this.#scan(way, request, async (whole) => this.#store.settleAndClaim(settlement, whole))
  }

  async #scan<Result extends Claim<Row>>(
    way: Way,
    request: Request,
    send: (request: ClaimRequest) => Promise<Result>,
  ): Promise<Result & Scanned> {
    const state = this.#ways.get(way) ?? newState()
    const startedAt = this.#clock.monotonicNow()
    const cursor = way === 'key' ? state.cursor : startOf(state, startedAt)
    const isPausing = way === 'key' && cursor === undefined && startedAt < state.nextWalk
    const claim = await send({ ...request, way, cursor, ...(isPausing ? { continueOnly: true } : {}) })
    const endedAt = this.#clock.monotonicNow()
    // No scan was made: it says nothing of where the next one starts, or of what there is.
    if (isPausing) return { ...claim, drained: false, fullScanInMs: Math.max(1, state.nextWalk - endedAt) }
    if (way === 'key' && cursor === undefined) state.walkStartedAt = startedAt
    const isDrained = way === 'key' ? walked(state, cursor, claim, endedAt) : scanned(state, claim)
    if (cursor === undefined) {
      state.fullScanMs = Math.max(0, endedAt - startedAt - claim.claimed.length * CLAIM_MS_PER_ROW)
      const pauseMs = (endedAt - startedAt) / SHARE_FOR_FULL_SCANS
      state.nextFullScan = endedAt + Math.min(pauseMs, MAX_FULL_SCAN_PAUSE_MS)
    }
    state.drainedUntil = isDrained ? endedAt + RECHECK_MS : state.nextWalk
    const drained = [...this.#ways.values()].every(({ drainedUntil }) => drainedUntil > endedAt)
    const next = way === 'key' ? state.nextWalk : isDrained && cursor !== undefined ? state.nextFullScan : 0
    return { ...claim, drained, ...(next > endedAt ? { fullScanInMs: Math.max(1, next - endedAt) } : {}) }
  }

  /** The ways take turns, as long as they have rows to claim. */
  #nextWay(): Way {
    const now = this.#clock.monotonicNow()
    const ways = [...this.#ways.keys()]
    const at = this.#last === undefined ? -1 : ways.indexOf(this.#last)
    const inTurn = [...ways.slice(at + 1), ...ways.slice(0, at + 1)]
    const way =
      inTurn.find((each) => (this.#ways.get(each)?.drainedUntil ?? 0) <= now) ??
      inTurn.find((each) => (this.#ways.get(each)?.nextWalk ?? 0) <= now) ??
      'order'
    this.#last = way
    return way
  }
}

function newState(): WayState {
  return {
    cursor: undefined,
    previous: undefined,
    nextFullScan: Number.NEGATIVE_INFINITY,
    fullScanMs: 0,
    more: false,
    claimedInScan: false,
    walkStartedAt: 0,
    claimedInWalk: 0,
    nextWalk: Number.NEGATIVE_INFINITY,
    drainedUntil: Number.NEGATIVE_INFINITY,
  }
}

/** A walk is over at the last key; there is nothing to claim when all of it found nothing, or took all it found. */
function walked(state: WayState, from: Cursor | undefined, claim: Claim<unknown>, now: number): boolean {
  const isWhole = from === undefined && claim.cursor === undefined
  state.claimedInScan = (from !== undefined && state.claimedInScan) || claim.claimed.length > 0
  state.claimedInWalk = (from === undefined ? 0 : state.claimedInWalk) + claim.claimed.length
  state.cursor = claim.cursor
  if (claim.cursor !== undefined) return false
  // Of many keys that almost all wait, walks take half of the time at most, whatever wakes the worker.
  const walkMs = now - state.walkStartedAt
  if (!isWhole && state.claimedInWalk < walkMs * MIN_CLAIMED_PER_MS)
    state.nextWalk = now + Math.min(walkMs, MAX_WALK_PAUSE_MS)
  return !claim.more && (isWhole || !state.claimedInScan)
}

/** Undefined: at the beginning, because that is due or costs little. */
function startOf(state: WayState, now: number): Cursor | undefined {
  const isAffordable = now >= state.nextFullScan || (!state.more && state.fullScanMs < CHEAP_SCAN_MS)
  return isAffordable ? undefined : state.previous
}

function scanned(state: WayState, claim: Claim<unknown>): boolean {
  if (claim.cursor !== undefined) {
    state.previous = state.cursor
    state.cursor = claim.cursor
  }
  state.more = claim.more
  return !claim.more
}
