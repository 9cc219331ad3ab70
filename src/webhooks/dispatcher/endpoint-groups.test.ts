import { describe, expect, it } from 'vitest'
import type { DeliveryRow } from '../table.ts'
import { usableBreaker } from './breaker.ts'
import type { Surveyed } from './directory.ts'
import { EndpointGroups } from './endpoint-groups.ts'
import { ALONE } from './share.ts'

const breaker = usableBreaker({ failures: 2, firstMs: 100 })

function surveyed(
  id: string,
  fields: { concurrency?: number; rate?: number; unusable?: true } = {},
): Surveyed {
  const endpoint = {
    id,
    url: 'https://example.com',
    headers: {},
    ratePerSecond: fields.rate,
    concurrency: fields.concurrency ?? 10,
    timeoutMs: 1_000,
    signers: () => [],
  }
  const circuit = { version: '1', failing: false, open_for_ms: 0, failures: 0 }
  return { id, ...circuit, endpoint: fields.unusable === true ? undefined : endpoint }
}

function row(endpoint: string): DeliveryRow {
  return {
    id: '1',
    event_id: '',
    endpoint_id: endpoint,
    event_type: '',
    ordering_key: null,
    body: '',
    headers: {},
    attempts: 0,
  }
}

function groupsOf(...endpoints: readonly Surveyed[]) {
  const time = { now: 1_000 }
  const groups = new EndpointGroups({ monotonicNow: () => time.now }, breaker, () => undefined)
  let told = 0
  groups.onRoom(() => {
    told += 1
  })
  groups.update(endpoints, ALONE)
  const rooms = (free = 1_000): Record<string, number> =>
    Object.fromEntries(groups.open(free).groups.map(({ key, room }) => [key, room]))
  return { groups, time, rooms, told: () => told }
}

describe('room for an endpoint', () => {
  it('is what it takes at once, less what is in flight or was offered to a claim', () => {
    const { groups, rooms } = groupsOf(surveyed('a', { concurrency: 3 }), surveyed('b', { concurrency: 1 }))
    expect(rooms()).toEqual({ a: 3, b: 1 })
    // Another claim, while that one is in flight, is offered nothing.
    expect(rooms()).toEqual({})
    groups.claimed(
      [
        { key: 'a', room: 3 },
        { key: 'b', room: 1 },
      ],
      [row('a'), row('a'), row('a')],
    )
    expect(rooms()).toEqual({ b: 1 })
    groups.claimed([{ key: 'b', room: 1 }], [])
    groups.ended(row('a'))
    groups.ended(row('a'))
    expect(rooms()).toEqual({ a: 2, b: 1 })
  })

  it('is given back by a claim that failed', () => {
    const { groups, rooms } = groupsOf(surveyed('a', { concurrency: 2 }))
    const { groups: offered } = groups.open(10)
    groups.claimed(offered, [], true)
    expect(rooms()).toEqual({ a: 2 })
  })

  it('is little for one of which nothing seems to wait, until a claim returns all that was offered', () => {
    const { groups, rooms, told } = groupsOf(surveyed('a'))
    groups.claimed(groups.open(100).groups, [])
    expect(rooms()).toEqual({ a: 2 })
    const before = told()
    groups.claimed([{ key: 'a', room: 2 }], [row('a'), row('a')])
    expect(told()).toBe(before + 1)
    expect(rooms()).toEqual({ a: 8 })
  })

  it('is the same for all that are busy, and a quarter of the slots is kept for those that are not', () => {
    const slow = Array.from({ length: 100 }, (_, n) => surveyed(`slow ${n}`))
    const { groups, rooms } = groupsOf(...slow)
    const first = groups.open(256).groups
    expect(new Set(first.map(({ room }) => room))).toEqual(new Set([2]))
    groups.claimed(
      first,
      first.flatMap(({ key, room }) => Array.from({ length: room }, () => row(key))),
    )
    // 200 are in flight. Those that have one get no more, however much waits for them.
    expect(rooms(56)).toEqual({})
    groups.update([...slow, surveyed('quick')], ALONE)
    expect(rooms(56)).toEqual({ quick: 1 })
  })

  it('is as it was for one that was disabled and enabled while something was in flight', () => {
    const { groups, rooms } = groupsOf(surveyed('a', { concurrency: 3 }))
    const { groups: offered } = groups.open(100)
    groups.update([], ALONE)
    groups.claimed(offered, [row('a'), row('a')])
    groups.update([surveyed('a', { concurrency: 3 })], ALONE)
    expect(rooms()).toEqual({ a: 1 })
  })

  it('follows its rate, without a burst', () => {
    const { groups, time, rooms } = groupsOf(surveyed('a', { concurrency: 100, rate: 50 }))
    expect(rooms()).toEqual({ a: 1 })
    groups.claimed([{ key: 'a', room: 1 }], [row('a')])
    expect(groups.open(100)).toEqual({ groups: [], againInMs: 20 })
    time.now += 20
    expect(rooms()).toEqual({ a: 1 })
    time.now += 60_000
    expect(rooms()).toEqual({ a: 5 })
  })

  it('comes back within an hour by itself, however low its rate, so that a timer can wait for it', () => {
    const { groups, rooms } = groupsOf(surveyed('a', { rate: 1e-300 }))
    expect(rooms()).toEqual({ a: 1 })
    groups.claimed([{ key: 'a', room: 1 }], [row('a')])
    expect(groups.open(100)).toEqual({ groups: [], againInMs: 3_600_000 })
  })

  it('is none while it rests, and the next claim is due when it has rested', () => {
    const { groups, time, rooms } = groupsOf(surveyed('a'))
    groups.rest('a', 500)
    expect(groups.open(100)).toEqual({ groups: [], againInMs: 500 })
    time.now += 500
    expect(rooms()).toEqual({ a: 10 })
  })

  it('is none while its circuit is open, and then one for a probe', () => {
    const { groups, time, rooms } = groupsOf(surveyed('a'))
    groups.failed('a')
    expect(groups.failed('a')).toMatchObject({ circuit: 'opened' })
    expect(groups.open(100)).toEqual({ groups: [], againInMs: 100 })
    time.now += 100
    expect(rooms()).toEqual({ a: 1 })
    groups.claimed([{ key: 'a', room: 1 }], [row('a')])
    expect(rooms()).toEqual({})
    groups.succeeded('a')
    expect(rooms()).toEqual({ a: 9 })
  })

  it('is none for one that cannot be used, or that is no longer there', () => {
    const { groups, rooms } = groupsOf(surveyed('a', { unusable: true }), surveyed('b'))
    expect(rooms()).toEqual({ b: 10 })
    groups.update([], ALONE)
    expect(rooms()).toEqual({})
  })

  it('is offered to another one first each time', () => {
    const { groups } = groupsOf(surveyed('a'), surveyed('b'), surveyed('c'))
    const firsts = [1, 2, 3].map(() => {
      const { groups: offered } = groups.open(100)
      groups.claimed(offered, [])
      return offered[0]?.key
    })
    expect(new Set(firsts).size).toBe(3)
  })
})

describe('whoever claims', () => {
  it('is told of room in a group that may have more, and not of others', () => {
    const { groups, told } = groupsOf(surveyed('a', { concurrency: 1 }), surveyed('b'))
    const before = told()
    const { groups: offered } = groups.open(100)
    groups.claimed(offered, [row('a'), row('b')])
    groups.ended(row('b'))
    expect(told()).toBe(before)
    groups.ended(row('a'))
    expect(told()).toBe(before + 1)
  })

  it('is told of a new endpoint, and not of a survey that found nothing new', () => {
    const { groups, told } = groupsOf(surveyed('a'))
    const before = told()
    groups.update([surveyed('a')], ALONE)
    expect(told()).toBe(before)
    groups.update([surveyed('a'), surveyed('b')], ALONE)
    expect(told()).toBe(before + 1)
  })
})
