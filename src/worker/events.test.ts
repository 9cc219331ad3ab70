import { once } from 'node:events'
import { expect, it } from 'vitest'
import { emitOneOfEach } from '../../test/support/sample-events.ts'
import { type AnyEvent, Events } from './events.ts'

it('an event reaches the listeners of its type and those of all types, with its type', () => {
  const events = new Events()
  const [all, started]: [AnyEvent[], AnyEvent[]] = [[], []]
  events.onAny((event) => all.push(event))
  events.on('started', (event) => started.push(event))
  emitOneOfEach(events)
  expect(new Set(all.map(({ type }) => type)).size).toBe(all.length)
  expect(started).toEqual(all.filter(({ type }) => type === 'started'))
  expect(started).toHaveLength(1)
})

it('an event is wanted only while somebody listens', () => {
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

it('next resolves with the first event that fits, and then no longer listens', async () => {
  const events = new Events()
  const next = events.next('databaseBack', ({ worker }) => worker === 'b')
  for (const worker of ['a', 'b', 'c']) events.emit('databaseBack', { worker })
  expect(await next).toEqual({ type: 'databaseBack', worker: 'b' })
  expect(events.wanted('databaseBack')).toBe(false)
})

it('a listener that throws affects neither the emitter nor other listeners, and Node warns of it', async () => {
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

it('an event counts as unheard while only parts of Leasehold itself listen', () => {
  const events = new Events()
  const heard: string[] = []
  events.onInternal('workerReturned', () => heard.push('internal'))
  const offUnheard = events.onUnheard(({ type }) => heard.push(`unheard ${type}`))
  events.emit('workerReturned', { worker: 'a' })
  expect(heard).toEqual(['internal', 'unheard workerReturned'])
  const off = events.on('workerReturned', () => heard.push('listener'))
  events.emit('workerReturned', { worker: 'a' })
  expect(heard.slice(2)).toEqual(['internal', 'listener'])
  off()
  offUnheard()
  events.emit('workerReturned', { worker: 'a' })
  expect(heard.slice(4)).toEqual(['internal'])
  expect(events.wanted('workerReturned')).toBe(true)
})
