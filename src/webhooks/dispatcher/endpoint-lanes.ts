import type { Clock } from '../../clock.ts'
import type { Lane } from '../../lease/store.ts'
import type { Lanes, OpenLanes } from '../../worker/lanes.ts'
import type { DeliveryRow } from '../table.ts'
import { Breaker, type BreakerChange, type BreakerSettings } from './breaker.ts'
import type { Endpoint, Surveyed } from './directory.ts'
import { ALONE, part, type Share } from './share.ts'

/** One endpoint, as far as there is room for its deliveries. */
interface EndpointLane {
  readonly id: string
  readonly breaker: Breaker
  /** This dispatcher's part of what the endpoint takes at once, while its circuit is closed. */
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
/** The share of all slots that is kept for endpoints of which nothing is on its way. */
const RESERVED = 0.25
/** Lanes looked at by one claim; the others' turn comes with the next. */
const MOST_LANES = 1_000

/**
 * How many deliveries each endpoint may get. Three things bound it: its own limits, its circuit, and what others need.
 * One delivery of an endpoint may always be on its way, as long as there is a slot; more only while a quarter of the
 * slots is free, and of those that are then to be had each busy endpoint gets the same. So the slow ones among them
 * have to be as many as a quarter of the slots before a quick one has to wait.
 */
export class EndpointLanes implements Lanes<DeliveryRow> {
  readonly #clock: Clock
  readonly #settings: BreakerSettings
  readonly #onWake: () => void
  #lanes = new Map<string, EndpointLane>()
  /** Of endpoints that are not there just now, and of which something is on its way still. */
  #away = new Map<string, EndpointLane>()
  #share = ALONE
  #first = 0
  /** An endpoint could use more than it was offered, if only others had ended. */
  #crowded = false
  #held = false
  #listener: () => void = () => undefined

  constructor(clock: Clock, settings: BreakerSettings, onWake: () => void) {
    this.#clock = clock
    this.#settings = settings
    this.#onWake = onWake
  }

  /** The endpoints there are, and this dispatcher's share of what they allow. */
  update(endpoints: readonly Surveyed[], share: Share): void {
    const now = this.#clock.monotonicNow()
    const before = new Map([...this.#away, ...this.#lanes])
    let changed = share.of !== this.#share.of || share.rank !== this.#share.rank
    this.#share = share
    this.#lanes = new Map()
    for (const { id, endpoint, failing, open_for_ms: openForMs, failures } of endpoints) {
      if (endpoint === undefined) continue
      const known = before.get(id)
      const lane = known ?? this.#newLane(id, now)
      const room = known === undefined || this.#away.has(id) ? 0 : this.#boundOf(lane, now).bound
      lane.concurrency = part(endpoint.concurrency, id, share)
      setRate(lane, rateOf(endpoint, share), now)
      lane.breaker.learn({ failing, openForMs, failures }, now)
      this.#lanes.set(id, lane)
      changed ||= this.#boundOf(lane, now).bound > room
    }
    this.#away = new Map([...before].filter(([id, { taken }]) => taken > 0 && !this.#lanes.has(id)))
    if (changed) this.#listener()
  }

  /** Nothing is claimed while the endpoints are being read that something has just been said about. */
  hold(): void {
    this.#held = true
  }

  letGo(): void {
    if (!this.#held) return
    this.#held = false
    this.#listener()
  }

  open(free: number): OpenLanes {
    if (this.#held) return { lanes: [], againInMs: Number.POSITIVE_INFINITY }
    const now = this.#clock.monotonicNow()
    const all = this.#inTurn().map((lane) => ({ lane, ...this.#boundOf(lane, now) }))
    const taken = all.reduce((sum, { lane }) => sum + lane.taken, 0)
    const toBeHad = Math.max(0, free - Math.ceil((free + taken) * RESERVED))
    const busy = all.filter(({ lane, bound }) => lane.mayHaveMore && bound > 0).length
    const each = toBeHad === 0 ? 0 : Math.max(1, Math.floor(toBeHad / Math.max(1, busy)))
    // Those of which nothing is on its way come first: what is reserved is for them.
    const order = [...all.filter(({ lane }) => lane.taken === 0), ...all.filter(({ lane }) => lane.taken > 0)]
    const lanes: Lane[] = []
    let againInMs = Number.POSITIVE_INFINITY
    this.#crowded = false
    for (const { lane, bound, againAt } of order) {
      const fair = (lane.taken === 0 ? 1 : 0) + (lane.mayHaveMore ? each : Math.min(1, each))
      const room = Math.min(bound, fair)
      if (bound > fair && (lane.mayHaveMore || each === 0)) this.#crowded = true
      if (room === 0) {
        if (lane.mayHaveMore) againInMs = Math.min(againInMs, againAt - now)
      } else if (lanes.length < MOST_LANES) {
        lanes.push({ key: lane.id, room })
        lane.taken += room
        lane.tokens -= room
      } else {
        againInMs = 0
      }
    }
    return { lanes, againInMs }
  }

  looked(lanes: readonly Lane[], rows: readonly DeliveryRow[], full = false): void {
    const counts = new Map<string, number>()
    for (const { endpoint_id: id } of rows) counts.set(id, (counts.get(id) ?? 0) + 1)
    const now = this.#clock.monotonicNow()
    let more = false
    for (const { key, room } of lanes) {
      const lane = this.#find(key)
      if (lane === undefined) continue
      const found = counts.get(key) ?? 0
      lane.taken -= room - found
      lane.tokens += room - found
      lane.mayHaveMore = found >= room || full
      more ||= found >= room && this.#boundOf(lane, now).bound > 0
    }
    // An endpoint that was quiet was offered one, and there may be many.
    if (more) this.#listener()
  }

  ended({ endpoint_id: id }: DeliveryRow): void {
    const lane = this.#find(id)
    if (lane === undefined) return
    lane.taken = Math.max(0, lane.taken - 1)
    if (lane.taken === 0) this.#away.delete(id)
    if (lane.mayHaveMore || this.#crowded) this.#listener()
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
    const lane = this.#lanes.get(id)
    if (lane === undefined) return undefined
    // What failed will be due again.
    lane.mayHaveMore = true
    return lane.breaker.failed(this.#clock.monotonicNow())
  }

  /** It asked to be left alone. */
  rest(id: string, forMs: number): void {
    const lane = this.#lanes.get(id)
    if (lane !== undefined) lane.restUntil = Math.max(lane.restUntil, this.#clock.monotonicNow() + forMs)
  }

  #find(id: string): EndpointLane | undefined {
    return this.#lanes.get(id) ?? this.#away.get(id)
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

  /** What its own limits and its circuit leave, and when that may be more. */
  #boundOf(lane: EndpointLane, now: number): { bound: number; againAt: number } {
    if (now < lane.restUntil) return { bound: 0, againAt: lane.restUntil }
    const probes = lane.breaker.room(now)
    if (probes === 0) return { bound: 0, againAt: lane.breaker.openUntil }
    // One dispatcher probes, the one that would get the only delivery of an endpoint that takes one at a time.
    const most = probes === 1 ? part(1, lane.id, this.#share) : lane.concurrency
    const left = most - lane.taken
    // Until something ends there is none; then `ended` says so.
    if (left < 1) return { bound: 0, againAt: Number.POSITIVE_INFINITY }
    const { tokens, againAt } = allowance(lane, now)
    return { bound: Math.min(left, tokens), againAt }
  }
}

/** Those who have a part of what the endpoint takes at once share its rate; the others deliver nothing. */
function rateOf({ ratePerSecond, concurrency }: Endpoint, { of }: Share): number | undefined {
  return ratePerSecond === undefined ? undefined : ratePerSecond / Math.min(of, concurrency) / 1_000
}

function setRate(lane: EndpointLane, ratePerMs: number | undefined, now: number): void {
  if (ratePerMs !== undefined && lane.ratePerMs === undefined) {
    lane.tokens = 1
    lane.filledAt = now
  }
  lane.ratePerMs = ratePerMs
}

/** Refills what the rate allows. */
function allowance(lane: EndpointLane, now: number): { tokens: number; againAt: number } {
  const { ratePerMs } = lane
  if (ratePerMs === undefined) return { tokens: Number.MAX_SAFE_INTEGER, againAt: Number.POSITIVE_INFINITY }
  const most = Math.max(1, ratePerMs * BURST_MS)
  lane.tokens = Math.min(most, lane.tokens + (now - lane.filledAt) * ratePerMs)
  lane.filledAt = now
  const tokens = Math.max(0, Math.floor(lane.tokens + 1e-9))
  return { tokens, againAt: now + (1 - lane.tokens) / ratePerMs }
}
