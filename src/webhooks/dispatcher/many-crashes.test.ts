/** A dispatcher that dies whenever it has requests in flight, and is restarted each time. */
import { afterAll, expect, it } from 'vitest'
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
afterAll(async () => db.close())

const CRASHES = 12
const EVENTS = 40
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
