/** Rotating a secret while events are being delivered. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { type Received, type Receiver, useReceivers } from '../../../test/support/receiver.ts'
import { deliveries, deliveryStatuses, useDispatchers } from '../../../test/support/running-dispatcher.ts'
import { forgetWebhooks, SECRET_KEY } from '../../../test/support/webhook-endpoints.ts'
import { systemClock } from '../../clock.ts'
import { openDatabase } from '../../postgres/database.ts'
import { Events } from '../../worker/index.ts'
import { endpoints } from '../endpoints/endpoints.ts'
import { LOOPBACK } from '../network/policy.ts'
import type { SecretKind } from '../signing/secret.ts'
import { verifier } from '../signing/verify.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()
const managed = endpoints(db, { secretKey: SECRET_KEY, network: { allow: LOOPBACK } })
const BY = { principal: 'the test', reason: 'a rotation' }
const BOUND = { timeout: 120_000, interval: 20 }

beforeEach(async () => forgetWebhooks(db))
afterAll(async () => db.close())

/** Sends events, this many at a time, until it is stopped, and then waits until all are delivered. */
function load(target: Receiver, batch = 20): { stop(): Promise<number> } {
  const stopping = new AbortController()
  let sent = 0
  const sending = (async () => {
    while (!stopping.signal.aborted) {
      const { rows } = await db.query<{ count: number }>({
        text: `select count(*)::int as count from generate_series(1, $1::int) as n,
          leasehold.send_webhook('test.happened', jsonb_build_object('n', n))`,
        values: [batch],
      })
      sent += rows[0]?.count ?? 0
      await target.reached(sent - batch)
    }
  })()
  return {
    async stop() {
      stopping.abort()
      await sending
      await expect.poll(async () => deliveryStatuses(db), BOUND).toEqual({ delivered: sent })
      return sent
    },
  }
}

/** What a receiver verifies with: the shared secret, or the public key. */
const keyOf = (made: { readonly secret: string; readonly publicKey: string | null }): string =>
  made.publicKey ?? made.secret

/** Whether a receiver that knows only this secret accepts it. */
async function accepts(key: string, { headers, body }: Received): Promise<boolean> {
  return verifier(key)({ headers, body }).then(
    () => true,
    () => false,
  )
}

/** Who accepts the deliveries, in order of arrival: each phase with the number of its deliveries. */
async function phases(
  { received }: Receiver,
  keys: Readonly<Record<'old' | 'new', string>>,
): Promise<[string, number][]> {
  const all: [string, number][] = []
  for (const one of received) {
    const [byOld, byNew] = [await accepts(keys.old, one), await accepts(keys.new, one)]
    const who = [...(byOld ? ['old'] : []), ...(byNew ? ['new'] : [])].join(' and ') || 'nobody'
    const last = all.at(-1)
    if (last?.[0] === who) last[1] += 1
    else all.push([who, 1])
  }
  return all
}

describe.each<SecretKind>(['v1', 'v1a'])('rotation of a %s secret under load', (signing) => {
  it('receivers with the old or the new secret accept every delivery during the window, and only the new one after it', async () => {
    const target = await receiver()
    // One at a time, so that deliveries arrive in the order in which they were signed.
    const made = await managed.create({ url: target.url, signing, concurrency: 1 }, BY)
    let offsetMs = 0
    await startDispatcher({ clock: { monotonicNow: () => systemClock.monotonicNow() + offsetMs } })
    const loading = load(target)
    await target.reached(30)
    const windowMs = 3_600_000
    const rotated = await managed.rotateSecret(made.endpoint.id, BY, { keepOldForMs: windowMs })
    const keys = { old: keyOf(made), new: keyOf(rotated) }
    const latest = async (): Promise<boolean[]> => {
      const last = target.received.at(-1)
      return last === undefined ? [] : Promise.all([accepts(keys.old, last), accepts(keys.new, last)])
    }
    await expect.poll(latest, BOUND).toEqual([true, true])
    await target.reached(target.received.length + 30)
    offsetMs = windowMs
    await expect.poll(latest, BOUND).toEqual([false, true])
    await target.reached(target.received.length + 30)
    const sent = await loading.stop()

    expect(target.received).toHaveLength(sent)
    const [before, both, after, ...others] = await phases(target, keys)
    expect(others).toEqual([])
    expect([before?.[0], both?.[0], after?.[0]]).toEqual(['old', 'old and new', 'new'])
    expect(both?.[1]).toBeGreaterThanOrEqual(30)
    expect(after?.[1]).toBeGreaterThanOrEqual(30)
  })
})

it('an event that is sent after a rotation is signed with the new secret, however soon', async () => {
  const target = await receiver()
  const { endpoint } = await managed.create({ url: target.url }, BY)
  await startDispatcher()
  const sent = "select leasehold.send_webhook('test.happened', '{}')"
  await db.query({ text: sent })
  await target.reached(1)
  for (let i = 0; i < 5; i += 1) {
    const rotated = await managed.rotateSecret(endpoint.id, BY, { keepOldForMs: i % 2 === 0 ? 0 : 60_000 })
    await db.query({ text: sent })
    await target.reached(i + 2)
    expect(await accepts(keyOf(rotated), target.received.at(-1) ?? never())).toBe(true)
  }
})

it('under load, every delivery that starts after rotateSecret has returned is signed with the new secret', async () => {
  const target = await receiver()
  const made = await managed.create({ url: target.url, concurrency: 50 }, BY)
  const keys = [keyOf(made)]
  const events = new Events()
  /** How many rotations had returned when each delivery started. */
  const rotationsBefore = new Map<string, number>()
  events.on('started', ({ id }) => rotationsBefore.set(id, keys.length - 1))
  await startDispatcher({}, { events })
  const loading = load(target, 100)
  for (let i = 1; i <= 10; i += 1) {
    await target.reached(100 * i)
    keys.push(keyOf(await managed.rotateSecret(made.endpoint.id, BY, { keepOldForMs: 0 })))
  }
  const sent = await loading.stop()

  const ids = new Map((await deliveries(db)).map(({ id, event_id }) => [event_id, id]))
  const stale: string[] = []
  for (const one of target.received) {
    const id = ids.get(String(one.headers['webhook-id'])) ?? never()
    const accepted = await Promise.all(
      keys.slice(rotationsBefore.get(id) ?? 0).map(async (key) => accepts(key, one)),
    )
    if (!accepted.includes(true)) stale.push(id)
  }
  expect(stale).toEqual([])
  expect(target.received).toHaveLength(sent)
})

it('a retry within the window is signed with both secrets, whatever signed the first attempt', async () => {
  const target = await receiver(() => 500)
  const made = await managed.create({ url: target.url }, BY)
  await db.query({ text: "select leasehold.send_webhook('test.happened', '{}')" })
  await startDispatcher({
    schedule: Array.from({ length: 1_000 }, () => 20),
    circuitBreaker: { failureThreshold: 10_000 },
  })
  await target.reached(2)
  const rotated = await managed.rotateSecret(made.endpoint.id, BY)
  await expect.poll(async () => accepts(keyOf(rotated), target.received.at(-1) ?? never()), BOUND).toBe(true)
  target.answer(() => 204)
  await expect.poll(async () => deliveryStatuses(db), BOUND).toEqual({ delivered: 1 })
  const all = await phases(target, { old: keyOf(made), new: keyOf(rotated) })
  expect(all.map(([who]) => who)).toEqual(['old', 'old and new'])
  expect(new Set(target.received.map(({ headers }) => headers['webhook-id'])).size).toBe(1)
})

it('a rotation without a window stops the old secret as soon as the dispatcher reads the change', async () => {
  const target = await receiver()
  const made = await managed.create({ url: target.url, concurrency: 1 }, BY)
  await startDispatcher()
  const loading = load(target)
  await target.reached(10)
  const rotated = await managed.rotateSecret(made.endpoint.id, BY, { keepOldForMs: 0 })
  await expect.poll(async () => accepts(keyOf(rotated), target.received.at(-1) ?? never()), BOUND).toBe(true)
  await loading.stop()
  const all = await phases(target, { old: keyOf(made), new: keyOf(rotated) })
  expect(all.map(([who]) => who)).toEqual(['old', 'new'])
})

function never(): never {
  throw new Error('nothing has arrived')
}
