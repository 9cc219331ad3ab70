/** A dispatcher with hostile receivers and a healthy one. Nothing but 127.0.0.1 is ever dialled. */
import { afterAll, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import {
  type Hostility,
  startHostileReceiver,
  startTlsReceiver,
  testCertificate,
} from '../../../test/support/hostile-receiver.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import { recordingDialler } from '../../../test/support/recording-dialler.ts'
import { sendAll, useDispatchers } from '../../../test/support/running-dispatcher.ts'
import { addEndpoint } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'

useQuietProcess()
const { url } = useDatabase()
const db = openDatabase({ url })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()
const EVENTS = 300
const BOUND = { timeout: 120_000, interval: 50 }
afterAll(async () => db.close())

/** The state of a delivery to each of them. Once a status has arrived it counts, whatever follows. */
const HOSTILE: Readonly<Partial<Record<Hostility, string>>> = {
  answersByteByByte: 'failed: timeout',
  endlessInterim: 'failed: headersTooLarge',
  endlessReason: 'failed: headersTooLarge',
  endlessEmptyLines: 'failed: headersTooLarge',
  endlessChunkExtension: 'delivered',
  endlessTrailers: 'delivered',
  endlessHead: 'failed: headersTooLarge',
  resetsMidHead: 'failed: reset',
  closes: 'failed: reset',
  speaksAnotherProtocol: 'failed: protocol',
  redirectsToMetadata: 'failed: http307',
  endlessFailure: 'failed: http500',
  endlessBody: 'delivered',
  bodyByteByByte: 'delivered',
  resetsMidBody: 'delivered',
}

/** URLs that lead to internal addresses. */
const INTERNAL: Readonly<Record<string, string>> = {
  'http://169.254.169.254/latest/meta-data/': 'failed: refusedAddress',
  'http://[::ffff:10.0.0.1]/': 'failed: refusedAddress',
  'http://2130706434.test/': 'failed: refusedAddress',
  'http://inside.test/': 'failed: refusedAddress',
  'http://mixed.test/': 'failed: refusedAddress',
}
const NAMES: Readonly<Record<string, readonly string[]>> = {
  '2130706434.test': ['100.64.0.1'],
  'inside.test': ['10.0.0.7'],
  'mixed.test': ['192.168.0.1', 'fd00::1'],
}

it('hostile receivers fail their own deliveries only, limits hold, no internal address is dialled, and a healthy endpoint gets all of its deliveries', async () => {
  // Only a receiver that never completes its answer is to reach its timeout, however slow the machine is.
  const wanted = { event_types: ['hostile.happened'], timeout_ms: 120_000 }
  const expected = new Map<string, string>()
  for (const [hostility, outcome] of Object.entries(HOSTILE)) {
    // The keys of the table are hostilities.
    const { url: at } = await startHostileReceiver(hostility as Hostility)
    const timeout = outcome === 'failed: timeout' ? { timeout_ms: 5_000 } : {}
    expected.set((await addEndpoint(db, at, { ...wanted, ...timeout })).id, `${hostility} ${outcome}`)
  }
  const { key, cert } = testCertificate('right')
  const untrusted = await startTlsReceiver({ key, cert })
  expected.set((await addEndpoint(db, untrusted.url, wanted)).id, 'untrusted failed: tls')
  for (const [at, outcome] of Object.entries(INTERNAL))
    expected.set((await addEndpoint(db, at, wanted)).id, `${at} ${outcome}`)
  const silent = await startHostileReceiver('neverAnswers')
  const { id: silentId } = await addEndpoint(db, silent.url, { ...wanted, timeout_ms: 300_000 })
  const healthy = await receiver()
  await addEndpoint(db, healthy.url)

  await db.query({ text: "select leasehold.send_webhook('hostile.happened', '{}')" })
  await sendAll(db, ...Array.from({ length: EVENTS }, () => null))
  const { dial, addresses } = recordingDialler({ loopback: true })
  await startDispatcher({
    schedule: [],
    dial,
    resolve: async (host) => NAMES[host] ?? Promise.reject(new Error(`unexpected name: ${host}`)),
    limits: { bodyTimeoutMs: 500 },
  })
  await healthy.reached(EVENTS + 1)
  const names = new Map([...expected].map(([id, text]) => [id, text.split(' ')[0] ?? '']))
  const outcomes = async (): Promise<string[]> => {
    const { rows } = await db.query<{ id: string; outcome: string }>({
      text: `select endpoint_id as id, delivery_status || coalesce(': ' || last_error_code, '') as outcome
        from leasehold.webhook_outbox where endpoint_id = any ($1::uuid[])`,
      values: [[...names.keys()]],
    })
    return rows.map(({ id, outcome }) => `${names.get(id) ?? ''} ${outcome}`).toSorted()
  }
  await expect.poll(outcomes, BOUND).toEqual([...expected.values()].toSorted())

  // The delivery to the receiver that never answers is still in flight.
  const { rows } = await db.query({
    text: `select delivery_status, lease_owner is not null as leased from leasehold.webhook_outbox where endpoint_id = $1`,
    values: [silentId],
  })
  expect(rows).toEqual([{ delivery_status: 'pending', leased: true }])
  const largest = await db.query<{ bytes: number }>({
    text: 'select max(octet_length(response))::int as bytes from leasehold.webhook_attempts',
  })
  expect(largest.rows[0]?.bytes).toBeGreaterThan(0)
  expect(largest.rows[0]?.bytes).toBeLessThanOrEqual(1_024 * 3)
  expect(addresses()).toEqual(['127.0.0.1'])
  expect(new Set(healthy.received.map(({ headers }) => headers['webhook-id'])).size).toBe(EVENTS + 1)
})
