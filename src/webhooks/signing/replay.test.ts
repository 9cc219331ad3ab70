import { describe, expect, it } from 'vitest'

import { webhookHeaders } from './headers.ts'
import { isWebhookInvalid } from './refusal.ts'
import { rememberIds, type Seen } from './remember-ids.ts'
import { newSecret } from './secret.ts'
import { signer } from './sign.ts'
import { verify } from './verify.ts'

const SECRET = newSecret('v1')
const SIGNERS = [signer(SECRET)]
const AT_SECONDS = 1_700_000_000

function delivery(timestampSeconds: number, body = '{}') {
  return {
    headers: webhookHeaders({ id: 'msg_1', timestampSeconds, body, signers: SIGNERS, attempt: 1 }),
    body,
  }
}

describe('the replay window', () => {
  it('refuses the same request again, for as long as it would not be too old', async () => {
    let at = AT_SECONDS * 1_000
    const now = () => at
    const options = { now, seen: rememberIds({ now }), toleranceMs: 10_000 }
    const outcome = async () =>
      verify(delivery(AT_SECONDS), SECRET, options).then(
        () => 'accepted',
        (error: unknown) => (isWebhookInvalid(error) ? error.reason : error),
      )
    expect(await outcome()).toBe('accepted')
    expect(await outcome()).toBe('replayed')
    at += 10_999
    expect(await outcome()).toBe('replayed')
    at += 1
    expect(await outcome()).toBe('tooOld')
  })

  it("lets the sender's next attempt of the same event in, which has another time", async () => {
    const now = () => AT_SECONDS * 1_000
    const options = { now, seen: rememberIds({ now }) }
    await verify(delivery(AT_SECONDS - 5), SECRET, options)
    await expect(verify(delivery(AT_SECONDS), SECRET, options)).resolves.toMatchObject({ id: 'msg_1' })
  })

  it('is asked only about what is accepted otherwise, and may be asked of a store elsewhere', async () => {
    const asked: [string, Date][] = []
    const options = {
      now: () => AT_SECONDS * 1_000,
      seen: async (requestId: string, until: Date) => asked.push([requestId, until]) > 1,
    }
    await expect(verify({ ...delivery(AT_SECONDS), body: '[]' }, SECRET, options)).rejects.toThrow(
      /signatures/,
    )
    await expect(verify(delivery(AT_SECONDS - 301), SECRET, options)).rejects.toThrow(/older/)
    await expect(verify(delivery(AT_SECONDS, 'no JSON'), SECRET, options)).rejects.toThrow(/JSON/)
    expect(asked).toEqual([])

    await verify(delivery(AT_SECONDS), SECRET, options)
    expect(asked).toEqual([[`msg_1.${AT_SECONDS}`, new Date((AT_SECONDS + 301) * 1_000)]])
    await expect(verify(delivery(AT_SECONDS), SECRET, options)).rejects.toMatchObject({ reason: 'replayed' })
  })

  it('accepts nothing on an answer that is not a plain no', async () => {
    for (const answer of [1, 'OK', null, undefined]) {
      // As a caller without types would.
      const seen = (() => answer) as unknown as Seen
      const options = { now: () => AT_SECONDS * 1_000, seen }
      await expect(verify(delivery(AT_SECONDS), SECRET, options)).rejects.toMatchObject({
        reason: 'replayed',
      })
    }
  })

  it('accepts nothing while the store cannot answer', async () => {
    const options = {
      now: () => AT_SECONDS * 1_000,
      seen: async () => Promise.reject(new Error('the store is away')),
    }
    await expect(verify(delivery(AT_SECONDS), SECRET, options)).rejects.toThrow('the store is away')
  })
})

describe('the memory', () => {
  it('forgets the oldest when there are too many', () => {
    const seen = rememberIds({ max: 2, now: () => 0 })
    const until = new Date(1)
    expect(['a', 'b', 'c', 'b', 'c', 'a'].map((id) => seen(id, until))).toEqual([
      false,
      false,
      false,
      true,
      true,
      false,
    ])
  })

  it('makes room by what is over before it forgets what is not', () => {
    let at = 0
    const seen = rememberIds({ max: 2, now: () => at })
    seen('a', new Date(10))
    at = 10
    seen('b', new Date(20))
    seen('c', new Date(20))
    expect([seen('b', new Date(20)), seen('c', new Date(20))]).toEqual([true, true])
  })

  it('keeps nothing beyond its end', () => {
    let at = 0
    const seen = rememberIds({ now: () => at })
    expect([seen('a', new Date(10)), seen('a', new Date(10))]).toEqual([false, true])
    at = 10
    expect(seen('a', new Date(20))).toBe(false)
  })

  it.each([0, 1.5, Number.NaN])('of size %j is refused', (max) => {
    expect(() => rememberIds({ max })).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
  })
})
