import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Group } from '../../lease/store.ts'
import type { OpenGroups } from '../../worker/claiming/groups.ts'
import type { DeliveryRow } from '../table.ts'
import { circuitBreakerSettings } from './circuit-breaker.ts'
import type { EndpointState } from './endpoint-cache.ts'
import { EndpointGroups, ONLY_DISPATCHER, partOfLimit, positionAmong } from './endpoint-groups.ts'

const circuitBreaker = circuitBreakerSettings({ failureThreshold: 2, openMs: 100 })

function endpoint(
  id: string,
  fields: { concurrency?: number; rate?: number; unusable?: true; tenant?: string } = {},
): EndpointState {
  const cached = {
    id,
    url: 'https://example.com',
    headers: {},
    ratePerSecond: fields.rate,
    concurrency: fields.concurrency ?? 10,
    timeoutMs: 1_000,
    signers: () => [],
  }
  const circuit = { version: '1', circuit_is_open: false, open_for_ms: 0, failures: 0 }
  return {
    id,
    tenant: fields.tenant ?? '',
    ...circuit,
    endpoint: fields.unusable === true ? undefined : cached,
  }
}

function row(endpointId: string): DeliveryRow {
  return {
    id: '1',
    event_id: '',
    endpoint_id: endpointId,
    event_type: '',
    ordering_key: null,
    body: '',
    headers: {},
    attempts: 0,
    created_at: new Date(0),
  }
}

/** As if a claim had been offered this room. */
function named(...groups: readonly Group[]): OpenGroups {
  return { groups, recheckInMs: Number.POSITIVE_INFINITY }
}

function groupsOf(...endpoints: readonly EndpointState[]) {
  const time = { now: 1_000 }
  const groups = new EndpointGroups({ monotonicNow: () => time.now }, circuitBreaker, 0.5, () => undefined)
  let notified = 0
  groups.onRoom(() => {
    notified += 1
  })
  groups.update(endpoints, ONLY_DISPATCHER)
  const rooms = (free = 1_000, slots = 1_000): Record<string, number> =>
    Object.fromEntries(groups.open(free, slots).groups.map(({ group: key, room }) => [key, room]))
  return { groups, time, rooms, notifications: () => notified }
}

describe('room', () => {
  it('the room of an endpoint is its concurrency less what is in flight or was offered to a claim', () => {
    const { groups, rooms } = groupsOf(endpoint('a', { concurrency: 3 }), endpoint('b', { concurrency: 1 }))
    expect(rooms()).toEqual({ a: 3, b: 1 })
    // A second claim that runs at the same time is offered nothing.
    expect(rooms()).toEqual({})
    groups.claimed(named({ group: 'a', room: 3 }, { group: 'b', room: 1 }), [row('a'), row('a'), row('a')])
    expect(rooms()).toEqual({ b: 1 })
    groups.claimed(named({ group: 'b', room: 1 }), [])
    groups.ended(row('a'))
    groups.ended(row('a'))
    expect(rooms()).toEqual({ a: 2, b: 1 })
  })

  it('a claim that failed returns its room', () => {
    const { groups, rooms } = groupsOf(endpoint('a', { concurrency: 2 }))
    const offered = groups.open(10, 10)
    groups.claimed(offered, [], true)
    expect(rooms()).toEqual({ a: 2 })
  })

  it('an endpoint that seems idle gets little room, until a claim returns all that was offered', () => {
    const { groups, rooms, notifications } = groupsOf(endpoint('a'))
    groups.claimed(groups.open(100, 100), [])
    expect(rooms()).toEqual({ a: 2 })
    const before = notifications()
    groups.claimed(named({ group: 'a', room: 2 }), [row('a'), row('a')])
    expect(notifications()).toBe(before + 1)
    expect(rooms()).toEqual({ a: 8 })
  })

  it('busy endpoints get equal room, and a quarter of the slots is reserved for idle ones', () => {
    const slow = Array.from({ length: 100 }, (_, n) => endpoint(`slow ${n}`))
    const { groups, rooms } = groupsOf(...slow)
    const first = groups.open(256, 256)
    expect(new Set(first.groups.map(({ room }) => room))).toEqual(new Set([2]))
    groups.claimed(
      first,
      first.groups.flatMap(({ group: key, room }) => Array.from({ length: room }, () => row(key))),
    )
    // 200 are in flight. Endpoints with a delivery in flight get no more, however many wait.
    expect(rooms(56, 256)).toEqual({})
    groups.update([...slow, endpoint('fast')], ONLY_DISPATCHER)
    expect(rooms(56, 256)).toEqual({ fast: 1 })
  })

  it('an endpoint that is disabled and enabled still counts what it had in flight', () => {
    const { groups, rooms } = groupsOf(endpoint('a', { concurrency: 3 }))
    const offered = groups.open(100, 100)
    groups.update([], ONLY_DISPATCHER)
    groups.claimed(offered, [row('a'), row('a')])
    groups.update([endpoint('a', { concurrency: 3 })], ONLY_DISPATCHER)
    expect(rooms()).toEqual({ a: 1 })
  })

  it('room follows the rate, without a burst', () => {
    const { groups, time, rooms } = groupsOf(endpoint('a', { concurrency: 100, rate: 50 }))
    expect(rooms()).toEqual({ a: 1 })
    groups.claimed(named({ group: 'a', room: 1 }), [row('a')])
    expect(groups.open(100, 100)).toMatchObject({ groups: [], recheckInMs: 20 })
    time.now += 20
    expect(rooms()).toEqual({ a: 1 })
    time.now += 60_000
    expect(rooms()).toEqual({ a: 5 })
  })

  it('the next claim is at most an hour away, however low the rate is', () => {
    const { groups, rooms } = groupsOf(endpoint('a', { rate: 1e-300 }))
    expect(rooms()).toEqual({ a: 1 })
    groups.claimed(named({ group: 'a', room: 1 }), [row('a')])
    expect(groups.open(100, 100)).toMatchObject({ groups: [], recheckInMs: 3_600_000 })
  })

  it('a paused endpoint has no room, and the next claim is due when the pause ends', () => {
    const { groups, time, rooms } = groupsOf(endpoint('a'))
    groups.pause('a', 500)
    expect(groups.open(100, 100)).toMatchObject({ groups: [], recheckInMs: 500 })
    time.now += 500
    expect(rooms()).toEqual({ a: 10 })
  })

  it('an open circuit leaves no room, and a half-open one leaves room for one probe', () => {
    const { groups, time, rooms } = groupsOf(endpoint('a'))
    groups.recordFailure('a')
    expect(groups.recordFailure('a')).toMatchObject({ to: 'open' })
    expect(groups.open(100, 100)).toMatchObject({ groups: [], recheckInMs: 100 })
    time.now += 100
    expect(rooms()).toEqual({ a: 1 })
    groups.claimed(named({ group: 'a', room: 1 }), [row('a')])
    expect(rooms()).toEqual({})
    groups.recordSuccess('a')
    expect(rooms()).toEqual({ a: 9 })
  })

  it('an endpoint that is unusable or was removed has no room', () => {
    const { groups, rooms } = groupsOf(endpoint('a', { unusable: true }), endpoint('b'))
    expect(rooms()).toEqual({ b: 10 })
    groups.update([], ONLY_DISPATCHER)
    expect(rooms()).toEqual({})
  })

  it('claims name endpoints in turn where there are more than one claim can name, and end when all have been named', () => {
    const endpoints = Array.from({ length: 2_500 }, (_, n) => endpoint(`e${n}`))
    const { groups } = groupsOf(...endpoints)
    const claim = (): { ids: string[]; recheckInMs: number } => {
      const offered = groups.open(100, 100)
      groups.claimed(offered, [])
      return { ids: offered.groups.map(({ group: id }) => id), recheckInMs: offered.recheckInMs }
    }
    const round = [claim(), claim(), claim()]
    expect(round.map(({ ids }) => ids.length)).toEqual([1_000, 1_000, 1_000])
    expect(new Set(round.flatMap(({ ids }) => ids)).size).toBe(2_500)
    expect(round.map(({ recheckInMs }) => recheckInMs)).toEqual([0, 0, Number.POSITIVE_INFINITY])
    // A refresh does not start the turns anew.
    groups.update(endpoints, ONLY_DISPATCHER)
    const next = claim()
    expect(next.ids).toEqual(round[0]?.ids.slice(500).concat(round[1]?.ids.slice(0, 500) ?? []))
    expect(next.recheckInMs).toBe(0)
    // What is sent meanwhile may be for an endpoint that was named already.
    groups.wake()
    expect([claim(), claim(), claim()].map(({ recheckInMs }) => recheckInMs)).toEqual([
      0,
      0,
      Number.POSITIVE_INFINITY,
    ])
  })

  it('an endpoint with a rate that waits for slots is not claimed from without pause', () => {
    const { groups, time } = groupsOf(endpoint('a', { rate: 1_000 }), endpoint('b'))
    groups.claimed(groups.open(4, 4), [row('a'), row('b')], true)
    time.now += 60_000
    // The last slot is reserved for idle endpoints.
    expect(groups.open(1, 4)).toMatchObject({ groups: [], recheckInMs: Number.POSITIVE_INFINITY })
  })
})

/** A dispatcher with endpoints of tenants, in all of which deliveries wait that never end. */
function stuck(slots: number, endpointsByTenant: Readonly<Record<string, number>>) {
  const states = Object.entries(endpointsByTenant).flatMap(([tenant, count]) =>
    Array.from({ length: count }, (_, n) => endpoint(`${tenant} ${n}`, { tenant })),
  )
  const { groups } = groupsOf(...states)
  const started: string[] = []
  const free = (): number => slots - started.length

  /** Claims until nothing more is offered: from endpoints in this order, as many as the claim may return. */
  function claimAll(order: readonly string[] = states.map(({ id }) => id)): number {
    let claims = 0
    for (let recheckInMs = 0; recheckInMs === 0 && free() > 0; claims += 1) {
      const offered = groups.open(free(), slots)
      ;({ recheckInMs } = offered)
      const rooms = new Map(offered.groups.map(({ group, room }) => [group, room]))
      const most = Math.min(offered.limit ?? 0, free())
      const rows = order
        .flatMap((id) => Array.from({ length: rooms.get(id) ?? 0 }, () => row(id)))
        .slice(0, most)
      groups.claimed(offered, rows, true)
      for (const { endpoint_id: id } of rows) started.push(id)
      if (rows.length > 0) recheckInMs = 0
    }
    return claims
  }
  const of = (tenant: string): number => started.filter((id) => id.startsWith(`${tenant} `)).length
  return { groups, states, claimAll, of, started, free }
}

describe('tenants', () => {
  it('one tenant with 300 slow endpoints uses half of the slots, and the rest remains for the other', () => {
    const { claimAll, of, free } = stuck(256, { a: 300, b: 300 })
    claimAll()
    expect([of('a'), free()]).toEqual([128, 32])
    expect(of('b')).toBe(96)
  })

  it('a tenant without competition has all slots', () => {
    const { claimAll, free } = stuck(256, { a: 300 })
    claimAll()
    expect(free()).toBe(0)
  })

  it('a tenant with nothing in flight finds a slot, however many tenants are slow', () => {
    const { groups, states, claimAll, of } = stuck(256, { a: 300, b: 300, c: 300, d: 1, e: 5 })
    const slow = states.filter(({ tenant }) => !['d', 'e'].includes(tenant)).map(({ id }) => id)
    claimAll(slow)
    expect([of('a') + of('b') + of('c'), of('d'), of('e')]).toEqual([225, 0, 0])
    groups.wake()
    claimAll()
    // One for each, because the slots that remain are for tenants with nothing in flight.
    expect([of('d'), of('e')]).toEqual([1, 1])
  })

  it('a tenant that has used up its share gets more as its deliveries end, in a claim of its own', () => {
    const { groups, claimAll, of, started } = stuck(256, { a: 300, b: 3 })
    claimAll()
    expect([of('a'), of('b')]).toEqual([128, 30])
    for (const id of ['a 0', 'a 1']) groups.ended(row(id))
    started.splice(0, 2)
    expect(claimAll()).toBeLessThanOrEqual(4)
    expect(of('a')).toBe(128)
  })
})

describe('notifications', () => {
  it('onRoom is called for an endpoint that may have more deliveries, and not for others', () => {
    const { groups, notifications } = groupsOf(endpoint('a', { concurrency: 1 }), endpoint('b'))
    const before = notifications()
    const offered = groups.open(100, 100)
    groups.claimed(offered, [row('a'), row('b')])
    groups.ended(row('b'))
    expect(notifications()).toBe(before)
    groups.ended(row('a'))
    expect(notifications()).toBe(before + 1)
  })

  it('onRoom is called for a new endpoint, and not for an update without changes', () => {
    const { groups, notifications } = groupsOf(endpoint('a'))
    const before = notifications()
    groups.update([endpoint('a')], ONLY_DISPATCHER)
    expect(notifications()).toBe(before)
    groups.update([endpoint('a'), endpoint('b')], ONLY_DISPATCHER)
    expect(notifications()).toBe(before + 1)
  })
})

describe('the part of one dispatcher', () => {
  it('the parts of all dispatchers add up to the limit, for every endpoint', () => {
    fc.assert(
      fc.property(fc.nat(500), fc.integer({ min: 1, max: 40 }), fc.uuid(), (limit, count, endpointId) => {
        const parts = Array.from({ length: count }, (_, index) =>
          partOfLimit(limit, endpointId, { index, count }),
        )
        expect(parts.reduce((sum, one) => sum + one, 0)).toBe(limit)
        expect(Math.max(...parts) - Math.min(...parts)).toBeLessThanOrEqual(1)
      }),
    )
  })

  it('remainders go to different dispatchers for different endpoints', () => {
    const remainders = Array.from({ length: 100 }, (_, n) =>
      [0, 1, 2].findIndex((index) => partOfLimit(1, `endpoint ${n}`, { index, count: 3 }) === 1),
    )
    expect(new Set(remainders)).toEqual(new Set([0, 1, 2]))
  })

  it('a dispatcher that is not in the registry yet counts itself', () => {
    expect(positionAmong('b', ['a', 'c'])).toEqual({ index: 1, count: 3 })
    expect(positionAmong('b', ['a', 'b', 'c'])).toEqual({ index: 1, count: 3 })
    expect(positionAmong('b', [])).toEqual({ index: 0, count: 1 })
  })
})
