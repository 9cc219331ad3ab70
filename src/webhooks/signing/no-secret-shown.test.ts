import { randomBytes } from 'node:crypto'
import { inspect } from 'node:util'

import { expect, it } from 'vitest'

import { isLeaseholdError } from '../../errors.ts'
import { decrypt, encrypt, secretKey } from './encryption.ts'
import { newSecret, publicKeyOf } from './secret.ts'
import { signer, webhookHeaders } from './sign.ts'
import { isWebhookInvalid, type RawRequest, REFUSALS, verify, type VerifyOptions } from './verify.ts'

const AT_SECONDS = 1_700_000_000
const SECRET = newSecret('v1')
const PRIVATE_KEY = newSecret('v1a')
const KEY = randomBytes(32).toString('base64')
const BODY = '{"card":"4111111111111111"}'
const NO_JSON = 'card 4111111111111111'
const now = () => AT_SECONDS * 1_000

function delivery(body = BODY, secret = SECRET) {
  const signers = [signer(secret), signer(PRIVATE_KEY)]
  return {
    headers: webhookHeaders({ id: 'msg_1', timestampSeconds: AT_SECONDS, body, signers, attempt: 1 }),
    body,
  }
}

const genuine = delivery()
const { headers } = genuine
const signature = headers['webhook-signature']
const stored = encrypt(secretKey(KEY), SECRET, 'ep_1')

async function refused(request: RawRequest, options: VerifyOptions = {}): Promise<unknown> {
  return verify(request, [SECRET, publicKeyOf(PRIVATE_KEY)], { now, ...options })
}

const failures: Record<string, () => unknown> = {
  'header missing': async () => refused({ headers: { ...headers, 'webhook-id': '' }, body: BODY }),
  'id malformed': async () =>
    refused({ headers: { ...headers, 'webhook-id': `${BODY} ${signature}` }, body: BODY }),
  'time malformed': async () =>
    refused({ headers: { ...headers, 'webhook-timestamp': signature }, body: BODY }),
  'signature malformed': async () =>
    refused({ headers: { ...headers, 'webhook-signature': signature.replaceAll(',', '') }, body: BODY }),
  'too old': async () => refused(genuine, { now: () => now() + 1e6 }),
  'too new': async () => refused(genuine, { now: () => now() - 1e6 }),
  'body changed': async () => refused({ headers, body: BODY.replace('1', '2') }),
  'secret of another': async () => verify(delivery(BODY, newSecret('v1')), SECRET, { now }),
  'body no JSON': async () => refused(delivery(NO_JSON)),
  replayed: async () => refused(genuine, { seen: () => true }),
  // As a caller without types would.
  'body parsed': async () => refused({ headers, body: JSON.parse(BODY) as string }),
  'secret cut off': () => signer(SECRET.slice(0, -1)),
  'secret too short': () => signer(SECRET.slice(0, 10)),
  'secret without prefix': () => signer(SECRET.slice(6)),
  'private key cut off': () => signer(PRIVATE_KEY.slice(0, -8)),
  'private key to verify with': async () => verify(genuine, PRIVATE_KEY),
  'public key of a shared secret': () => publicKeyOf(SECRET),
  'key too short': () => secretKey(KEY.slice(4)),
  'another key': () => decrypt(secretKey(randomBytes(32).toString('hex')), stored, 'ep_1'),
  'stored for another': () => decrypt(secretKey(KEY), stored, 'ep_2'),
  'stored secret not encrypted': () => decrypt(secretKey(KEY), SECRET, 'ep_1'),
  'stored secret cut off': () => decrypt(secretKey(KEY), stored.slice(0, 40), 'ep_1'),
}

/** Eight characters in a row of any of these would be a part of it. */
const CONFIDENTIAL = [
  SECRET.slice(6),
  PRIVATE_KEY.slice(5),
  KEY,
  ...signature.split(' ').map((part) => part.split(',')[1] ?? ''),
  '4111111111111111',
  stored.split('.')[2] ?? '',
]
const parts = CONFIDENTIAL.flatMap((text) =>
  Array.from({ length: text.length - 7 }, (_, at) => text.slice(at, at + 8)),
)

async function errorOf(fail: () => unknown): Promise<unknown> {
  try {
    await fail()
  } catch (error) {
    return error
  }
  throw new Error('nothing was refused')
}

it.each(Object.entries(failures))(
  'WH-NFR-003: no part of a body, signature, secret or key is in an error: %s',
  async (_, fail) => {
    const error = await errorOf(fail)
    expect(isLeaseholdError(error)).toBe(true)
    // As loggers write it: with its stack (less the lines of code), its cause and its own fields.
    const shown = `${String(error)} ${inspect(error, { depth: 9, showHidden: true })} ${JSON.stringify(error)}`
    expect(parts.filter((part) => shown.includes(part))).toEqual([])
  },
)

it('the failures above cover every reason to refuse a request', async () => {
  const errors = await Promise.all(Object.values(failures).map(errorOf))
  const reasons = new Set(errors.filter((error) => isWebhookInvalid(error)).map(({ reason }) => reason))
  expect([...reasons].toSorted()).toEqual([...REFUSALS].toSorted())
})
