import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { PauseGate } from './pausing.ts'

beforeEach(() => {
  vi.useFakeTimers()
})
afterEach(() => {
  vi.useRealTimers()
})

function gate() {
  const changes: string[] = []
  const opened = new PauseGate(({ reason, paused }) => changes.push(`${paused ? 'shut' : 'open'}: ${reason}`))
  return { gate: opened, changes }
}

it('the gate is shut as long as there is any reason, and reports each reason once', () => {
  const { gate: tested, changes } = gate()
  expect(tested.open).toBe(true)
  tested.shut('operator')
  tested.shut('operator')
  tested.shut('unhealthy')
  tested.openFor('operator')
  expect(tested.open).toBe(false)
  tested.openFor('unhealthy')
  tested.openFor('unhealthy')
  expect(tested.open).toBe(true)
  expect(changes).toEqual(['shut: operator', 'shut: unhealthy', 'open: operator', 'open: unhealthy'])
})

it('RULE-020-042: a gate that is shut for a time opens exactly when that is over', () => {
  const { gate: tested } = gate()
  tested.shut('saturated', 500)
  vi.advanceTimersByTime(499)
  expect(tested.open).toBe(false)
  vi.advanceTimersByTime(1)
  expect(tested.open).toBe(true)
})

it.each([
  [1_000, 200],
  [200, 1_000],
])('RULE-020-042: for a gate that is shut twice, for %d and %d ms, the later end counts', (first, second) => {
  const { gate: tested } = gate()
  tested.shut('saturated', first)
  tested.shut('saturated', second)
  vi.advanceTimersByTime(999)
  expect(tested.open).toBe(false)
  vi.advanceTimersByTime(1)
  expect(tested.open).toBe(true)
})

it('a gate that is shut without an end stays shut, even if it is shut for a time afterwards', () => {
  const { gate: tested } = gate()
  tested.shut('operator')
  tested.shut('operator', 10)
  vi.advanceTimersByTime(1_000)
  expect(tested.open).toBe(false)
})

it('a gate that is closed has no timer', () => {
  const { gate: tested } = gate()
  tested.shut('saturated', 500)
  tested.close()
  expect(vi.getTimerCount()).toBe(0)
})
