/** Dispatcher processes that are killed while their requests are in flight. */
import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { startDispatcherProcess } from '../../../test/support/worker-process.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { hold, type Received, useReceivers } from '../../../test/support/receiver.ts'
import { deliveries, deliveryStatuses, sendAll } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { A_TOKEN } from '../../../test/support/tokens.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const processes = useProcesses()
const receiver = useReceivers()
const BOUND = { timeout: 120_000, interval: 50 }
const EVENTS = 8
const config = { databaseUrl: url, tell: ['reaped', 'workerDied', 'settled', 'fencedOff', 'lost'] }

beforeEach(async () =>
  db.query({
    // A dead dispatcher has its part of the limits until its death is noticed.
    text: `truncate leasehold.webhook_outbox, leasehold.webhook_endpoints;
      delete from leasehold.workers`,
  }),
)
afterAll(async () => db.close())

/** The bodies that a receiver has after it removed duplicates by their webhook-id. */
function deduplicated(received: readonly Received[]): Map<string, string> {
  return new Map(received.map(({ headers, body }) => [String(headers['webhook-id']), body]))
}

async function attempts(): Promise<unknown[]> {
  const { rows } = await db.query({
    text: `select attempt, status, error_code, started_at is null as unknown, count(*)::int as count
      from leasehold.webhook_attempts group by 1, 2, 3, 4 order by 1`,
  })
  return rows
}

async function allDelivered(): Promise<void> {
  await expect.poll(async () => deliveryStatuses(db), BOUND).toEqual({ delivered: EVENTS })
}

it('WH-FR-004-AC1, WH-FR-004-AC3: deliveries in flight in a killed dispatcher are delivered by another, long before their leases expire', async () => {
  const target = await receiver()
  hold(target)
  await addEndpoint(db, target.url)
  await sendAll(db, ...Array.from({ length: EVENTS }, () => null))
  const dying = startDispatcherProcess(processes, config)
  const { id: dead } = await dying.heard('up')
  await target.reached(EVENTS)
  const other = startDispatcherProcess(processes, config)
  await other.heard('up')
  expect(target.received).toHaveLength(EVENTS)
  expect(await dying.kill('SIGKILL')).toMatchObject({ signal: 'SIGKILL' })
  target.answer(() => 204)
  await allDelivered()

  expect(await other.heard('workerDied')).toMatchObject({ died: dead })
  expect(other.all('reaped').map((line) => [line['owner'], line['evicted']])).toEqual(
    Array.from({ length: EVENTS }, () => [dead, true]),
  )
  // Each event arrived twice: from the dispatcher that died and from the other.
  expect(target.received).toHaveLength(2 * EVENTS)
  expect(deduplicated(target.received).size).toBe(EVENTS)
  expect(new Set(deduplicated(target.received).values()).size).toBe(EVENTS)
  expect(await attempts()).toEqual([
    { attempt: 1, status: null, error_code: 'leaseExpired', unknown: true, count: EVENTS },
    { attempt: 2, status: 204, error_code: null, unknown: false, count: EVENTS },
  ])
  for (const { attempts: failed, lease_token: token, lease_owner: owner } of await deliveries(db)) {
    expect({ failed, token, owner }).toEqual({ failed: 1, token: A_TOKEN, owner: null })
  }
  await other.kill('SIGTERM')
})

it('WH-FR-004-AC2: without any reaper, deliveries with expired leases are claimed by another dispatcher', async () => {
  const target = await receiver()
  hold(target)
  await addEndpoint(db, target.url)
  await sendAll(db, ...Array.from({ length: EVENTS }, () => null))
  // The lease is long enough for a loaded machine to renew it.
  const alone = {
    ...config,
    settings: { leaseMs: 8_000, heartbeatMs: 500, pollMs: 50 },
    runtime: { reaper: false, eviction: false },
  }
  const dying = startDispatcherProcess(processes, alone)
  await target.reached(EVENTS)
  const other = startDispatcherProcess(processes, alone)
  await other.heard('up')
  await dying.kill('SIGKILL')
  target.answer(() => 204)
  await allDelivered()
  // D5, D13: each expiry is reported, by whoever finds it.
  expect(other.all('reaped')).toHaveLength(EVENTS)
  expect(deduplicated(target.received).size).toBe(EVENTS)
  expect(await attempts()).toMatchObject([
    { attempt: 1, error_code: 'leaseExpired', count: EVENTS },
    { attempt: 2, status: 204, count: EVENTS },
  ])
  await other.kill('SIGTERM')
})

it('WH-FR-002-AC3, WH-FR-004-AC3: a dispatcher that was stopped until its leases expired changes nothing when it continues', async () => {
  const target = await receiver()
  const answers = hold(target)
  await addEndpoint(db, target.url)
  await sendAll(db, ...Array.from({ length: EVENTS }, () => null))
  const settings = { leaseMs: 6_000, heartbeatMs: 500, reaperIntervalMs: 200, pollMs: 50 }
  const stopped = startDispatcherProcess(processes, { ...config, settings, runtime: { reaper: false } })
  await target.reached(EVENTS)
  process.kill(stopped.pid, 'SIGSTOP')
  target.answer(() => 204)
  // The responses are there when the process continues, but too late.
  answers.letGo()
  const other = startDispatcherProcess(processes, { ...config, settings })
  await allDelivered()
  const before = await deliveries(db)
  process.kill(stopped.pid, 'SIGCONT')
  const told = (): number => stopped.all('lost').length + stopped.all('fencedOff').length
  await expect.poll(told, BOUND).toBeGreaterThanOrEqual(EVENTS)
  expect(await deliveries(db)).toEqual(before)
  expect(stopped.all('settled')).toEqual([])
  expect(deduplicated(target.received).size).toBe(EVENTS)
  await Promise.all([other.kill('SIGTERM'), stopped.kill('SIGTERM')])
})
