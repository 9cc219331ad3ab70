import { expect, it } from 'vitest'
import { SuspectSlot } from './suspect-slot.ts'

it('D10: one claim at a time may take a suspect, and none while one is in flight', () => {
  const slot = new SuspectSlot()
  expect(slot.take()).toBe(true)
  expect(slot.take()).toBe(false)
  slot.free()
  expect(slot.take()).toBe(true)
})

it('tells each worker that waits for it once, when it is free', () => {
  const slot = new SuspectSlot()
  const told: string[] = []
  const [first, second] = [(): void => void told.push('first'), (): void => void told.push('second')]
  slot.take()
  for (const listener of [first, first, second]) slot.whenFree(listener)
  expect(told).toEqual([])
  slot.free()
  expect(told).toEqual(['first', 'second'])
  slot.free()
  expect(told).toEqual(['first', 'second'])
  slot.whenFree(first)
  expect(told).toEqual(['first', 'second', 'first'])
})
