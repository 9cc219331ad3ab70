import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { forgetWebhooks } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { decrypt } from '../signing/encryption.ts'
import { newSecret, publicKeyOf } from '../signing/secret.ts'
import { endpoints } from './endpoints.ts'
import { decryptHeaders, readSecretKeys, requireSecretKeys } from './secrets.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())
beforeEach(async () => forgetWebhooks(db))

const OLD_KEY = Buffer.alloc(32, 1).toString('base64')
const NEW_KEY = Buffer.alloc(32, 2).toString('hex')
const BY = { principal: 'ada' }
const HOOKS = 'https://receiver.example/hooks'
const HOUR_MS = 3_600_000

interface StoredSecrets {
  readonly secret: string
  readonly previous_secret: string | null
  readonly remaining_ms: number | null
}

async function stored(id: string): Promise<StoredSecrets> {
  const { rows } = await db.query<StoredSecrets>({
    text: `select secret, previous_secret, extract(epoch from previous_secret_until - updated_at)::float8 * 1000 as remaining_ms
from leasehold.webhook_endpoints where id = $1`,
    values: [id],
  })
  return rows[0] ?? { secret: '', previous_secret: null, remaining_ms: null }
}

function decrypted(key: string, id: string, text: string | null): string {
  return decrypt(requireSecretKeys(readSecretKeys(key)), text ?? '', id)
}

/** Everything that is stored, in one text. */
async function everything(): Promise<string> {
  const { rows } = await db.query({
    text: 'select e::text, a::text from leasehold.webhook_endpoints as e, leasehold.audit as a',
  })
  return JSON.stringify(rows)
}

describe('a secret', () => {
  const managed = endpoints(db, { secretKey: OLD_KEY })

  it('a secret is shown once, when it is made, and is stored encrypted', async () => {
    const { endpoint, secret } = await managed.create({ url: HOOKS }, BY)
    expect(decrypted(OLD_KEY, endpoint.id, (await stored(endpoint.id)).secret)).toBe(secret)
    const shown = JSON.stringify([
      await managed.get(endpoint.id),
      await managed.list(),
      await auditEntries(db),
    ])
    expect(shown + (await everything())).not.toContain(secret.slice('whsec_'.length))
    expect(shown).not.toContain('enc1')
  })

  it('create accepts a given secret', async () => {
    const given = newSecret('v1')
    const { endpoint, secret } = await managed.create({ url: HOOKS, secret: given }, BY)
    expect(secret).toBe(given)
    expect(decrypted(OLD_KEY, endpoint.id, (await stored(endpoint.id)).secret)).toBe(given)
    expect(await everything()).not.toContain(given.slice('whsec_'.length))
  })

  it('a v1a endpoint shows its public key', async () => {
    const { endpoint, secret, publicKey } = await managed.create({ url: HOOKS, signing: 'v1a' }, BY)
    expect(secret).toMatch(/^whsk_/)
    expect(publicKey).toBe(publicKeyOf(secret))
    expect(await managed.get(endpoint.id)).toMatchObject({ signing: 'v1a', publicKey })
    expect(await endpoints(db, { secretKey: '' }).get(endpoint.id)).toMatchObject({ publicKey: null })
  })

  it('without a key, no secret is stored', async () => {
    const without = endpoints(db, { secretKey: '' })
    const problem = await without.create({ url: HOOKS }, BY).catch((error: unknown) => error)
    expect(problem).toMatchObject({ code: 'SECRET_KEY_INVALID' })
    expect(String(problem)).toMatch(/LEASEHOLD_SECRET_KEY.*openssl rand -base64 32.*node -p/s)
    expect((await without.list()).endpoints).toEqual([])

    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    const before = await stored(endpoint.id)
    await expect(without.rotateSecret(endpoint.id, BY)).rejects.toMatchObject({ code: 'SECRET_KEY_INVALID' })
    expect(await stored(endpoint.id)).toEqual(before)
    // What touches no secret needs no key.
    expect(await without.update(endpoint.id, { concurrency: 2 }, BY)).toMatchObject({ concurrency: 2 })
  })

  it.each(['c2hvcnQ=', `${OLD_KEY},short`, 'x'.repeat(64)])(
    'an invalid key is refused, and the error does not repeat it: %#',
    (key) => {
      expect(() => endpoints(db, { secretKey: key })).toThrow(/LEASEHOLD_SECRET_KEY is not 32 bytes/)
      expect(() => endpoints(db, { secretKey: key })).not.toThrow(key)
    },
  )

  it('the key comes from the environment unless it is given', () => {
    expect(readSecretKeys(undefined, {})).toBeUndefined()
    expect(readSecretKeys(undefined, { LEASEHOLD_SECRET_KEY: NEW_KEY })?.newest.id).toBe(
      readSecretKeys(NEW_KEY)?.newest.id,
    )
    expect(readSecretKeys(OLD_KEY, { LEASEHOLD_SECRET_KEY: NEW_KEY })?.newest.id).toBe(
      readSecretKeys(OLD_KEY)?.newest.id,
    )
  })
})

/** The stored headers of an endpoint, decrypted. */
async function sentHeaders(key: string, id: string): Promise<Readonly<Record<string, string>>> {
  const text = 'select headers from leasehold.webhook_endpoints where id = $1'
  const { rows } = await db.query<{ headers: Record<string, string> }>({ text, values: [id] })
  return decryptHeaders(requireSecretKeys(readSecretKeys(key)), id, rows[0]?.headers ?? {})
}

describe('headers', () => {
  const managed = endpoints(db, { secretKey: OLD_KEY })
  const AUTHORIZATION = 'Bearer t0p-5ecret'

  it('header values are stored encrypted and are shown nowhere, only their names are', async () => {
    const headers = { Authorization: AUTHORIZATION, 'x-team': 'blue' }
    const created = await managed.create({ url: HOOKS, headers }, BY)
    const { id } = created.endpoint
    expect(await sentHeaders(OLD_KEY, id)).toEqual({ authorization: AUTHORIZATION, 'x-team': 'blue' })
    const changed = await managed.update(id, { headers: { authorization: `${AUTHORIZATION}-2` } }, BY)
    expect(await sentHeaders(OLD_KEY, id)).toEqual({ authorization: `${AUTHORIZATION}-2` })

    const shown = [
      created,
      changed,
      await managed.get(id),
      await managed.list(),
      await managed.rotateSecret(id, BY),
      await managed.disable(id, BY),
      await managed.enable(id, BY),
      await auditEntries(db),
    ]
    const text = JSON.stringify(shown) + (await everything())
    expect(text).not.toContain('t0p-5ecret')
    expect(text).not.toContain('blue')
    expect(changed.headers).toEqual({ authorization: '***' })
    expect(created.endpoint.headers).toEqual({ authorization: '***', 'x-team': '***' })
  })

  it('an endpoint that was read and is written back does not lose its header values', async () => {
    const { endpoint } = await managed.create({ url: HOOKS, headers: { authorization: AUTHORIZATION } }, BY)
    await expect(managed.update(endpoint.id, { headers: endpoint.headers }, BY)).rejects.toThrow(
      'headers: the value of authorization is ***, which stands for a hidden value',
    )
    expect(await sentHeaders(OLD_KEY, endpoint.id)).toEqual({ authorization: AUTHORIZATION })
  })

  it('without a key, no headers are stored', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    const without = endpoints(db, { secretKey: '' })
    await expect(
      without.update(endpoint.id, { headers: { authorization: AUTHORIZATION } }, BY),
    ).rejects.toMatchObject({ code: 'SECRET_KEY_INVALID' })
    expect(await sentHeaders(OLD_KEY, endpoint.id)).toEqual({})
  })

  it.each(['{"authorization": "Bearer t0p-5ecret"}', '{"a": 1}', '{"a": ["enc1.x"]}', '{"a": null}'])(
    'the table refuses a header value in plain text: %s',
    async (headers) => {
      const { endpoint } = await managed.create({ url: HOOKS }, BY)
      await expect(
        db.query({
          text: 'update leasehold.webhook_endpoints set headers = $2 where id = $1',
          values: [endpoint.id, headers],
        }),
      ).rejects.toThrow('webhook_endpoints_header_values_are_encrypted')
    },
  )

  it('a secret that was copied into a header is not decrypted there', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    await db.query({
      text: `update leasehold.webhook_endpoints set headers = jsonb_build_object('x', secret) where id = $1`,
      values: [endpoint.id],
    })
    await expect(sentHeaders(OLD_KEY, endpoint.id)).rejects.toMatchObject({ code: 'SECRET_DAMAGED' })
  })

  it('an endpoint can be named by its id in capital letters', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    const id = endpoint.id.toUpperCase()
    await managed.update(id, { headers: { authorization: AUTHORIZATION } }, BY)
    const { secret } = await managed.rotateSecret(id, BY)
    expect(await sentHeaders(OLD_KEY, endpoint.id)).toEqual({ authorization: AUTHORIZATION })
    expect(decrypted(OLD_KEY, endpoint.id, (await stored(endpoint.id)).secret)).toBe(secret)
  })
})

describe('rotation', () => {
  const managed = endpoints(db, { secretKey: OLD_KEY })

  it('rotation makes a new secret and retains the previous one for a day', async () => {
    const { endpoint, secret: first } = await managed.create({ url: HOOKS }, BY)
    const rotated = await managed.rotateSecret(endpoint.id, { principal: 'bob', reason: 'yearly' })
    expect(rotated.secret).not.toBe(first)
    const now = await stored(endpoint.id)
    expect(decrypted(OLD_KEY, endpoint.id, now.secret)).toBe(rotated.secret)
    expect(decrypted(OLD_KEY, endpoint.id, now.previous_secret)).toBe(first)
    expect(now.remaining_ms).toBe(24 * HOUR_MS)
    expect(rotated.endpoint.previousSecretUntil?.getTime()).toBe(
      rotated.endpoint.updatedAt.getTime() + 24 * HOUR_MS,
    )
    expect((await auditEntries(db))[1]).toEqual({
      principal: 'bob',
      action: 'webhooks.endpoint.rotate',
      target: endpoint.id,
      details: { reason: 'yearly', keepOldForMs: 24 * HOUR_MS },
    })
    expect(await everything()).not.toContain(rotated.secret.slice('whsec_'.length))
  })

  it('a second rotation within the window replaces the previous secret', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    const second = await managed.rotateSecret(endpoint.id, BY)
    const third = await managed.rotateSecret(endpoint.id, BY, { keepOldForMs: HOUR_MS })
    const now = await stored(endpoint.id)
    expect(decrypted(OLD_KEY, endpoint.id, now.secret)).toBe(third.secret)
    expect(decrypted(OLD_KEY, endpoint.id, now.previous_secret)).toBe(second.secret)
    expect(now.remaining_ms).toBe(HOUR_MS)
  })

  it('rotation without a window removes the previous secrets at once', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    await managed.rotateSecret(endpoint.id, BY)
    const given = newSecret('v1')
    const rotated = await managed.rotateSecret(endpoint.id, BY, { keepOldForMs: 0, secret: given })
    expect(rotated).toMatchObject({ secret: given, endpoint: { previousSecretUntil: null } })
    expect(await stored(endpoint.id)).toMatchObject({ previous_secret: null, remaining_ms: null })
  })

  it('rotation of a v1a endpoint shows the new public key and refuses a shared secret', async () => {
    const { endpoint } = await managed.create({ url: HOOKS, signing: 'v1a' }, BY)
    const rotated = await managed.rotateSecret(endpoint.id, BY)
    expect(rotated.publicKey).toBe(publicKeyOf(rotated.secret))
    expect(await managed.get(endpoint.id)).toMatchObject({ publicKey: rotated.publicKey })
    await expect(managed.rotateSecret(endpoint.id, BY, { secret: newSecret('v1') })).rejects.toThrow(
      'secret must begin with whsk_',
    )
  })

  it('rotation refuses a misspelt option, because a leaked secret would remain in use', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    const before = await stored(endpoint.id)
    const misspelt: object = { keepOldFor: 0 }
    await expect(managed.rotateSecret(endpoint.id, BY, misspelt)).rejects.toThrow(
      'unknown option keepOldFor (did you mean keepOldForMs?)',
    )
    expect(await stored(endpoint.id)).toEqual(before)
    expect(() => endpoints(db, JSON.parse('{"secretkey": ""}'))).toThrow('did you mean secretKey?')
  })

  it('rotation refuses an invalid window and an empty principal', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    await expect(managed.rotateSecret(endpoint.id, { principal: '' }, { keepOldForMs: -1 })).rejects.toThrow(
      /principal is ''.*keepOldForMs is -1, but must be a whole number from 0/,
    )
  })
})

describe('a new key', () => {
  it('after a new key was added, rotation encrypts both secrets with it', async () => {
    const { endpoint, secret } = await endpoints(db, { secretKey: OLD_KEY }).create({ url: HOOKS }, BY)
    const both = endpoints(db, { secretKey: `${NEW_KEY}, ${OLD_KEY}` })
    const rotated = await both.rotateSecret(endpoint.id, BY)
    const now = await stored(endpoint.id)
    expect(decrypted(NEW_KEY, endpoint.id, now.secret)).toBe(rotated.secret)
    expect(decrypted(NEW_KEY, endpoint.id, now.previous_secret)).toBe(secret)
  })

  it('without the old key, a rotation with a window fails and one without a window succeeds', async () => {
    const { endpoint } = await endpoints(db, { secretKey: OLD_KEY }).create({ url: HOOKS }, BY)
    const before = await stored(endpoint.id)
    const alone = endpoints(db, { secretKey: NEW_KEY })
    await expect(alone.rotateSecret(endpoint.id, BY)).rejects.toThrow('Add the older key after the newest')
    expect(await stored(endpoint.id)).toEqual(before)
    const { secret } = await alone.rotateSecret(endpoint.id, BY, { keepOldForMs: 0 })
    expect(decrypted(NEW_KEY, endpoint.id, (await stored(endpoint.id)).secret)).toBe(secret)
  })

  it('reencryptSecrets encrypts all secrets with the newest key, is audited, and changes nothing the second time', async () => {
    const old = endpoints(db, { secretKey: OLD_KEY, maxPerTenant: 1_000 })
    // One after the other: each needs a connection, and waiting for one has a time limit.
    const made: Awaited<ReturnType<typeof old.create>>[] = []
    while (made.length < 205) made.push(await old.create({ url: HOOKS }, BY))
    const ids = made.map(({ endpoint }) => endpoint.id)
    const [first] = made
    const rotated = await old.rotateSecret(first?.endpoint.id ?? '', BY)
    const both = endpoints(db, { secretKey: `${NEW_KEY},${OLD_KEY}`, maxPerTenant: 1_000 })
    const fresh = await both.create({ url: HOOKS }, BY)

    expect(await both.reencryptSecrets({ principal: 'ada', reason: 'a new key' })).toBe(205)
    for (const { endpoint, secret } of made.slice(1)) {
      expect(decrypted(NEW_KEY, endpoint.id, (await stored(endpoint.id)).secret)).toBe(secret)
    }
    const twice = await stored(first?.endpoint.id ?? '')
    expect(decrypted(NEW_KEY, first?.endpoint.id ?? '', twice.secret)).toBe(rotated.secret)
    expect(decrypted(NEW_KEY, first?.endpoint.id ?? '', twice.previous_secret)).toBe(first?.secret)
    expect(decrypted(NEW_KEY, fresh.endpoint.id, (await stored(fresh.endpoint.id)).secret)).toBe(fresh.secret)
    const entries = (await auditEntries(db)).filter(({ action }) => action === 'webhooks.endpoint.encrypt')
    expect(entries.flatMap(({ details }) => details['endpoints'])).toEqual(ids.toSorted())
    expect(entries[0]).toMatchObject({ principal: 'ada', details: { reason: 'a new key' } })
    expect(await both.reencryptSecrets(BY)).toBe(0)
  })

  it('reencryptSecrets encrypts the headers with the newest key, also where the secret is under it already', async () => {
    const headers = { authorization: 'Bearer one' }
    const { endpoint } = await endpoints(db, { secretKey: OLD_KEY }).create({ url: HOOKS, headers }, BY)
    const both = endpoints(db, { secretKey: `${NEW_KEY},${OLD_KEY}` })
    await both.rotateSecret(endpoint.id, BY, { keepOldForMs: 0 })
    expect(await both.reencryptSecrets(BY)).toBe(1)
    expect(await sentHeaders(NEW_KEY, endpoint.id)).toEqual(headers)
    expect(await both.reencryptSecrets(BY)).toBe(0)
  })

  it('reencryptSecrets without the old key fails and changes nothing', async () => {
    const { endpoint } = await endpoints(db, { secretKey: OLD_KEY }).create({ url: HOOKS }, BY)
    const before = await stored(endpoint.id)
    await expect(endpoints(db, { secretKey: NEW_KEY }).reencryptSecrets(BY)).rejects.toMatchObject({
      code: 'SECRET_KEY_INVALID',
    })
    expect(await stored(endpoint.id)).toEqual(before)
  })

  it('a ciphertext that was copied to another endpoint cannot be decrypted there', async () => {
    const managed = endpoints(db, { secretKey: OLD_KEY })
    const one = await managed.create({ url: HOOKS, signing: 'v1a' }, BY)
    const other = await managed.create({ url: HOOKS, signing: 'v1a' }, BY)
    await db.query({
      text: `update leasehold.webhook_endpoints set secret = (
  select secret from leasehold.webhook_endpoints where id = $1) where id = $2`,
      values: [one.endpoint.id, other.endpoint.id],
    })
    await expect(managed.get(other.endpoint.id)).rejects.toMatchObject({ code: 'SECRET_DAMAGED' })
  })
})
