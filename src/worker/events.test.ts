import { once } from 'node:events'
import { expect, it } from 'vitest'
import { emitOneOfEach } from '../../test/support/specimen-events.ts'
import { type AnyEvent, Events } from './events.ts'

it('every type reaches those who asked for it and those who asked for all, with its name', () => {
  const events = new Events()
  const [all, started]: [AnyEvent[], AnyEvent[]] = [[], []]
  events.onAny((event) => all.push(event))
  events.on('started', (event) => started.push(event))
  emitOneOfEach(events)
  expect(new Set(all.map(({ type }) => type)).size).toBe(all.length)
  expect(started).toEqual(all.filter(({ type }) => type === 'started'))
  expect(started).toHaveLength(1)
})

it('is wanted only while somebody listens', () => {
  const events = new Events()
  expect(events.wanted('started')).toBe(false)
  const off = events.on('started', () => undefined)
  expect([events.wanted('started'), events.wanted('lost')]).toEqual([true, false])
  off()
  expect(events.wanted('started')).toBe(false)
  const offAll = events.onAny(() => undefined)
  expect(events.wanted('lost')).toBe(true)
  offAll()
  expect(events.wanted('lost')).toBe(false)
})

it('next resolves with the first that fits, and then listens no more', async () => {
  const events = new Events()
  const next = events.next('databaseBack', ({ worker }) => worker === 'b')
  for (const worker of ['a', 'b', 'c']) events.emit('databaseBack', { worker })
  expect(await next).toEqual({ type: 'databaseBack', worker: 'b' })
  expect(events.wanted('databaseBack')).toBe(false)
})

it('a listener that throws hurts neither the one that emits nor the others, and is not kept secret', async () => {
  const events = new Events()
  const heard: string[] = []
  const warned = once(process, 'warning')
  events.on('databaseBack', () => {
    throw new Error('a listener of the test that throws')
  })
  events.on('databaseBack', ({ worker }) => heard.push(worker))
  events.emit('databaseBack', { worker: 'a' })
  expect(heard).toEqual(['a'])
  expect(await warned).toEqual([new Error('a listener of the test that throws')])
})
