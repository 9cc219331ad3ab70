/**
 * How many deliveries each endpoint may get at the moment. Endpoints are the groups of the table: a claim names the
 * endpoints that have room, and how much.
 */
import type { Clock } from '../../clock.ts'
import type { Group } from '../../lease/store.ts'
import type { Groups, OpenGroups } from '../../worker/claiming/groups.ts'
import type { DeliveryRow } from '../table.ts'
import { CircuitBreaker, type CircuitBreakerSettings, type CircuitChange } from './circuit-breaker.ts'
import type { CachedEndpoint, EndpointState } from './endpoint-cache.ts'

/** Which of the running dispatchers this is. The limits of an endpoint hold for all of them together. */
export interface DispatcherPosition {
  /** From 0, in the order of the worker ids. */
  readonly index: number
  /** How many dispatchers there are. */
  readonly count: number
}

export const ONLY_DISPATCHER: DispatcherPosition = { index: 0, count: 1 }

/** A dispatcher that is not in the registry yet counts itself. */
export function positionAmong(worker: string, dispatchers: readonly string[]): DispatcherPosition {
  const all = dispatchers.includes(worker) ? dispatchers : [...dispatchers, worker].toSorted()
  return { index: all.indexOf(worker), count: all.length }
}

/**
 * This dispatcher's part of a limit; the parts of all dispatchers add up to the limit. The remainder of the division
 * goes to different dispatchers for different endpoints, so that no dispatcher gets all remainders.
 */
export function partOfLimit(limit: number, endpointId: string, { index, count }: DispatcherPosition): number {
  const rotated = (index + hash(endpointId)) % count
  return Math.floor(limit / count) + (rotated < limit % count ? 1 : 0)
}

function hash(text: string): number {
  let sum = 0
  for (let i = 0; i < text.length; i += 1) sum = (sum * 31 + text.charCodeAt(i)) >>> 0
  return sum
}

/** The owner of endpoints. */
interface Tenant {
  /** Deliveries in flight to all its endpoints, and what claims that have not returned yet may add to them. */
  inFlight: number
}

interface EndpointGroup {
  readonly id: string
  tenant: Tenant
  readonly circuitBreaker: CircuitBreaker
  /** This dispatcher's part of the endpoint's concurrency. It applies while the circuit is closed. */
  concurrency: number
  /** This dispatcher's part of the endpoint's rate; undefined: no limit. */
  ratePerMs: number | undefined
  /** Deliveries in flight, and room that was offered to a claim that has not returned yet. */
  inFlight: number
  /** Token bucket of the rate: how many deliveries may start now. */
  tokens: number
  refilledAt: number
  /** The endpoint asked not to be called before this time. */
  pausedUntil: number
  /** Whether more deliveries may be waiting than the last claim returned. */
  mayHaveMore: boolean
}

/** The capacity of the token bucket, so that no second has noticeably more deliveries than the rate allows. */
const BURST_MS = 100
/** The part of all slots that is reserved for endpoints with nothing in flight. */
const RESERVED_SLOTS = 0.25
/** The part of all slots that is reserved for tenants with nothing in flight. */
const RESERVED_FOR_TENANTS = 0.125
/** How many groups one claim names at most; the next claim names the others. */
const MAX_GROUPS_PER_CLAIM = 1_000
/** A very low rate allows its next delivery years from now, which no timer can wait for. */
const MAX_WAIT_MS = 3_600_000

/**
 * The room of an endpoint is limited by its own limits, by its circuit, and by the needs of the other endpoints. One
 * delivery of an endpoint may always be in flight while there is a free slot. More may be in flight only while a quarter
 * of the slots is free, and busy endpoints divide the rest evenly. So a fast endpoint waits only if the slow endpoints
 * outnumber a quarter of the slots.
 *
 * Where there are several tenants, each may use only a part of the slots (`tenantShare`), and an eighth of the slots is
 * for tenants with nothing in flight. So the slow endpoints of one tenant, however many, delay no other tenant.
 */
export class EndpointGroups implements Groups<DeliveryRow> {
  readonly #clock: Clock
  readonly #settings: CircuitBreakerSettings
  readonly #tenantShare: number
  readonly #onWake: () => void
  /** Those that were not named by a claim for longest come first. */
  #groups = new Map<string, EndpointGroup>()
  /** Endpoints that were disabled, deleted or became unusable while deliveries to them were in flight. */
  #removed = new Map<string, EndpointGroup>()
  #position = ONLY_DISPATCHER
  #tenants = new Map<string, Tenant>()
  /** How many groups the next claims still have to name until all have been named since something changed. */
  #notNamedYet = 0
  /** Whether an endpoint could use more room than it was offered, once other deliveries have ended. */
  #contended = false
  #notifyRoom: () => void = () => undefined

  constructor(clock: Clock, settings: CircuitBreakerSettings, tenantShare: number, onWake: () => void) {
    this.#clock = clock
    this.#settings = settings
    this.#tenantShare = tenantShare
    this.#onWake = onWake
  }

  /** Takes over the endpoints as they are now, and which of the dispatchers this is. */
  update(endpoints: readonly EndpointState[], position: DispatcherPosition): void {
    const now = this.#clock.monotonicNow()
    const before = new Map([...this.#removed, ...this.#groups])
    let hasMoreRoom = position.count !== this.#position.count || position.index !== this.#position.index
    this.#position = position
    this.#groups = new Map()
    const tenants = new Map<string, Tenant>()
    for (const { id, tenant: name, endpoint, ...row } of this.#inOrderOf(before, endpoints)) {
      if (endpoint === undefined) continue
      const tenant = tenants.get(name) ?? this.#tenants.get(name) ?? { inFlight: 0 }
      tenants.set(name, tenant)
      const known = before.get(id)
      const group = known ?? this.#newGroup(id, tenant, now)
      const room = known === undefined || this.#removed.has(id) ? 0 : this.#allowance(group, now).room
      group.concurrency = partOfLimit(endpoint.concurrency, id, position)
      setRate(group, ratePerMs(endpoint, position), now)
      const stored = { isOpen: row.circuit_is_open, openForMs: row.open_for_ms, failures: row.failures }
      group.circuitBreaker.synchronize(stored, now)
      this.#groups.set(id, group)
      hasMoreRoom ||= this.#allowance(group, now).room > room
    }
    for (const [name, tenant] of this.#tenants) if (tenant.inFlight > 0) tenants.set(name, tenant)
    this.#tenants = tenants
    this.#removed = new Map([...before].filter(([id, { inFlight }]) => inFlight > 0 && !this.#groups.has(id)))
    if (hasMoreRoom) this.#reportRoom()
  }

  open(freeSlots: number, slots: number): OpenGroups {
    const now = this.#clock.monotonicNow()
    const all = [...this.#groups.values()].map((group) => ({ group, ...this.#allowance(group, now) }))
    const shared = Math.max(0, freeSlots - Math.ceil(slots * RESERVED_SLOTS))
    const busy = all.filter(({ group, room }) => group.mayHaveMore && room > 0).length
    const each = shared === 0 ? 0 : Math.max(1, Math.floor(shared / Math.max(1, busy)))
    const roomOf = this.#tenantRooms(freeSlots, slots)
    const open: { group: EndpointGroup; room: number }[] = []
    let recheckInMs = Number.POSITIVE_INFINITY
    this.#contended = false
    for (const { group, room: allowed, nextAt } of all) {
      const fair = (group.inFlight === 0 ? 1 : 0) + (group.mayHaveMore ? each : Math.min(1, each))
      const tenantRoom = roomOf(group.tenant)
      const room = Math.min(allowed, fair, tenantRoom)
      if (allowed > fair && (group.mayHaveMore || each === 0)) this.#contended = true
      if (allowed > tenantRoom) this.#contended = true
      if (room > 0) open.push({ group, room })
      // What waits only for slots is reported by `ended`.
      else if (group.mayHaveMore && allowed === 0)
        recheckInMs = Math.min(recheckInMs, limitWait(nextAt - now))
    }
    const { named, limit } = this.#choose(open, roomOf, freeSlots, slots)
    for (const { group, room } of named) {
      group.inFlight += room
      group.tokens -= room
    }
    const groups = named.map(({ group, room }) => ({ group: group.id, room }))
    for (const [tenant, room] of this.#roomsByTenant(groups)) tenant.inFlight += Math.min(room, limit)
    return { groups, limit, recheckInMs: this.#hasUnnamed(named, open.length) ? 0 : recheckInMs }
  }

  /**
   * How many more deliveries of a tenant may be in flight: its share of the slots, without those that are reserved for
   * tenants with nothing in flight. A single tenant has all slots.
   */
  #tenantRooms(freeSlots: number, slots: number): (tenant: Tenant) => number {
    if (this.#tenants.size <= 1) return () => Number.POSITIVE_INFINITY
    const quota = Math.max(1, Math.floor(slots * this.#tenantShare))
    const spare = freeSlots - Math.ceil(slots * RESERVED_FOR_TENANTS)
    return ({ inFlight }) => Math.max(inFlight === 0 ? 1 : 0, Math.min(quota - inFlight, spare))
  }

  /**
   * The groups that the next claim names. Each endpoint that may have deliveries is offered room, in all often more than
   * the tenant has, because only the claim finds out which of them have deliveries. So the claim is limited to what the
   * tenant with the least room can take. A tenant that has used up most of its share gets a claim of its own, so that it
   * does not limit the claims of the others.
   */
  #choose(
    open: readonly { readonly group: EndpointGroup; readonly room: number }[],
    roomOf: (tenant: Tenant) => number,
    freeSlots: number,
    slots: number,
  ): { named: typeof open; limit: number } {
    const [first] = open
    if (first === undefined) return { named: [], limit: 0 }
    if (this.#tenants.size <= 1) return { named: open.slice(0, MAX_GROUPS_PER_CLAIM), limit: freeSlots }
    const most = Math.min(slots * this.#tenantShare, freeSlots - slots * RESERVED_FOR_TENANTS)
    const isTight = (tenant: Tenant): boolean => roomOf(tenant) * 2 < most
    const { tenant: firstTenant } = first.group
    const named = open
      .filter(({ group: { tenant } }) => (isTight(firstTenant) ? tenant === firstTenant : !isTight(tenant)))
      .slice(0, MAX_GROUPS_PER_CLAIM)
    let limit = freeSlots
    const offered = new Map<Tenant, number>()
    for (const { group, room } of named) offered.set(group.tenant, (offered.get(group.tenant) ?? 0) + room)
    for (const [tenant, room] of offered) if (room > roomOf(tenant)) limit = Math.min(limit, roomOf(tenant))
    return { named, limit }
  }

  /**
   * Whether groups that are open remain unnamed. The named ones go to the end of the queue; when all have been named once,
   * the next claim waits for something to change.
   */
  #hasUnnamed(named: readonly { readonly group: EndpointGroup }[], open: number): boolean {
    if (this.#notNamedYet <= 0) this.#notNamedYet = open
    this.#notNamedYet = Math.min(this.#notNamedYet, open) - named.length
    if (named.length === open) return false
    for (const { group } of named) {
      this.#groups.delete(group.id)
      this.#groups.set(group.id, group)
    }
    return this.#notNamedYet > 0
  }

  claimed(offered: OpenGroups, rows: readonly DeliveryRow[], more = false): void {
    const counts = new Map<string, number>()
    for (const { endpoint_id: id } of rows) counts.set(id, (counts.get(id) ?? 0) + 1)
    const now = this.#clock.monotonicNow()
    const { groups, limit = Number.POSITIVE_INFINITY } = offered
    for (const [tenant, room] of this.#roomsByTenant(groups)) tenant.inFlight -= Math.min(room, limit)
    let hasMoreRoom = false
    for (const { group: key, room } of groups) {
      const group = this.#find(key)
      if (group === undefined) continue
      const found = counts.get(key) ?? 0
      group.inFlight -= room - found
      group.tokens += room - found
      group.tenant.inFlight += found
      group.mayHaveMore = found >= room || more
      hasMoreRoom ||= found >= room && this.#allowance(group, now).room > 0
    }
    // An idle endpoint was offered room for one or two deliveries, and many may be waiting.
    if (hasMoreRoom) this.#reportRoom()
  }

  ended({ endpoint_id: id }: DeliveryRow): void {
    const group = this.#find(id)
    if (group === undefined) return
    group.inFlight = Math.max(0, group.inFlight - 1)
    group.tenant.inFlight = Math.max(0, group.tenant.inFlight - 1)
    if (group.inFlight === 0) this.#removed.delete(id)
    if (group.mayHaveMore || this.#contended) this.#reportRoom()
  }

  onRoom(listener: () => void): void {
    this.#notifyRoom = listener
  }

  wake(): void {
    this.#notNamedYet = Number.POSITIVE_INFINITY
    this.#onWake()
  }

  recordSuccess(id: string): CircuitChange | undefined {
    return this.#groups.get(id)?.circuitBreaker.recordSuccess()
  }

  recordFailure(id: string): CircuitChange | undefined {
    const group = this.#groups.get(id)
    if (group === undefined) return undefined
    // The failed delivery will be due for its next attempt.
    group.mayHaveMore = true
    return group.circuitBreaker.recordFailure(this.#clock.monotonicNow())
  }

  /** The endpoint asked not to be called for this long. */
  pause(id: string, forMs: number): void {
    const group = this.#groups.get(id)
    if (group === undefined) return
    group.pausedUntil = Math.max(group.pausedUntil, this.#clock.monotonicNow() + forMs)
  }

  #find(id: string): EndpointGroup | undefined {
    return this.#groups.get(id) ?? this.#removed.get(id)
  }

  #newGroup(id: string, tenant: Tenant, now: number): EndpointGroup {
    return {
      id,
      tenant,
      circuitBreaker: new CircuitBreaker(this.#settings),
      concurrency: 0,
      ratePerMs: undefined,
      inFlight: 0,
      tokens: 1,
      refilledAt: now,
      pausedUntil: 0,
      mayHaveMore: true,
    }
  }

  #reportRoom(): void {
    this.#notNamedYet = Number.POSITIVE_INFINITY
    this.#notifyRoom()
  }

  #roomsByTenant(groups: readonly Group[]): ReadonlyMap<Tenant, number> {
    const rooms = new Map<Tenant, number>()
    for (const { group: id, room } of groups) {
      const tenant = this.#find(id)?.tenant
      if (tenant !== undefined) rooms.set(tenant, (rooms.get(tenant) ?? 0) + room)
    }
    return rooms
  }

  /** In the order of the known groups, new ones last: an update must not start the queue anew. */
  #inOrderOf(
    known: ReadonlyMap<string, EndpointGroup>,
    endpoints: readonly EndpointState[],
  ): readonly EndpointState[] {
    const byId = new Map(endpoints.map((state) => [state.id, state]))
    const first = [...known.keys()].flatMap((id) => byId.get(id) ?? [])
    return [...first, ...endpoints.filter(({ id }) => !known.has(id))]
  }

  /** How many more deliveries the endpoint's own limits and its circuit allow, and when they may allow more. */
  #allowance(group: EndpointGroup, now: number): { room: number; nextAt: number } {
    if (now < group.pausedUntil) return { room: 0, nextAt: group.pausedUntil }
    const circuit = group.circuitBreaker.state(now)
    if (circuit === 'open') return { room: 0, nextAt: group.circuitBreaker.openUntil }
    // Only one dispatcher probes: the one that would deliver to an endpoint with a concurrency of 1.
    const limit = circuit === 'half-open' ? partOfLimit(1, group.id, this.#position) : group.concurrency
    const free = limit - group.inFlight
    // `ended` reports when there is room.
    if (free < 1) return { room: 0, nextAt: Number.POSITIVE_INFINITY }
    const { tokens, nextAt } = refill(group, now)
    return { room: Math.min(free, tokens), nextAt }
  }
}

/** Infinity means that an event will report the room; every other wait is limited to what a timer can take. */
function limitWait(ms: number): number {
  return ms === Number.POSITIVE_INFINITY ? ms : Math.min(ms, MAX_WAIT_MS)
}

/** The rate is divided among the dispatchers that have a part of the concurrency; the others deliver nothing. */
function ratePerMs(
  { ratePerSecond, concurrency }: CachedEndpoint,
  { count }: DispatcherPosition,
): number | undefined {
  return ratePerSecond === undefined ? undefined : ratePerSecond / Math.min(count, concurrency) / 1_000
}

function setRate(group: EndpointGroup, rate: number | undefined, now: number): void {
  if (rate !== undefined && group.ratePerMs === undefined) {
    group.tokens = 1
    group.refilledAt = now
  }
  group.ratePerMs = rate
}

/** Refills the token bucket. Returns the whole tokens in it, and when there will be the next one. */
function refill(group: EndpointGroup, now: number): { tokens: number; nextAt: number } {
  const { ratePerMs: rate } = group
  if (rate === undefined) return { tokens: Number.MAX_SAFE_INTEGER, nextAt: Number.POSITIVE_INFINITY }
  const capacity = Math.max(1, rate * BURST_MS)
  group.tokens = Math.min(capacity, group.tokens + (now - group.refilledAt) * rate)
  group.refilledAt = now
  // Rounding errors must not cost a whole token.
  const tokens = Math.max(0, Math.floor(group.tokens + 1e-9))
  return { tokens, nextAt: now + (1 - group.tokens) / rate }
}
