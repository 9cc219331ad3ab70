import { type Clock } from '../../clock.ts'
import { type Lane } from '../../lease/store.ts'
import { type Lanes, type OpenLanes } from '../../runtime/lanes.ts'
import { type DeliveryRow } from '../table.ts'
import { Breaker, type BreakerChange, type BreakerSettings } from './breaker.ts'
import { type Surveyed } from './directory.ts'
import { ALONE, part, type Share } from './share.ts'

/** One endpoint, as far as there is room for its deliveries. */
interface EndpointLane {
  readonly id: string
  readonly breaker: Breaker
  concurrency: number
  ratePerMs: number | undefined
  /** Deliveries on their way, and room that was offered to a claim. */
  taken: number
  /** Of the rate: how many may begin at this moment. */
  tokens: number
  filledAt: number
  restUntil: number
  /** More may wait than the last look has brought. */
  mayHaveMore: boolean
}

/** A rate is kept in pieces of so long, so that no second has noticeably more than it allows. */
const BURST_MS = 100
/** One endpoint may have so many times as much on its way as is left for all others. */
const SHARE_OF_ONE = 4
/** Lanes looked at by one claim; the others' turn comes with the next. */
const MOST_LANES = 1_000

/**
 * How many deliveries each endpoint may get. Three things bound it: its own limits, its circuit, and what others need:
 * the less room is left, the less of it
 * an endpoint may take, so that however many of them are slow, one that is quick finds some.
 */
export class EndpointLanes implements Lanes<DeliveryRow> {
  readonly #clock: Clock
  readonly #settings: BreakerSettings
  readonly #onWake: () => void
  #lanes = new Map<string, EndpointLane>()
  #share = ALONE
  #first = 0
  #listener: () => void = () => undefined

  constructor(clock: Clock, settings: BreakerSettings, onWake: () => void) {
    this.#clock = clock
    this.#settings = settings
    this.#onWake = onWake
  }

  /** The endpoints there are, and this dispatcher's share of what they allow. */
  update(endpoints: readonly Surveyed[], share: Share): void {
    const now = this.#clock.monotonicNow()
    const before = this.#lanes
    let changed = share.of !== this.#share.of || share.rank !== this.#share.rank
    this.#share = share
    this.#lanes = new Map()
    for (const { id, endpoint, failing, open_for_ms: openForMs, failures } of endpoints) {
      if (endpoint === undefined) continue
      const known = before.get(id)
      const lane = known ?? this.#newLane(id, now)
      const room = known === undefined ? 0 : this.#roomOf(lane, Number.MAX_SAFE_INTEGER, now).room
      lane.concurrency = endpoint.concurrency
      lane.ratePerMs =
        endpoint.ratePerSecond === undefined ? undefined : endpoint.ratePerSecond / share.of / 1_000
      lane.breaker.learn({ failing, openForMs, failures }, now)
      this.#lanes.set(id, lane)
      changed ||= this.#roomOf(lane, Number.MAX_SAFE_INTEGER, now).room > room
    }
    if (changed) this.#listener()
  }

  open(room: number): OpenLanes {
    const now = this.#clock.monotonicNow()
    const lanes: Lane[] = []
    let againInMs = Number.POSITIVE_INFINITY
    for (const lane of this.#inTurn()) {
      const { room: free, againAt } = this.#roomOf(lane, room, now)
      if (free === 0) {
        if (lane.mayHaveMore) againInMs = Math.min(againInMs, againAt - now)
      } else if (lanes.length < MOST_LANES) {
        lanes.push({ key: lane.id, room: free })
        lane.taken += free
        lane.tokens -= free
      } else {
        againInMs = 0
      }
    }
    return { lanes, againInMs }
  }

  looked(lanes: readonly Lane[], rows: readonly DeliveryRow[]): void {
    const counts = new Map<string, number>()
    for (const { endpoint_id: id } of rows) counts.set(id, (counts.get(id) ?? 0) + 1)
    for (const { key, room } of lanes) {
      const lane = this.#lanes.get(key)
      if (lane === undefined) continue
      const found = counts.get(key) ?? 0
      lane.taken -= room - found
      lane.tokens += room - found
      lane.mayHaveMore = found >= room
    }
  }

  ended({ endpoint_id: id }: DeliveryRow): void {
    const lane = this.#lanes.get(id)
    if (lane === undefined) return
    lane.taken = Math.max(0, lane.taken - 1)
    if (lane.mayHaveMore) this.#listener()
  }

  onRoom(listener: () => void): void {
    this.#listener = listener
  }

  wake(): void {
    this.#onWake()
  }

  succeeded(id: string): BreakerChange | undefined {
    return this.#lanes.get(id)?.breaker.succeeded()
  }

  failed(id: string): BreakerChange | undefined {
    return this.#lanes.get(id)?.breaker.failed(this.#clock.monotonicNow())
  }

  /** It asked to be left alone. */
  rest(id: string, forMs: number): void {
    const lane = this.#lanes.get(id)
    if (lane !== undefined) lane.restUntil = Math.max(lane.restUntil, this.#clock.monotonicNow() + forMs)
  }

  #newLane(id: string, now: number): EndpointLane {
    return {
      id,
      breaker: new Breaker(this.#settings),
      concurrency: 0,
      ratePerMs: undefined,
      taken: 0,
      tokens: 1,
      filledAt: now,
      restUntil: 0,
      mayHaveMore: true,
    }
  }

  /** Each look begins with another one, so that nobody is always first when there is room for few. */
  #inTurn(): EndpointLane[] {
    const all = [...this.#lanes.values()]
    if (all.length === 0) return all
    this.#first = (this.#first + 1) % all.length
    return [...all.slice(this.#first), ...all.slice(0, this.#first)]
  }

  #roomOf(lane: EndpointLane, free: number, now: number): { room: number; againAt: number } {
    if (now < lane.restUntil) return { room: 0, againAt: lane.restUntil }
    const probes = lane.breaker.room(now)
    if (probes === 0) return { room: 0, againAt: lane.breaker.openUntil }
    const concurrency = part(Math.min(lane.concurrency, probes), lane.id, this.#share)
    const bound = Math.min(concurrency, free * SHARE_OF_ONE) - lane.taken
    // Until something ends there is none; then `ended` says so.
    if (bound < 1) return { room: 0, againAt: Number.POSITIVE_INFINITY }
    const { tokens, againAt } = allowance(lane, now)
    return { room: Math.min(bound, tokens), againAt }
  }
}

/** Refills what the rate allows. */
function allowance(lane: EndpointLane, now: number): { tokens: number; againAt: number } {
  const { ratePerMs } = lane
  if (ratePerMs === undefined) {
    lane.tokens = 0
    lane.filledAt = now
    return { tokens: Number.MAX_SAFE_INTEGER, againAt: Number.POSITIVE_INFINITY }
  }
  const most = Math.max(1, ratePerMs * BURST_MS)
  lane.tokens = Math.min(most, lane.tokens + (now - lane.filledAt) * ratePerMs)
  lane.filledAt = now
  const tokens = Math.max(0, Math.floor(lane.tokens + 1e-9))
  return { tokens, againAt: now + (1 - lane.tokens) / ratePerMs }
}
