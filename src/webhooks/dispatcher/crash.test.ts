/** Dispatcher processes that are killed while a receiver has their request in hand. */
import { afterAll, beforeEach, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { startDispatcherProcess } from '../../../test/support/dispatcher-process.ts'
import { useProcesses } from '../../../test/support/processes.ts'
import { hold, type Received, useReceivers } from '../../../test/support/receiver.ts'
import { deliveries, deliveryStatuses, sendAll } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const processes = useProcesses()
const receiver = useReceivers()
const BOUND = { timeout: 60_000, interval: 50 }
const EVENTS = 8
const config = { databaseUrl: url, tell: ['reaped', 'workerDied', 'settled', 'fencedOff', 'lost'] }

beforeEach(async () =>
  db.query({
    // A dead dispatcher has its share of an endpoint until somebody finds out.
    text: `truncate leasehold.webhook_outbox, leasehold.webhook_endpoints;
      delete from leasehold.workers`,
  }),
)
afterAll(async () => db.close())

/** What a receiver that recognises events by their webhook-id makes of what arrived. */
function onceEach(received: readonly Received[]): Map<string, string> {
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

it('WH-FR-004-AC1, WH-FR-004-AC3: what a dispatcher had in hand when it was killed is delivered by another, long before its lease is over', async () => {
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
  // Once by the dead one and once by the other; the receiver has each event once.
  expect(target.received).toHaveLength(2 * EVENTS)
  expect(onceEach(target.received).size).toBe(EVENTS)
  expect(new Set(onceEach(target.received).values()).size).toBe(EVENTS)
  expect(await attempts()).toEqual([
    { attempt: 1, status: null, error_code: 'leaseExpired', unknown: true, count: EVENTS },
    { attempt: 2, status: 204, error_code: null, unknown: false, count: EVENTS },
  ])
  for (const { attempts: failed, lease_token: token, lease_owner: owner } of await deliveries(db)) {
    expect({ failed, token, owner }).toEqual({ failed: 1, token: '2', owner: null })
  }
  await other.kill('SIGTERM')
}, 120_000)

it('WH-FR-004-AC2: with no reaper anywhere, leases that are over are claimed by whoever comes', async () => {
  const target = await receiver()
  hold(target)
  await addEndpoint(db, target.url)
  await sendAll(db, ...Array.from({ length: EVENTS }, () => null))
  const alone = {
    ...config,
    settings: { leaseMs: 2_000, pollMs: 50 },
    runtime: { reaper: false, eviction: false },
  }
  const dying = startDispatcherProcess(processes, alone)
  await target.reached(EVENTS)
  const other = startDispatcherProcess(processes, alone)
  await other.heard('up')
  await dying.kill('SIGKILL')
  target.answer(() => 204)
  await allDelivered()
  expect(other.all('reaped')).toEqual([])
  expect(onceEach(target.received).size).toBe(EVENTS)
  expect(await attempts()).toMatchObject([
    { attempt: 1, error_code: 'leaseExpired', count: EVENTS },
    { attempt: 2, status: 204, count: EVENTS },
  ])
  await other.kill('SIGTERM')
}, 120_000)

it('WH-FR-002-AC3, WH-FR-004-AC3: a dispatcher that was stopped past its lease and comes back changes nothing', async () => {
  const target = await receiver()
  const answers = hold(target)
  await addEndpoint(db, target.url)
  await sendAll(db, ...Array.from({ length: EVENTS }, () => null))
  const settings = { leaseMs: 2_000, reaperIntervalMs: 200, pollMs: 50 }
  const stopped = startDispatcherProcess(processes, { ...config, settings, runtime: { reaper: false } })
  await target.reached(EVENTS)
  process.kill(stopped.pid, 'SIGSTOP')
  target.answer(() => 204)
  // Its answers are there when it wakes up, and come too late.
  answers.letGo()
  const other = startDispatcherProcess(processes, { ...config, settings })
  await allDelivered()
  const before = await deliveries(db)
  process.kill(stopped.pid, 'SIGCONT')
  const told = (): number => stopped.all('lost').length + stopped.all('fencedOff').length
  await expect.poll(told, BOUND).toBeGreaterThanOrEqual(EVENTS)
  expect(await deliveries(db)).toEqual(before)
  expect(stopped.all('settled')).toEqual([])
  expect(onceEach(target.received).size).toBe(EVENTS)
  await Promise.all([other.kill('SIGTERM'), stopped.kill('SIGTERM')])
}, 120_000)
