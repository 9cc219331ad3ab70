import { EventEmitter, on, once } from 'node:events'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { startProxy, type Proxy } from '../../test/support/proxy.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { openDatabase, type Database } from './database.ts'
import { Listener, type ListenerOptions } from './listener.ts'

useQuietProcess()
const database = useDatabase()
let db: Database
let proxy: Proxy
const listeners: Listener[] = []

beforeEach(async () => {
  db = openDatabase({ url: database.url })
  proxy = await startProxy(database.url)
})

afterEach(async () => {
  await Promise.all(listeners.splice(0).map(async (listener) => listener.stop()))
  await db.close()
  await proxy.close()
})

interface Observed {
  readonly listener: Listener
  /** The next thing that happens: `listening`, `disconnected`, or `channel:payload`. */
  next(): Promise<string>
  /** Waits until this happens, whatever happens before it. */
  until(what: string): Promise<void>
  readonly all: string[]
  readonly pauses: number[]
}

/** For a network that drops every packet: a slow machine may exceed these too, so tests wait `until` an event. */
const SHORT_TIMEOUTS = { probeTimeoutMs: 300, connectTimeoutMs: 500 }

function listen(options: Partial<ListenerOptions> = {}): Observed {
  const emitter = new EventEmitter()
  const happenings = on(emitter, 'happening')
  const all: string[] = []
  const pauses: number[] = []
  const happen = (what: string): void => {
    all.push(what)
    emitter.emit('happening', what)
  }
  const listener = new Listener({
    url: proxy.url,
    channels: ['work'],
    probeIntervalMs: 50,
    probeTimeoutMs: 60_000,
    connectTimeoutMs: 60_000,
    onNotification: (channel, payload) => happen(`${channel}:${payload}`),
    onEvent: (event) => {
      if (event.type === 'disconnected') pauses.push(event.retryInMs)
      happen(event.type)
    },
    ...options,
  })
  listeners.push(listener)
  listener.start()
  const next = async (): Promise<string> => String((await happenings.next()).value[0])
  return {
    listener,
    all,
    pauses,
    next,
    async until(what) {
      while ((await next()) !== what);
    },
  }
}

async function notify(channel: string, payload: string): Promise<void> {
  await db.query({ text: 'select pg_notify($1, $2)', values: [channel, payload] })
}

it('equal notifications that arrive together are one, and the last of them is heard', async () => {
  const observed = listen()
  await observed.until('listening')
  const commits = 500
  await db.query({
    text: `do $$ begin for i in 1..${commits} loop perform pg_notify('work', 'same'); commit; end loop; end $$`,
  })
  await notify('work', 'last')
  await observed.until('work:last')
  expect(observed.all.filter((what) => what === 'work:same').length).toBeLessThan(commits)
  expect(observed.all.indexOf('work:same')).toBeLessThan(observed.all.indexOf('work:last'))
})

it('a listener hears every channel, including one with an unusual name', async () => {
  const odd = 'Work "of" today; drop table x'
  const heard = listen({ channels: ['work', odd] })
  expect(await heard.next()).toBe('listening')
  await notify('work', 'a')
  await notify('elsewhere', 'b')
  await notify(odd, '')
  expect([await heard.next(), await heard.next()]).toEqual(['work:a', `${odd}:`])
})

it('a listener reconnects after its backend was terminated, and hears the next notification', async () => {
  const heard = listen()
  expect(await heard.next()).toBe('listening')
  await db.query({
    text: `select pg_terminate_backend(pid, 5000) from pg_stat_activity
            where datname = current_database() and application_name = 'leasehold listener'`,
  })
  expect([await heard.next(), await heard.next()]).toEqual(['disconnected', 'listening'])
  await notify('work', 'after')
  expect(await heard.next()).toBe('work:after')
})

it('the probe detects a network that drops every packet, and the listener reconnects', async () => {
  const heard = listen(SHORT_TIMEOUTS)
  await heard.until('listening')
  proxy.swallow(true)
  await notify('work', 'lost')
  await heard.until('disconnected')
  proxy.swallow(false)
  await heard.until('listening')
  await notify('work', 'heard')
  await heard.until('work:heard')
  expect(heard.all).not.toContain('work:lost')
})

it('without a probe a network that drops every packet is not detected', async () => {
  const heard = listen({ probeIntervalMs: 600_000 })
  expect(await heard.next()).toBe('listening')
  proxy.swallow(true)
  const other = listen(SHORT_TIMEOUTS)
  await other.until('disconnected')
  expect(heard.all).toEqual(['listening'])
})

it('a custom probe runs on the listening connection, before `listening` and at every interval', async () => {
  const probed: { asked: number; answered: number }[] = []
  const emitter = new EventEmitter()
  const heard = listen({
    url: database.url,
    probeIntervalMs: 1,
    probe: (backendPid) => ({
      text: `select $1::int as asked, pid as answered from pg_stat_activity
             where pid = pg_backend_pid() and application_name = 'leasehold listener'`,
      values: [backendPid],
    }),
    onProbe: (rows) => {
      // What the statement above selects.
      probed.push(...(rows as typeof probed))
      emitter.emit('probed')
    },
  })
  expect(await heard.next()).toBe('listening')
  expect(probed).toHaveLength(1)
  while (probed.length < 3) await once(emitter, 'probed')
  const [first] = probed
  expect(first?.answered).toBeGreaterThan(0)
  for (const { asked, answered } of probed)
    expect([asked, answered]).toEqual([first?.answered, first?.answered])
  await heard.listener.stop()
  const { length } = probed
  await notify('work', 'late')
  expect(probed).toHaveLength(length)
})

it('a probe that fails disconnects the listener, which then tries again', async () => {
  const heard = listen({ probe: () => ({ text: 'select from presence' }) })
  expect(await heard.next()).toBe('disconnected')
  await db.query({ text: 'create table presence ()' })
  await heard.until('listening')
  await db.query({ text: 'drop table presence' })
  await heard.until('disconnected')
})

it('a refused connection is retried with growing pauses', async () => {
  await proxy.refuse()
  const heard = listen({ random: () => 0 })
  for (let failures = 0; failures < 4; failures += 1) expect(await heard.next()).toBe('disconnected')
  expect(heard.pauses).toEqual([50, 100, 200, 400])
  await proxy.accept()
  await heard.until('listening')
})

it('a listener stops while it connects, pauses, listens or waits for an answer, and can be started again', async () => {
  proxy.swallow(true)
  const connecting = listen({ connectTimeoutMs: 600_000 })
  await connecting.listener.stop()

  proxy.swallow(false)
  const waiting = listen({ probeTimeoutMs: 600_000, probeIntervalMs: 1 })
  expect(await waiting.next()).toBe('listening')
  proxy.swallow(true)
  await proxy.swallowed()
  await waiting.listener.stop()

  proxy.swallow(false)
  await proxy.refuse()
  const pausing = listen({ random: () => 1 })
  expect(await pausing.next()).toBe('disconnected')
  await pausing.listener.stop()

  await proxy.accept()
  const resting = listen({ probeIntervalMs: 600_000 })
  expect(await resting.next()).toBe('listening')
  await resting.listener.stop()
  resting.listener.start()
  expect(await resting.next()).toBe('listening')
  await resting.listener.stop()
  await resting.listener.stop()
})
