import fc from 'fast-check'
import { Webhook } from 'standardwebhooks'
import { describe, expect, it } from 'vitest'

import { newSecret, publicKeyOf } from './secret.ts'
import { signatures, signer, webhookHeaders } from './sign.ts'
import { verify } from './verify.ts'

const TEXTS = fc.string({ unit: 'binary', maxLength: 200 })
const IDS = fc.stringMatching(/^[!-\-/-~]{1,60}$/)
const BYTES = fc.uint8Array({ maxLength: 200 })
const SHARED = fc
  .uint8Array({ minLength: 24, maxLength: 64 })
  .map((bytes) => `whsec_${Buffer.from(bytes).toString('base64')}`)
/** The raw bytes instead of JSON. */
const AS_IS = { parse: (body: Uint8Array) => body }

function nowSeconds(): number {
  return Math.floor(Date.now() / 1_000)
}

describe('the public test vectors', () => {
  it.each([
    {
      from: 'the reference libraries (v1)',
      secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
      id: 'msg_p5jXN8AQM9LWM0D4loKWxJek',
      timestampSeconds: 1_614_265_330,
      body: '{"test": 2432232314}',
      expected: 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=',
    },
    {
      from: 'the reference library in Rust (v1)',
      secret: 'whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD',
      id: 'msg_27UH4WbU6Z5A5EzD8u03UvzRbpk',
      timestampSeconds: 1_649_367_553,
      body: '{"email":"test@example.com","username":"test_user"}',
      expected: 'v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=',
    },
    {
      // The v1a signature in the specification's example headers; its key and message are in the tests of Svix.
      from: 'the specification (v1a)',
      secret: 'whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==',
      id: 'msg_p5jXN8AQM9LWM0D4loKWxJek',
      timestampSeconds: 1_614_265_330,
      body: '{"test": 2432232314}',
      expected:
        'v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==',
    },
  ])(
    'the signature equals the public test vector of $from',
    async ({ secret, id, timestampSeconds, body, expected }) => {
      const message = { id, timestampSeconds, body }
      expect(signer(secret)(message)).toBe(expected)
      expect(signer(secret)({ ...message, body: Buffer.from(body) })).toBe(expected)
      const headers = {
        'webhook-id': id,
        'webhook-timestamp': String(timestampSeconds),
        'webhook-signature': expected,
      }
      const trusted = secret.startsWith('whsk_') ? publicKeyOf(secret) : secret
      const now = () => timestampSeconds * 1_000
      await expect(verify({ headers, body }, trusted, { now })).resolves.toMatchObject({
        id,
        payload: JSON.parse(body),
        attempt: undefined,
      })
    },
  )
})

describe('the npm package standardwebhooks', () => {
  it('the package standardwebhooks verifies our signatures for any body, id and secret', () => {
    fc.assert(
      fc.property(TEXTS, IDS, SHARED, (body, id, secret) => {
        const headers = webhookHeaders({
          id,
          timestampSeconds: nowSeconds(),
          body,
          signers: [signer(secret)],
          attempt: 1,
        })
        expect(() => new Webhook(secret).verify(body, headers, { jsonParse: false })).not.toThrow()
        expect(() => new Webhook(secret).verify(`${body}.`, headers, { jsonParse: false })).toThrow(
          /signature/,
        )
      }),
    )
  })

  it('the package standardwebhooks makes the same signatures, and we verify them', async () => {
    await fc.assert(
      fc.asyncProperty(TEXTS, IDS, SHARED, async (body, id, secret) => {
        const timestampSeconds = nowSeconds()
        const signature = new Webhook(secret).sign(id, new Date(timestampSeconds * 1_000), body)
        expect(signer(secret)({ id, timestampSeconds, body })).toBe(signature)
        const headers = {
          'webhook-id': id,
          'webhook-timestamp': String(timestampSeconds),
          'webhook-signature': signature,
        }
        await expect(verify({ headers, body }, secret, AS_IS)).resolves.toMatchObject({ id })
      }),
    )
  })

  it('the package standardwebhooks verifies with the old and the new secret during a rotation', () => {
    const [newer, older] = [newSecret('v1'), newSecret('v1')]
    const signers = [newer, older, newSecret('v1a')].map(signer)
    const headers = webhookHeaders({
      id: 'msg_1',
      timestampSeconds: nowSeconds(),
      body: '{}',
      signers,
      attempt: 1,
    })
    for (const secret of [newer, older]) expect(new Webhook(secret).verify('{}', headers)).toEqual({})
    expect(() => new Webhook(newSecret('v1')).verify('{}', headers)).toThrow(/signature/)
  })
})

describe('a signature', () => {
  it.each(['v1', 'v1a'] as const)(
    'a %s signature verifies for any body, as text and as bytes',
    async (kind) => {
      const secret = newSecret(kind)
      const trusted = kind === 'v1' ? secret : publicKeyOf(secret)
      const signers = [signer(secret)]
      await fc.assert(
        fc.asyncProperty(fc.oneof(TEXTS, BYTES), IDS, async (body, id) => {
          const headers = webhookHeaders({ id, timestampSeconds: nowSeconds(), body, signers, attempt: 3 })
          const verified = await verify({ headers, body }, trusted, AS_IS)
          expect(verified).toMatchObject({ id, attempt: 3 })
          expect(Buffer.from(body).equals(verified.payload as Uint8Array)).toBe(true)
        }),
      )
    },
  )

  it('each secret signs, the newest first, separated by a space', () => {
    const secrets = [newSecret('v1'), newSecret('v1a'), newSecret('v1')]
    const message = { id: 'msg_1', timestampSeconds: 1, body: 'x' }
    const signers = secrets.map(signer)
    expect(signatures({ ...message, signers }).split(' ')).toEqual(signers.map((signed) => signed(message)))
    expect(signatures({ ...message, signers })).toMatch(/^v1,\S{44} v1a,\S{88} v1,\S{44}$/)
  })

  it.each([
    [{ id: 'a.b' }, /^id is "a\.b"\. Give 1 to 256 characters/],
    [{ id: '' }, /^id is ""/],
    [{ id: 'a b' }, /^id is "a b"/],
    [{ id: 'a\r\nx-injected: 1' }, /^id is "a\\r\\nx-injected: 1"/],
    [{ id: 'é' }, /^id is "é"/],
    [{ id: 'a'.repeat(257) }, /^id is "a+"/],
    [{ timestampSeconds: 1.5 }, /^timestampSeconds is 1\.5/],
    [{ timestampSeconds: -1 }, /^timestampSeconds is -1/],
    [{ timestampSeconds: Number.NaN }, /^timestampSeconds is NaN/],
    [{ attempt: 0 }, /^attempt is 0/],
    [{ signers: [] }, /^signers is empty/],
  ])('a message that cannot be sent or is ambiguous is not signed: %j', (given, message) => {
    for (const kind of ['v1', 'v1a'] as const) {
      const signers = [signer(newSecret(kind))]
      const attempt = { id: 'msg_1', timestampSeconds: 1, body: '', signers, attempt: 1, ...given }
      expect(() => webhookHeaders(attempt)).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }))
      expect(() => webhookHeaders(attempt)).toThrow(message)
    }
  })
})

it('the headers of a delivery have its id, also as idempotency key, its time, its attempt and its signatures', () => {
  const signed = signer(newSecret('v1'))
  const message = { id: 'msg_1', timestampSeconds: 1_700_000_000, body: '{}' }
  expect(webhookHeaders({ ...message, signers: [signed], attempt: 2 })).toEqual({
    'webhook-id': 'msg_1',
    'webhook-timestamp': '1700000000',
    'webhook-signature': signed(message),
    'webhook-attempt': '2',
    'idempotency-key': 'msg_1',
  })
})
