import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { isDeepStrictEqual } from 'node:util'

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'

import { LeaseholdError } from '../../errors.ts'
import { newSecret, publicKeyOf } from './secret.ts'
import { signer, webhookHeaders } from './sign.ts'
import {
  isWebhookInvalid,
  type RawRequest,
  type Refusal,
  rememberIds,
  type Seen,
  verifier,
  verify,
  type VerifyOptions,
} from './verify.ts'

const SECRET = newSecret('v1')
const PRIVATE_KEY = newSecret('v1a')
const AT_SECONDS = 1_700_000_000
const BODY = '{"type":"order.paid","data":{"name":"Zoë"}}'
const still: VerifyOptions = { now: () => AT_SECONDS * 1_000 }

interface Delivery extends RawRequest {
  readonly headers: Record<string, string>
  readonly body: string
}

function delivery(
  secrets: readonly string[] = [SECRET],
  body = BODY,
  timestampSeconds = AT_SECONDS,
): Delivery {
  const signers = secrets.map(signer)
  return {
    headers: { ...webhookHeaders({ id: 'msg_1', timestampSeconds, body, signers, attempt: 2 }) },
    body,
  }
}

function deliveredAt(timestampSeconds: number): Delivery {
  return delivery([SECRET], BODY, timestampSeconds)
}

function withHeader(from: Delivery, name: string, value: string | undefined): Delivery {
  const { [name]: _, ...others } = from.headers
  return { ...from, headers: value === undefined ? others : { ...others, [name]: value } }
}

async function reasonOf(verifying: Promise<unknown>): Promise<Refusal | 'accepted'> {
  return verifying.then(
    () => 'accepted',
    (error: unknown) => {
      if (isWebhookInvalid(error)) return error.reason
      throw error
    },
  )
}

describe('valid requests', () => {
  it('a valid request yields its id, time, payload and attempt', async () => {
    await expect(verify(delivery(), SECRET, still)).resolves.toEqual({
      id: 'msg_1',
      timestamp: new Date(AT_SECONDS * 1_000),
      payload: { type: 'order.paid', data: { name: 'Zoë' } },
      attempt: 2,
    })
  })

  it('a request may be a WHATWG Request, have bytes or Headers, or header names and lists as in Node', async () => {
    const { headers, body } = delivery()
    const upper = Object.fromEntries(
      Object.entries(headers).map(([name, value]) => [name.toUpperCase(), value]),
    )
    const listed = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, [value]]))
    for (const request of [
      new Request('http://127.0.0.1/', { method: 'POST', headers, body }),
      { headers: new Headers(headers), body },
      { headers, body: new TextEncoder().encode(body) },
      { headers, body: Buffer.from(`..${body}`).subarray(2) },
      { headers: upper, body },
      { headers: listed, body },
    ]) {
      await expect(verify(request, SECRET, still)).resolves.toMatchObject({ id: 'msg_1' })
    }
  })

  it('a server of node:http verifies the request as it came over the wire', async () => {
    const server = createServer((request, response) => {
      const answer = async () => {
        const chunks: Uint8Array[] = []
        for await (const chunk of request) chunks.push(chunk as Uint8Array) // without an encoding these are Buffers
        return verify({ headers: request.headers, body: Buffer.concat(chunks) }, SECRET)
      }
      answer().then(
        ({ id }) => response.end(id),
        (error: unknown) => response.writeHead(400).end(isWebhookInvalid(error) ? error.reason : 'other'),
      )
    })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    try {
      const { port } = server.address() as AddressInfo // listens on TCP
      const { headers, body } = delivery([SECRET], BODY, Math.floor(Date.now() / 1_000))
      const post = async (text: string) =>
        (await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', headers, body: text })).text()
      expect(await post(body)).toBe('msg_1')
      expect(await post(body.replace('paid', 'free'))).toBe('wrongSignature')
    } finally {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    }
  })

  it('the body may be empty, or something else than JSON with the option parse', async () => {
    await expect(verify(delivery([SECRET], ''), SECRET, still)).resolves.toMatchObject({ payload: undefined })
    const plain = delivery([SECRET], 'plain')
    expect(await reasonOf(verify(plain, SECRET, still))).toBe('malformed')
    const parse = (body: Uint8Array) => Buffer.from(body).toString()
    await expect(verify(plain, SECRET, { ...still, parse })).resolves.toMatchObject({ payload: 'plain' })
  })

  it('a body that is not valid UTF-8 is refused as malformed', async () => {
    const body = Buffer.from([0x22, 0xff, 0x22])
    const signers = [signer(SECRET)]
    const headers = webhookHeaders({ id: 'msg_1', timestampSeconds: AT_SECONDS, body, signers, attempt: 1 })
    expect(await reasonOf(verify({ headers, body }, SECRET, still))).toBe('malformed')
  })

  it.each(['', '0', 'x', '1e3'])('the attempt is undefined if its header is %j', async (value) => {
    const request = withHeader(delivery(), 'webhook-attempt', value)
    await expect(verify(request, SECRET, still)).resolves.toMatchObject({ attempt: undefined })
  })

  it('one right signature among others is enough, of either kind', async () => {
    const { headers, body } = delivery([SECRET, PRIVATE_KEY])
    const [v1 = '', v1a = ''] = headers['webhook-signature']?.split(' ') ?? []
    const wrong = `v1,${Buffer.alloc(32).toString('base64')} v1a,${Buffer.alloc(64).toString('base64')} v9,x junk`
    const verifiable = async (signature: string, secret: string) =>
      reasonOf(verify({ headers: { ...headers, 'webhook-signature': signature }, body }, secret, still))
    const publicKey = publicKeyOf(PRIVATE_KEY)
    expect(await verifiable(`${wrong}  ${v1} `, SECRET)).toBe('accepted')
    expect(await verifiable(`${wrong} ${v1a}`, publicKey)).toBe('accepted')
    expect(await verifiable(`${wrong} ${v1a}`, SECRET)).toBe('wrongSignature')
    expect(await verifiable(`${wrong} ${v1}`, publicKey)).toBe('wrongSignature')
    // What one kind signed does not pass for the other.
    expect(await verifiable(v1.replace('v1,', 'v1a,'), publicKey)).toBe('wrongSignature')
    expect(await verifiable(v1a.replace('v1a,', 'v1,'), SECRET)).toBe('wrongSignature')
  })
})

describe('rotation', () => {
  it('during a rotation, receivers with the old, the new or both secrets accept a delivery, and others do not', async () => {
    const [newer, older] = [newSecret('v1'), newSecret('v1')]
    const request = delivery([newer, older])
    for (const secrets of [newer, older, [newer, older], [newSecret('v1'), older]]) {
      expect(await reasonOf(verify(request, secrets, still))).toBe('accepted')
    }
    expect(await reasonOf(verify(request, [newSecret('v1'), newSecret('v1')], still))).toBe('wrongSignature')
  })

  it('a receiver with both secrets accepts a delivery that either signed, also from v1 to v1a', async () => {
    const check = verifier([publicKeyOf(PRIVATE_KEY), SECRET], still)
    for (const signing of [[SECRET], [PRIVATE_KEY], [PRIVATE_KEY, SECRET]]) {
      expect(await reasonOf(check(delivery(signing)))).toBe('accepted')
    }
  })
})

describe('changed requests', () => {
  it.each([
    { kind: 'v1', secret: SECRET, trusted: SECRET },
    { kind: 'v1a', secret: PRIVATE_KEY, trusted: publicKeyOf(PRIVATE_KEY) },
  ])(
    'a $kind signature is refused if the body, the id, the time or the signature was changed',
    async ({ secret, trusted }) => {
      const genuine = delivery([secret])
      const signature = genuine.headers['webhook-signature'] ?? ''
      const check = verifier(trusted, { ...still, parse: (body) => body })
      const replaced = (text: string, at: number, by: string) => text.slice(0, at) + by + text.slice(at + 1)
      const printable = fc.constantFrom(...Array.from({ length: 94 }, (_, n) => String.fromCharCode(33 + n)))
      const tampered = fc.oneof(
        fc
          .tuple(fc.nat(BODY.length), printable)
          .map(([at, by]): Delivery => ({ ...genuine, body: replaced(BODY, at, by) })),
        fc
          .tuple(fc.nat(5), printable)
          .map(([at, by]) => withHeader(genuine, 'webhook-id', replaced('msg_1', at, by))),
        fc
          .integer({ min: -300, max: 300 })
          .map((by) => withHeader(genuine, 'webhook-timestamp', String(AT_SECONDS + by))),
        fc
          .tuple(fc.nat(signature.length), printable)
          .map(([at, by]) => withHeader(genuine, 'webhook-signature', replaced(signature, at, by))),
      )
      await fc.assert(
        fc.asyncProperty(tampered, async (request) => {
          fc.pre(!isDeepStrictEqual(request, genuine))
          expect(await reasonOf(check(request))).toMatch(/^(wrongSignature|malformed)$/)
        }),
        { numRuns: 500 },
      )
    },
  )

  it('an id with a dot is refused, because the signed bytes would be ambiguous', async () => {
    const { headers } = delivery([SECRET], `${AT_SECONDS}.5`)
    const moved = { headers: { ...headers, 'webhook-id': `msg_1.${AT_SECONDS}` }, body: '5' }
    expect(await reasonOf(verify(moved, SECRET, still))).toBe('malformed')
  })
})

describe('malformed requests', () => {
  it.each(['webhook-id', 'webhook-timestamp', 'webhook-signature'])(
    'a request without %s is refused',
    async (name) => {
      for (const value of [undefined, '']) {
        const refused = verify(withHeader(delivery(), name, value), SECRET, still)
        await expect(refused).rejects.toMatchObject({ code: 'WEBHOOK_INVALID', reason: 'missingHeader' })
        await expect(refused).rejects.toThrow(`The header ${name} is missing.`)
      }
    },
  )

  it.each([
    ['webhook-id', 'msg_1, msg_2'],
    ['webhook-id', 'm'.repeat(257)],
    ['webhook-timestamp', 'now'],
    ['webhook-timestamp', `${AT_SECONDS}.0`],
    ['webhook-timestamp', `-${AT_SECONDS}`],
    ['webhook-timestamp', `${AT_SECONDS}, ${AT_SECONDS}`],
    ['webhook-timestamp', '9'.repeat(40)],
    ['webhook-signature', 'junk'],
    ['webhook-signature', 'v1,'],
    ['webhook-signature', 'v1,AAAA '.repeat(17)],
  ])('a request with the %s %j is refused', async (name, value) => {
    const refused = verify(withHeader(delivery(), name, value), SECRET, still)
    await expect(refused).rejects.toMatchObject({ code: 'WEBHOOK_INVALID', reason: 'malformed' })
    await expect(refused).rejects.toThrow(`The header ${name} is not`)
  })

  it('a request with another text for the same time is refused', async () => {
    const padded = withHeader(delivery(), 'webhook-timestamp', `0${AT_SECONDS}`)
    expect(await reasonOf(verify(padded, SECRET, still))).toBe('wrongSignature')
  })
})

describe('the tolerance', () => {
  async function after(ms: number, toleranceMs?: number): Promise<string> {
    const now = () => AT_SECONDS * 1_000 + ms
    return reasonOf(verify(delivery(), SECRET, toleranceMs === undefined ? { now } : { now, toleranceMs }))
  }

  it('the default tolerance is five minutes in both directions, inclusive', async () => {
    expect(await after(300_999)).toBe('accepted')
    expect(await after(301_000)).toBe('tooOld')
    expect(await after(-300_000)).toBe('accepted')
    expect(await after(-300_001)).toBe('tooNew')
  })

  it('the tolerance can be set', async () => {
    expect(await after(999, 0)).toBe('accepted')
    expect(await after(1_000, 0)).toBe('tooOld')
    expect(await after(-1, 0)).toBe('tooNew')
    expect(await after(10_000, 10_000)).toBe('accepted')
    expect(await after(11_000, 10_000)).toBe('tooOld')
  })

  it.each([-1, Number.NaN, Infinity])('a tolerance of %j is refused', async (toleranceMs) => {
    await expect(verify(delivery(), SECRET, { toleranceMs })).rejects.toMatchObject({
      code: 'SETTING_INVALID',
    })
  })
})

it('isWebhookInvalid recognises refusals and their reasons, and no other error', async () => {
  const error: unknown = await verify(delivery(), newSecret('v1'), still).catch((refused: unknown) => refused)
  expect(isWebhookInvalid(error)).toBe(true)
  expect(isWebhookInvalid(error, 'wrongSignature')).toBe(true)
  expect(isWebhookInvalid(error, 'replayed')).toBe(false)
  expect(isWebhookInvalid(new Error('other'))).toBe(false)
  expect(isWebhookInvalid(new LeaseholdError('REQUEST_INVALID', 'other'))).toBe(false)
})

describe('mistakes of the receiver', () => {
  it.each([
    [
      'parsed',
      { body: JSON.parse(BODY) as unknown },
      /^The body of the request is object, not text or bytes\. Give the bytes/,
    ],
    ['missing', {}, /^The body of the request is missing\..*express\.raw/],
  ])('a body that is %s is reported as a mistake of the receiver', async (_, given, message) => {
    // As a caller without types would.
    const request = { headers: delivery().headers, ...given } as RawRequest
    await expect(verify(request, SECRET, still)).rejects.toMatchObject({ code: 'REQUEST_INVALID' })
    await expect(verify(request, SECRET, still)).rejects.toThrow(message)
  })

  it('a Request whose body was read before is reported as a mistake of the receiver', async () => {
    const request = new Request('http://127.0.0.1/', { method: 'POST', ...delivery() })
    await request.text()
    await expect(verify(request, SECRET, still)).rejects.toThrow(/has been read already\. Verify first/)
  })

  it('an invalid secret, or none, is reported as a mistake of the receiver', async () => {
    expect(() => verifier('secret')).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }))
    expect(() => verifier([])).toThrow(/^secrets is empty/)
    await expect(verify(delivery(), PRIVATE_KEY)).rejects.toThrow(/^secret is a private key/)
  })
})

describe('replayed requests', () => {
  it('the same request is refused a second time, until it would be too old', async () => {
    let at = AT_SECONDS * 1_000
    const now = () => at
    const options = { now, seen: rememberIds({ now }), toleranceMs: 10_000 }
    const outcome = async () => reasonOf(verify(delivery(), SECRET, options))
    expect(await outcome()).toBe('accepted')
    expect(await outcome()).toBe('replayed')
    at += 10_999
    expect(await outcome()).toBe('replayed')
    at += 1
    expect(await outcome()).toBe('tooOld')
  })

  it("the sender's next attempt of the same event is accepted", async () => {
    const now = () => AT_SECONDS * 1_000
    const options = { now, seen: rememberIds({ now }) }
    await verify(deliveredAt(AT_SECONDS - 5), SECRET, options)
    await expect(verify(delivery(), SECRET, options)).resolves.toMatchObject({ id: 'msg_1' })
  })

  it('seen is called only for requests that are otherwise accepted, and may be asynchronous', async () => {
    const asked: [string, Date][] = []
    const options = {
      now: () => AT_SECONDS * 1_000,
      seen: async (requestId: string, until: Date) => asked.push([requestId, until]) > 1,
    }
    await expect(verify({ ...delivery(), body: '[]' }, SECRET, options)).rejects.toThrow(/signatures/)
    await expect(verify(deliveredAt(AT_SECONDS - 301), SECRET, options)).rejects.toThrow(/older/)
    await expect(verify(delivery([SECRET], 'no JSON'), SECRET, options)).rejects.toThrow(/JSON/)
    expect(asked).toEqual([])

    await verify(delivery(), SECRET, options)
    expect(asked).toEqual([[`msg_1.${AT_SECONDS}`, new Date((AT_SECONDS + 301) * 1_000)]])
    await expect(verify(delivery(), SECRET, options)).rejects.toMatchObject({ reason: 'replayed' })
  })

  it('a request is refused if seen returns anything but false', async () => {
    for (const answer of [1, 'OK', null, undefined]) {
      // As a caller without types would.
      const seen = (() => answer) as unknown as Seen
      const options = { now: () => AT_SECONDS * 1_000, seen }
      await expect(verify(delivery(), SECRET, options)).rejects.toMatchObject({
        reason: 'replayed',
      })
    }
  })

  it('a request is not accepted if seen fails', async () => {
    const options = {
      now: () => AT_SECONDS * 1_000,
      seen: async () => Promise.reject(new Error('the store is away')),
    }
    await expect(verify(delivery(), SECRET, options)).rejects.toThrow('the store is away')
  })
})

describe('rememberIds', () => {
  it('rememberIds forgets the oldest request when it has too many', () => {
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

  it('rememberIds removes expired requests before it forgets others', () => {
    let at = 0
    const seen = rememberIds({ max: 2, now: () => at })
    seen('a', new Date(10))
    at = 10
    seen('b', new Date(20))
    seen('c', new Date(20))
    expect([seen('b', new Date(20)), seen('c', new Date(20))]).toEqual([true, true])
  })

  it('rememberIds forgets a request when it expires', () => {
    let at = 0
    const seen = rememberIds({ now: () => at })
    expect([seen('a', new Date(10)), seen('a', new Date(10))]).toEqual([false, true])
    at = 10
    expect(seen('a', new Date(20))).toBe(false)
  })

  it.each([0, 1.5, Number.NaN])('rememberIds refuses the size %j', (max) => {
    expect(() => rememberIds({ max })).toThrow(expect.objectContaining({ code: 'SETTING_INVALID' }))
  })
})
