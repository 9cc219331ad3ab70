/** A dispatcher that dies whenever it has requests in flight, and is restarted each time. */
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { startDispatcherProcess } from '../../../test/support/dispatcher-process.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import { deliveries, deliveryStatuses, sendAll } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint } from '../../../test/support/webhook-endpoints.ts'
import type { WorkerProcess } from '../../../test/support/worker-process.ts'
import { openDatabase } from '../../postgres/database.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const processes = useProcesses()
const receiver = useReceivers()
beforeEach(async () => db.query({ text: 'truncate leasehold.webhook_outbox, leasehold.webhook_endpoints' }))
afterAll(async () => db.close())

/** How long a bad release is restarted; ten minutes: LEASEHOLD_CRASH_LOOP_SECONDS=600. */
const CRASH_LOOP_MS = Number(process.env['LEASEHOLD_CRASH_LOOP_SECONDS'] ?? '10') * 1_000

const CRASHES = 12
const EVENTS = 40
/** Shorter waits than the default ones, so that a crash loop of seconds meets several of them. */
const SCHEDULE = [1, 2, 4, 8, 60, 300, 1_800, 7_200].map((seconds) => seconds * 1_000)
const BOUND = { timeout: 60_000, interval: 50 }

it('D10: a dispatcher that is killed 12 times costs its deliveries two attempts and fails none; they then arrive one suspect at a time', async () => {
  const target = await receiver(async () => new Promise<never>(() => undefined))
  await addEndpoint(db, target.url, { concurrency: EVENTS })
  await sendAll(db, ...Array.from({ length: EVENTS }, (_, n) => (n % 2 === 0 ? null : `key ${n}`)))
  const config = { databaseUrl: url, tell: ['reaped'] }
  const crash = async (when: (dying: WorkerProcess) => Promise<void>): Promise<void> => {
    const dying = startDispatcherProcess(processes, config)
    await dying.heard('up')
    await when(dying)
    await dying.kill('SIGKILL')
  }
  // The first expiry brings everything back at once, and the second one does not.
  await crash(async () => target.reached(EVENTS))
  await crash(async () => target.reached(2 * EVENTS))
  await crash(async (dying) => {
    await expect.poll(() => dying.all('reaped').length, BOUND).toBe(EVENTS)
  })
  for (let n = 4; n <= CRASHES; n += 1) await crash(async () => undefined)
  expect(target.received).toHaveLength(2 * EVENTS)
  for (const { delivery_status: status, attempts, expiries, next_attempt_at: next } of await deliveries(db)) {
    expect({ status, attempts, expiries }).toEqual({ status: 'pending', attempts: 2, expiries: 2 })
    // The schedule waits five minutes after the second attempt.
    expect(next.getTime() - Date.now()).toBeGreaterThan(120_000)
  }

  const open = { now: 0, most: 0 }
  target.answer(async () => {
    open.now += 1
    open.most = Math.max(open.most, open.now)
    await new Promise((done) => setImmediate(done))
    open.now -= 1
    return 204
  })
  await db.query({ text: 'update leasehold.webhook_outbox set next_attempt_at = now()' })
  const good = startDispatcherProcess(processes, config)
  await expect.poll(async () => deliveryStatuses(db), BOUND).toEqual({ delivered: EVENTS })
  expect(open.most).toBe(1)
  expect((await deliveries(db)).every(({ attempts }) => attempts === 2)).toBe(true)
  await good.kill('SIGTERM')
}, 240_000)

it('D10: a release that dies of every request it makes fails no delivery: all arrive once the good one starts', async () => {
  let dying: WorkerProcess | undefined
  // Dies at the beginning of each delivery, as a handler that crashes would.
  const target = await receiver(async () => {
    await dying?.kill('SIGKILL')
    return 204
  })
  await addEndpoint(db, target.url, { concurrency: EVENTS })
  await sendAll(db, ...Array.from({ length: EVENTS }, (_, n) => (n % 2 === 0 ? null : `key ${n}`)))
  const config = { databaseUrl: url, dispatcher: { schedule: SCHEDULE } }
  const until = performance.now() + CRASH_LOOP_MS
  let crashes = 0
  while (performance.now() < until) {
    dying = startDispatcherProcess(processes, config)
    const late = new AbortController()
    const rest = delay(Math.max(0, until - performance.now()), 'late', { signal: late.signal })
    const end = await Promise.race([dying.exited, rest.catch(() => 'late')])
    late.abort()
    if (end === 'late') await dying.kill('SIGKILL')
    else crashes += 1
  }
  dying = undefined
  const after = await deliveries(db)
  expect(after.map(({ delivery_status: status }) => status)).not.toContain('failed')
  expect(crashes).toBeGreaterThan(1)
  await db.query({ text: 'update leasehold.webhook_outbox set next_attempt_at = now()' })
  const good = startDispatcherProcess(processes, config)
  await expect.poll(async () => deliveryStatuses(db), BOUND).toEqual({ delivered: EVENTS })
  await good.kill('SIGTERM')
  process.stdout.write(
    `${crashes} crashes in ${CRASH_LOOP_MS} ms: at most ${Math.max(...after.map(({ attempts }) => attempts))} attempts of a delivery used up\n`,
  )
}, 1_800_000)
