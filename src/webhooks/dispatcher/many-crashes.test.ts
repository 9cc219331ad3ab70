/** A dispatcher that dies whenever it has requests in flight, and is restarted each time. */
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { startDispatcherProcess, type WorkerProcess } from '../../../test/support/worker-process.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import { deliveries, deliveryStatuses, sendAll } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const processes = useProcesses()
const receiver = useReceivers()
beforeEach(async () => db.query({ text: 'truncate leasehold.webhook_outbox, leasehold.webhook_endpoints' }))
afterAll(async () => db.close())

/** How often the process that crashes with every request is restarted at least. */
const MIN_CRASHES = 3
/** How long it is restarted at least. For ten minutes: LEASEHOLD_CRASH_LOOP_SECONDS=600. */
const CRASH_LOOP_MS = Number(process.env['LEASEHOLD_CRASH_LOOP_SECONDS'] ?? '0') * 1_000

const CRASHES = 12
const EVENTS = 40
/** Shorter delays than the default ones, so that a crash loop of seconds reaches several of them. */
const SCHEDULE = [1, 2, 4, 8, 60, 300, 1_800, 7_200].map((seconds) => seconds * 1_000)
const BOUND = { timeout: 120_000, interval: 50 }

it('D10: 12 crashes of a dispatcher cost its deliveries two attempts and fail none; they are then attempted one at a time at first, and 16 at a time at most', async () => {
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
  // After the first expiry all deliveries are due at once; after the second one they are not.
  await crash(async () => target.reached(EVENTS))
  await crash(async () => target.reached(2 * EVENTS))
  await crash(async (dying) => {
    await expect.poll(() => dying.all('reaped').length, BOUND).toBe(EVENTS)
  })
  for (let n = 4; n <= CRASHES; n += 1) await crash(async () => undefined)
  expect(target.received).toHaveLength(2 * EVENTS)
  const { rows } = await db.query({
    text: `select distinct delivery_status as status, attempts, expiries,
        round(extract(epoch from next_attempt_at - (history->-1->>'recorded_at')::timestamptz))::int as delay_seconds
      from leasehold.webhook_outbox`,
  })
  // The schedule has a delay of five minutes after the second attempt.
  expect(rows).toEqual([{ status: 'pending', attempts: 2, expiries: 2, delay_seconds: 300 }])

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
  expect(open.most).toBeLessThanOrEqual(16)
  expect((await deliveries(db)).every(({ attempts }) => attempts === 2)).toBe(true)
  await good.kill('SIGTERM')
})

it('D10: a dispatcher that crashes with every request fails no delivery, and a working one delivers them all', async () => {
  let dying: WorkerProcess | undefined
  // The process dies at the start of each delivery, as with a handler that crashes.
  const target = await receiver(async () => {
    await dying?.kill('SIGKILL')
    return 204
  })
  await addEndpoint(db, target.url, { concurrency: EVENTS })
  await sendAll(db, ...Array.from({ length: EVENTS }, (_, n) => (n % 2 === 0 ? null : `key ${n}`)))
  const config = { databaseUrl: url, dispatcher: { schedule: SCHEDULE } }
  const until = performance.now() + CRASH_LOOP_MS
  let crashes = 0
  while (crashes < MIN_CRASHES || performance.now() < until) {
    dying = startDispatcherProcess(processes, config)
    const stop = new AbortController()
    // In a long loop, the next delivery may not be due before its end.
    const timeout =
      crashes < MIN_CRASHES
        ? new Promise<never>(() => undefined)
        : delay(Math.max(0, until - performance.now()), undefined, { signal: stop.signal }).catch(
            () => undefined,
          )
    const exit = await Promise.race([dying.exited, timeout])
    stop.abort()
    if (exit === undefined) await dying.kill('SIGKILL')
    else crashes += 1
  }
  dying = undefined
  const after = await deliveries(db)
  expect(after.map(({ delivery_status: status }) => status)).not.toContain('failed')
  await db.query({ text: 'update leasehold.webhook_outbox set next_attempt_at = now()' })
  const good = startDispatcherProcess(processes, config)
  await expect.poll(async () => deliveryStatuses(db), BOUND).toEqual({ delivered: EVENTS })
  await good.kill('SIGTERM')
  process.stdout.write(
    `${crashes} crashes: at most ${Math.max(...after.map(({ attempts }) => attempts))} attempts of a delivery used up\n`,
  )
}, 1_800_000)
