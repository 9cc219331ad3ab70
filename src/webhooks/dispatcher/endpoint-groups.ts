import type { Clock } from '../../clock.ts'
import type { Group } from '../../lease/store.ts'
import type { Groups, OpenGroups } from '../../worker/groups.ts'
import type { DeliveryRow } from '../table.ts'
import { Breaker, type BreakerChange, type BreakerSettings } from './breaker.ts'
import type { Endpoint, Surveyed } from './directory.ts'
import { ALONE, part, type Share } from './share.ts'

/** One endpoint, as far as there is room for its deliveries. */
interface EndpointGroup {
  readonly id: string
  readonly breaker: Breaker
  /** This dispatcher's part of what the endpoint takes at once, while its circuit is closed. */
  concurrency: number
  ratePerMs: number | undefined
  /** Deliveries in flight, and room that was offered to a claim. */
  taken: number
  /** Of the rate: how many may begin at this moment. */
  tokens: number
  filledAt: number
  restUntil: number
  /** More may wait than the last claim returned. */
  mayHaveMore: boolean
}

/** A rate is applied in periods of this length, so that no second has noticeably more than it allows. */
const BURST_MS = 100
/** The share of all slots that is reserved for endpoints with nothing in flight. */
const RESERVED = 0.25
/** The most groups of one claim; the next claim starts with the others. */
const MAX_GROUPS = 1_000
/** A very low rate has its next delivery years from now; no timer takes that long. */
const MAX_WAIT_MS = 3_600_000

/**
 * How many deliveries each endpoint may get. Three things bound it: its own limits, its circuit, and what others need.
 * One delivery of an endpoint may always be in flight, as long as there is a slot; more only while a quarter of the
 * slots is free, and each busy endpoint gets an equal part of the rest. So slow endpoints have to be as many as a
 * quarter of the slots before a quick one has to wait.
 */
export class EndpointGroups implements Groups<DeliveryRow> {
  readonly #clock: Clock
  readonly #settings: BreakerSettings
  readonly #onWake: () => void
  #groups = new Map<string, EndpointGroup>()
  /** Endpoints that are disabled, deleted or unusable now, and still have something in flight. */
  #absent = new Map<string, EndpointGroup>()
  #share = ALONE
  #first = 0
  /** An endpoint could use more than it was offered, once others have ended. */
  #contended = false
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
    const before = new Map([...this.#absent, ...this.#groups])
    let changed = share.of !== this.#share.of || share.rank !== this.#share.rank
    this.#share = share
    this.#groups = new Map()
    for (const { id, endpoint, failing, open_for_ms: openForMs, failures } of endpoints) {
      if (endpoint === undefined) continue
      const known = before.get(id)
      const group = known ?? this.#newGroup(id, now)
      const room = known === undefined || this.#absent.has(id) ? 0 : this.#boundOf(group, now).bound
      group.concurrency = part(endpoint.concurrency, id, share)
      setRate(group, rateOf(endpoint, share), now)
      group.breaker.learn({ failing, openForMs, failures }, now)
      this.#groups.set(id, group)
      changed ||= this.#boundOf(group, now).bound > room
    }
    this.#absent = new Map([...before].filter(([id, { taken }]) => taken > 0 && !this.#groups.has(id)))
    if (changed) this.#listener()
  }

  /** Nothing is claimed while endpoints that have just changed are being read. */
  hold(): void {
    this.#held = true
  }

  resume(): void {
    if (!this.#held) return
    this.#held = false
    this.#listener()
  }

  open(free: number): OpenGroups {
    if (this.#held) return { groups: [], againInMs: Number.POSITIVE_INFINITY }
    const now = this.#clock.monotonicNow()
    const all = this.#inTurn().map((group) => ({ group, ...this.#boundOf(group, now) }))
    const taken = all.reduce((sum, { group }) => sum + group.taken, 0)
    const available = Math.max(0, free - Math.ceil((free + taken) * RESERVED))
    const busy = all.filter(({ group, bound }) => group.mayHaveMore && bound > 0).length
    const each = available === 0 ? 0 : Math.max(1, Math.floor(available / Math.max(1, busy)))
    // Those with nothing in flight come first: the reserve is for them.
    const order = [
      ...all.filter(({ group }) => group.taken === 0),
      ...all.filter(({ group }) => group.taken > 0),
    ]
    const groups: Group[] = []
    let againInMs = Number.POSITIVE_INFINITY
    this.#contended = false
    for (const { group, bound, againAt } of order) {
      const fair = (group.taken === 0 ? 1 : 0) + (group.mayHaveMore ? each : Math.min(1, each))
      const room = Math.min(bound, fair)
      if (bound > fair && (group.mayHaveMore || each === 0)) this.#contended = true
      if (room === 0) {
        if (group.mayHaveMore) againInMs = Math.min(againInMs, waitFor(againAt - now))
      } else if (groups.length < MAX_GROUPS) {
        groups.push({ key: group.id, room })
        group.taken += room
        group.tokens -= room
      } else {
        againInMs = 0
      }
    }
    return { groups, againInMs }
  }

  claimed(groups: readonly Group[], rows: readonly DeliveryRow[], more = false): void {
    const counts = new Map<string, number>()
    for (const { endpoint_id: id } of rows) counts.set(id, (counts.get(id) ?? 0) + 1)
    const now = this.#clock.monotonicNow()
    let roomForMore = false
    for (const { key, room } of groups) {
      const group = this.#find(key)
      if (group === undefined) continue
      const found = counts.get(key) ?? 0
      group.taken -= room - found
      group.tokens += room - found
      group.mayHaveMore = found >= room || more
      roomForMore ||= found >= room && this.#boundOf(group, now).bound > 0
    }
    // An endpoint that was quiet was offered one, and there may be many.
    if (roomForMore) this.#listener()
  }

  ended({ endpoint_id: id }: DeliveryRow): void {
    const group = this.#find(id)
    if (group === undefined) return
    group.taken = Math.max(0, group.taken - 1)
    if (group.taken === 0) this.#absent.delete(id)
    if (group.mayHaveMore || this.#contended) this.#listener()
  }

  onRoom(listener: () => void): void {
    this.#listener = listener
  }

  wake(): void {
    this.#onWake()
  }

  succeeded(id: string): BreakerChange | undefined {
    return this.#groups.get(id)?.breaker.succeeded()
  }

  failed(id: string): BreakerChange | undefined {
    const group = this.#groups.get(id)
    if (group === undefined) return undefined
    // A failed delivery will be due for its next attempt.
    group.mayHaveMore = true
    return group.breaker.failed(this.#clock.monotonicNow())
  }

  /** The endpoint asked for a pause. */
  rest(id: string, forMs: number): void {
    const group = this.#groups.get(id)
    if (group !== undefined) group.restUntil = Math.max(group.restUntil, this.#clock.monotonicNow() + forMs)
  }

  #find(id: string): EndpointGroup | undefined {
    return this.#groups.get(id) ?? this.#absent.get(id)
  }

  #newGroup(id: string, now: number): EndpointGroup {
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

  /** Each claim begins with another group, so that none is always first when there is room for few. */
  #inTurn(): EndpointGroup[] {
    const all = [...this.#groups.values()]
    if (all.length === 0) return all
    this.#first = (this.#first + 1) % all.length
    return [...all.slice(this.#first), ...all.slice(0, this.#first)]
  }

  /** What its own limits and its circuit allow, and when that may be more. */
  #boundOf(group: EndpointGroup, now: number): { bound: number; againAt: number } {
    if (now < group.restUntil) return { bound: 0, againAt: group.restUntil }
    const probes = group.breaker.room(now)
    if (probes === 0) return { bound: 0, againAt: group.breaker.openUntil }
    // One dispatcher probes: the one that would get the only delivery of an endpoint that takes one at a time.
    const most = probes === 1 ? part(1, group.id, this.#share) : group.concurrency
    const free = most - group.taken
    // Until something ends there is none; then `ended` says so.
    if (free < 1) return { bound: 0, againAt: Number.POSITIVE_INFINITY }
    const { tokens, againAt } = allowance(group, now)
    return { bound: Math.min(free, tokens), againAt }
  }
}

/** Infinity means that something else will tell; every other wait is one that a timer can take. */
function waitFor(ms: number): number {
  return ms === Number.POSITIVE_INFINITY ? ms : Math.min(ms, MAX_WAIT_MS)
}

/** Dispatchers that have a part of the endpoint's concurrency share its rate; the others deliver nothing. */
function rateOf({ ratePerSecond, concurrency }: Endpoint, { of }: Share): number | undefined {
  return ratePerSecond === undefined ? undefined : ratePerSecond / Math.min(of, concurrency) / 1_000
}

function setRate(group: EndpointGroup, ratePerMs: number | undefined, now: number): void {
  if (ratePerMs !== undefined && group.ratePerMs === undefined) {
    group.tokens = 1
    group.filledAt = now
  }
  group.ratePerMs = ratePerMs
}

/** Refills what the rate allows. */
function allowance(group: EndpointGroup, now: number): { tokens: number; againAt: number } {
  const { ratePerMs } = group
  if (ratePerMs === undefined) return { tokens: Number.MAX_SAFE_INTEGER, againAt: Number.POSITIVE_INFINITY }
  const most = Math.max(1, ratePerMs * BURST_MS)
  group.tokens = Math.min(most, group.tokens + (now - group.filledAt) * ratePerMs)
  group.filledAt = now
  const tokens = Math.max(0, Math.floor(group.tokens + 1e-9))
  return { tokens, againAt: now + (1 - group.tokens) / ratePerMs }
}
