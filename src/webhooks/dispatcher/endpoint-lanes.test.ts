import { describe, expect, it } from 'vitest'
import type { DeliveryRow } from '../table.ts'
import { usableBreaker } from './breaker.ts'
import type { Surveyed } from './directory.ts'
import { EndpointLanes } from './endpoint-lanes.ts'
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
  return { id: '1', event_id: '', endpoint_id: endpoint, event_type: '', body: '', headers: {}, attempts: 0 }
}

function lanesOf(...endpoints: readonly Surveyed[]) {
  const time = { now: 1_000 }
  const lanes = new EndpointLanes({ monotonicNow: () => time.now }, breaker, () => undefined)
  let told = 0
  lanes.onRoom(() => {
    told += 1
  })
  lanes.update(endpoints, ALONE)
  const rooms = (free = 1_000): Record<string, number> =>
    Object.fromEntries(lanes.open(free).lanes.map(({ key, room }) => [key, room]))
  return { lanes, time, rooms, told: () => told }
}

describe('room for an endpoint', () => {
  it('is what it takes at once, less what is on its way or was offered to a claim', () => {
    const { lanes, rooms } = lanesOf(surveyed('a', { concurrency: 3 }), surveyed('b', { concurrency: 1 }))
    expect(rooms()).toEqual({ a: 3, b: 1 })
    // Another claim, while that one is on its way, is offered nothing.
    expect(rooms()).toEqual({})
    lanes.looked(
      [
        { key: 'a', room: 3 },
        { key: 'b', room: 1 },
      ],
      [row('a'), row('a'), row('a')],
    )
    expect(rooms()).toEqual({ b: 1 })
    lanes.looked([{ key: 'b', room: 1 }], [])
    lanes.ended(row('a'))
    lanes.ended(row('a'))
    expect(rooms()).toEqual({ a: 2, b: 1 })
  })

  it('is given back by a claim that failed', () => {
    const { lanes, rooms } = lanesOf(surveyed('a', { concurrency: 2 }))
    const { lanes: offered } = lanes.open(10)
    lanes.looked(offered, [], true)
    expect(rooms()).toEqual({ a: 2 })
  })

  it('is little for one of which nothing seems to wait, until a look brings all that was offered', () => {
    const { lanes, rooms, told } = lanesOf(surveyed('a'))
    lanes.looked(lanes.open(100).lanes, [])
    expect(rooms()).toEqual({ a: 2 })
    const before = told()
    lanes.looked([{ key: 'a', room: 2 }], [row('a'), row('a')])
    expect(told()).toBe(before + 1)
    expect(rooms()).toEqual({ a: 8 })
  })

  it('is the same for all that are busy, and a quarter of the slots is kept for those that are not', () => {
    const slow = Array.from({ length: 100 }, (_, n) => surveyed(`slow ${n}`))
    const { lanes, rooms } = lanesOf(...slow)
    const first = lanes.open(256).lanes
    expect(new Set(first.map(({ room }) => room))).toEqual(new Set([2]))
    lanes.looked(
      first,
      first.flatMap(({ key, room }) => Array.from({ length: room }, () => row(key))),
    )
    // 200 are on their way. Those that have one get no more, however much waits for them.
    expect(rooms(56)).toEqual({})
    lanes.update([...slow, surveyed('quick')], ALONE)
    expect(rooms(56)).toEqual({ quick: 1 })
  })

  it('is as it was for one that was disabled and enabled while something was on its way', () => {
    const { lanes, rooms } = lanesOf(surveyed('a', { concurrency: 3 }))
    const { lanes: offered } = lanes.open(100)
    lanes.update([], ALONE)
    lanes.looked(offered, [row('a'), row('a')])
    lanes.update([surveyed('a', { concurrency: 3 })], ALONE)
    expect(rooms()).toEqual({ a: 1 })
  })

  it('follows its rate, without a burst', () => {
    const { lanes, time, rooms } = lanesOf(surveyed('a', { concurrency: 100, rate: 50 }))
    expect(rooms()).toEqual({ a: 1 })
    lanes.looked([{ key: 'a', room: 1 }], [row('a')])
    expect(lanes.open(100)).toEqual({ lanes: [], againInMs: 20 })
    time.now += 20
    expect(rooms()).toEqual({ a: 1 })
    time.now += 60_000
    expect(rooms()).toEqual({ a: 5 })
  })

  it('is none while it rests, and the next look is due when it has rested', () => {
    const { lanes, time, rooms } = lanesOf(surveyed('a'))
    lanes.rest('a', 500)
    expect(lanes.open(100)).toEqual({ lanes: [], againInMs: 500 })
    time.now += 500
    expect(rooms()).toEqual({ a: 10 })
  })

  it('is none while its circuit is open, and then one for a probe', () => {
    const { lanes, time, rooms } = lanesOf(surveyed('a'))
    lanes.failed('a')
    expect(lanes.failed('a')).toMatchObject({ circuit: 'opened' })
    expect(lanes.open(100)).toEqual({ lanes: [], againInMs: 100 })
    time.now += 100
    expect(rooms()).toEqual({ a: 1 })
    lanes.looked([{ key: 'a', room: 1 }], [row('a')])
    expect(rooms()).toEqual({})
    lanes.succeeded('a')
    expect(rooms()).toEqual({ a: 9 })
  })

  it('is none for one whose secret cannot be read, or that is no longer there', () => {
    const { lanes, rooms } = lanesOf(surveyed('a', { unusable: true }), surveyed('b'))
    expect(rooms()).toEqual({ b: 10 })
    lanes.update([], ALONE)
    expect(rooms()).toEqual({})
  })

  it('is offered to another one first each time', () => {
    const { lanes } = lanesOf(surveyed('a'), surveyed('b'), surveyed('c'))
    const firsts = [1, 2, 3].map(() => {
      const { lanes: offered } = lanes.open(100)
      lanes.looked(offered, [])
      return offered[0]?.key
    })
    expect(new Set(firsts).size).toBe(3)
  })
})

describe('whoever claims', () => {
  it('is told of room in a lane that may have more, and not of others', () => {
    const { lanes, told } = lanesOf(surveyed('a', { concurrency: 1 }), surveyed('b'))
    const before = told()
    const { lanes: offered } = lanes.open(100)
    lanes.looked(offered, [row('a'), row('b')])
    lanes.ended(row('b'))
    expect(told()).toBe(before)
    lanes.ended(row('a'))
    expect(told()).toBe(before + 1)
  })

  it('is told of a new endpoint, and not of a survey that found nothing new', () => {
    const { lanes, told } = lanesOf(surveyed('a'))
    const before = told()
    lanes.update([surveyed('a')], ALONE)
    expect(told()).toBe(before)
    lanes.update([surveyed('a'), surveyed('b')], ALONE)
    expect(told()).toBe(before + 1)
  })
})
