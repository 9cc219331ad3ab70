/** A secret is rotated while deliveries are on their way. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { type Received, type Receiver, useReceivers } from '../../../test/support/receiver.ts'
import { deliveryStatuses, useDispatchers } from '../../../test/support/running-dispatcher.ts'
import { forgetWebhooks, SECRET_KEY } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { endpoints } from '../endpoints/index.ts'
import { LOOPBACK } from '../network/index.ts'
import { verifier, type SecretKind } from '../signing/index.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startDispatcher = useDispatchers(url)
const receiver = useReceivers()
const managed = endpoints(db, { secretKey: SECRET_KEY, network: { allow: LOOPBACK } })
const BY = { principal: 'the test', reason: 'a rotation' }
const BOUND = { timeout: 60_000, interval: 20 }

beforeEach(async () => forgetWebhooks(db))
afterAll(async () => db.close())

/** Sends until it is told to stop, so that there are deliveries at every moment; then waits for the last of them. */
function load(target: Receiver): { stop(): Promise<number> } {
  const stopping = new AbortController()
  let sent = 0
  const sending = (async () => {
    while (!stopping.signal.aborted) {
      const { rows } = await db.query<{ count: number }>({
        text: `select count(*)::int as count from generate_series(1, 20) as n,
          leasehold.send_webhook('test.happened', jsonb_build_object('n', n))`,
      })
      sent += rows[0]?.count ?? 0
      await target.reached(sent - 20)
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

/** Who accepts each delivery, in the order of arrival; what is the same as the one before is counted. */
async function phases(
  { received }: Receiver,
  keys: Readonly<Record<'old' | 'new', string>>,
): Promise<[string, number][]> {
  const all: [string, number][] = []
  for (const one of received) {
    const [old, fresh] = [await accepts(keys.old, one), await accepts(keys.new, one)]
    const who = [...(old ? ['old'] : []), ...(fresh ? ['new'] : [])].join(' and ') || 'nobody'
    const last = all.at(-1)
    if (last?.[0] === who) last[1] += 1
    else all.push([who, 1])
  }
  return all
}

describe.each<SecretKind>(['v1', 'v1a'])('rotation of a %s secret under load', (signing) => {
  it('receivers with the old and with the new secret both accept every delivery throughout the window; after it, only the new one does', async () => {
    const target = await receiver()
    // One at a time, so that what arrives is in the order in which it was signed.
    const made = await managed.create({ url: target.url, signing, concurrency: 1 }, BY)
    await startDispatcher()
    const loading = load(target)
    await target.reached(30)
    const windowMs = 2_000
    const rotated = await managed.rotateSecret(made.endpoint.id, BY, { keepOldForMs: windowMs })
    const keys = { old: keyOf(made), new: keyOf(rotated) }
    const latest = async (): Promise<boolean[]> => {
      const last = target.received.at(-1)
      return last === undefined ? [] : Promise.all([accepts(keys.old, last), accepts(keys.new, last)])
    }
    await expect.poll(latest, BOUND).toEqual([true, true])
    await expect.poll(latest, BOUND).toEqual([false, true])
    const seen = target.received.length
    await target.reached(seen + 30)
    const sent = await loading.stop()

    expect(target.received).toHaveLength(sent)
    const [before, both, after, ...others] = await phases(target, keys)
    expect(others).toEqual([])
    expect([before?.[0], both?.[0], after?.[0]]).toEqual(['old', 'old and new', 'new'])
    expect(both?.[1]).toBeGreaterThan(10)
    expect(after?.[1]).toBeGreaterThanOrEqual(30)
  })
})

it('an attempt that is made within the window carries both, whatever the first one was signed with', async () => {
  const target = await receiver(() => 500)
  const made = await managed.create({ url: target.url }, BY)
  await db.query({ text: "select leasehold.send_webhook('test.happened', '{}')" })
  await startDispatcher({ schedule: Array.from({ length: 1_000 }, () => 20), breaker: { failures: 10_000 } })
  await target.reached(2)
  const rotated = await managed.rotateSecret(made.endpoint.id, BY)
  await expect.poll(async () => accepts(keyOf(rotated), target.received.at(-1) ?? never()), BOUND).toBe(true)
  target.answer(() => 204)
  await expect.poll(async () => deliveryStatuses(db), BOUND).toEqual({ delivered: 1 })
  const all = await phases(target, { old: keyOf(made), new: keyOf(rotated) })
  expect(all.map(([who]) => who)).toEqual(['old', 'old and new'])
  expect(new Set(target.received.map(({ headers }) => headers['webhook-id'])).size).toBe(1)
})

it('a secret that has leaked is out of use as soon as the dispatcher knows', async () => {
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
