import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { auditEntries } from '../../../test/support/outbox-rows.ts'
import { forgetWebhooks } from '../../../test/support/webhook-endpoints.ts'
import { openDatabase } from '../../postgres/database.ts'
import { decrypt, newSecret, publicKeyOf } from '../signing/index.ts'
import { endpoints } from './endpoints.ts'
import { keysOf, neededKeys } from './secrets.ts'

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
  readonly left_ms: number | null
}

async function stored(id: string): Promise<StoredSecrets> {
  const { rows } = await db.query<StoredSecrets>({
    text: `select secret, previous_secret, extract(epoch from previous_secret_until - updated_at)::float8 * 1000 as left_ms
from leasehold.webhook_endpoints where id = $1`,
    values: [id],
  })
  return rows[0] ?? { secret: '', previous_secret: null, left_ms: null }
}

function opened(key: string, id: string, text: string | null): string {
  return decrypt(neededKeys(keysOf(key)), text ?? '', id)
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

  it('is shown when it is made and never again, and is stored encrypted', async () => {
    const { endpoint, secret } = await managed.create({ url: HOOKS }, BY)
    expect(opened(OLD_KEY, endpoint.id, (await stored(endpoint.id)).secret)).toBe(secret)
    const shown = JSON.stringify([
      await managed.get(endpoint.id),
      await managed.list(),
      await auditEntries(db),
    ])
    expect(shown + (await everything())).not.toContain(secret.slice('whsec_'.length))
    expect(shown).not.toContain('enc1')
  })

  it('can be given', async () => {
    const given = newSecret('v1')
    const { endpoint, secret } = await managed.create({ url: HOOKS, secret: given }, BY)
    expect(secret).toBe(given)
    expect(opened(OLD_KEY, endpoint.id, (await stored(endpoint.id)).secret)).toBe(given)
    expect(await everything()).not.toContain(given.slice('whsec_'.length))
  })

  it('of v1a has a public key, which anybody may see', async () => {
    const { endpoint, secret, publicKey } = await managed.create({ url: HOOKS, signing: 'v1a' }, BY)
    expect(secret).toMatch(/^whsk_/)
    expect(publicKey).toBe(publicKeyOf(secret))
    expect(await managed.get(endpoint.id)).toMatchObject({ signing: 'v1a', publicKey })
    expect(await endpoints(db, { secretKey: '' }).get(endpoint.id)).toMatchObject({ publicKey: null })
  })

  it('is never stored without a key', async () => {
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
    'a key that is none is refused unseen: %#',
    (key) => {
      expect(() => endpoints(db, { secretKey: key })).toThrow(/LEASEHOLD_SECRET_KEY is not 32 bytes/)
      expect(() => endpoints(db, { secretKey: key })).not.toThrow(key)
    },
  )

  it('comes from the environment where no key is given', () => {
    expect(keysOf(undefined, {})).toBeUndefined()
    expect(keysOf(undefined, { LEASEHOLD_SECRET_KEY: NEW_KEY })?.newest.id).toBe(keysOf(NEW_KEY)?.newest.id)
    expect(keysOf(OLD_KEY, { LEASEHOLD_SECRET_KEY: NEW_KEY })?.newest.id).toBe(keysOf(OLD_KEY)?.newest.id)
  })
})

describe('rotation', () => {
  const managed = endpoints(db, { secretKey: OLD_KEY })

  it('makes a new secret, and the one before signs along for a day', async () => {
    const { endpoint, secret: first } = await managed.create({ url: HOOKS }, BY)
    const rotated = await managed.rotateSecret(endpoint.id, { principal: 'bob', reason: 'yearly' })
    expect(rotated.secret).not.toBe(first)
    const now = await stored(endpoint.id)
    expect(opened(OLD_KEY, endpoint.id, now.secret)).toBe(rotated.secret)
    expect(opened(OLD_KEY, endpoint.id, now.previous_secret)).toBe(first)
    expect(now.left_ms).toBe(24 * HOUR_MS)
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

  it('a second one within the window takes the place of the older', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    const second = await managed.rotateSecret(endpoint.id, BY)
    const third = await managed.rotateSecret(endpoint.id, BY, { keepOldForMs: HOUR_MS })
    const now = await stored(endpoint.id)
    expect(opened(OLD_KEY, endpoint.id, now.secret)).toBe(third.secret)
    expect(opened(OLD_KEY, endpoint.id, now.previous_secret)).toBe(second.secret)
    expect(now.left_ms).toBe(HOUR_MS)
  })

  it('with no window ends the old one at once, and one before that', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    await managed.rotateSecret(endpoint.id, BY)
    const given = newSecret('v1')
    const rotated = await managed.rotateSecret(endpoint.id, BY, { keepOldForMs: 0, secret: given })
    expect(rotated).toMatchObject({ secret: given, endpoint: { previousSecretUntil: null } })
    expect(await stored(endpoint.id)).toMatchObject({ previous_secret: null, left_ms: null })
  })

  it('of v1a shows the new public key, and takes no shared secret', async () => {
    const { endpoint } = await managed.create({ url: HOOKS, signing: 'v1a' }, BY)
    const rotated = await managed.rotateSecret(endpoint.id, BY)
    expect(rotated.publicKey).toBe(publicKeyOf(rotated.secret))
    expect(await managed.get(endpoint.id)).toMatchObject({ publicKey: rotated.publicKey })
    await expect(managed.rotateSecret(endpoint.id, BY, { secret: newSecret('v1') })).rejects.toThrow(
      'secret must begin with whsk_',
    )
  })

  it('refuses a window that is none, and nobody as principal', async () => {
    const { endpoint } = await managed.create({ url: HOOKS }, BY)
    await expect(managed.rotateSecret(endpoint.id, { principal: '' }, { keepOldForMs: -1 })).rejects.toThrow(
      /principal is ''.*keepOldForMs is -1, but must be a whole number from 0/,
    )
  })
})

describe('a new key', () => {
  it('encrypts from now on, the older one still opens, and rotation leaves nothing under it', async () => {
    const { endpoint, secret } = await endpoints(db, { secretKey: OLD_KEY }).create({ url: HOOKS }, BY)
    const both = endpoints(db, { secretKey: `${NEW_KEY}, ${OLD_KEY}` })
    const rotated = await both.rotateSecret(endpoint.id, BY)
    const now = await stored(endpoint.id)
    expect(opened(NEW_KEY, endpoint.id, now.secret)).toBe(rotated.secret)
    expect(opened(NEW_KEY, endpoint.id, now.previous_secret)).toBe(secret)
  })

  it('alone cannot keep the old secret, and says so; without a window it is not needed', async () => {
    const { endpoint } = await endpoints(db, { secretKey: OLD_KEY }).create({ url: HOOKS }, BY)
    const before = await stored(endpoint.id)
    const alone = endpoints(db, { secretKey: NEW_KEY })
    await expect(alone.rotateSecret(endpoint.id, BY)).rejects.toThrow('Add the older key after the newest')
    expect(await stored(endpoint.id)).toEqual(before)
    const { secret } = await alone.rotateSecret(endpoint.id, BY, { keepOldForMs: 0 })
    expect(opened(NEW_KEY, endpoint.id, (await stored(endpoint.id)).secret)).toBe(secret)
  })

  it('encrypts everything anew when asked to, the audit has which, and a second time there is nothing to do', async () => {
    const old = endpoints(db, { secretKey: OLD_KEY })
    const made = await Promise.all(Array.from({ length: 205 }, async () => old.create({ url: HOOKS }, BY)))
    const ids = made.map(({ endpoint }) => endpoint.id)
    const [first] = made
    const rotated = await old.rotateSecret(first?.endpoint.id ?? '', BY)
    const both = endpoints(db, { secretKey: `${NEW_KEY},${OLD_KEY}` })
    const fresh = await both.create({ url: HOOKS }, BY)

    expect(await both.encryptAnew({ principal: 'ada', reason: 'a new key' })).toBe(205)
    for (const { endpoint, secret } of made.slice(1)) {
      expect(opened(NEW_KEY, endpoint.id, (await stored(endpoint.id)).secret)).toBe(secret)
    }
    const twice = await stored(first?.endpoint.id ?? '')
    expect(opened(NEW_KEY, first?.endpoint.id ?? '', twice.secret)).toBe(rotated.secret)
    expect(opened(NEW_KEY, first?.endpoint.id ?? '', twice.previous_secret)).toBe(first?.secret)
    expect(opened(NEW_KEY, fresh.endpoint.id, (await stored(fresh.endpoint.id)).secret)).toBe(fresh.secret)
    const entries = (await auditEntries(db)).filter(({ action }) => action === 'webhooks.endpoint.encrypt')
    expect(entries.flatMap(({ details }) => details['endpoints'])).toEqual(ids.toSorted())
    expect(entries[0]).toMatchObject({ principal: 'ada', details: { reason: 'a new key' } })
    expect(await both.encryptAnew(BY)).toBe(0)
  })

  it('does not encrypt anew what it cannot open, and changes nothing then', async () => {
    const { endpoint } = await endpoints(db, { secretKey: OLD_KEY }).create({ url: HOOKS }, BY)
    const before = await stored(endpoint.id)
    await expect(endpoints(db, { secretKey: NEW_KEY }).encryptAnew(BY)).rejects.toMatchObject({
      code: 'SECRET_KEY_INVALID',
    })
    expect(await stored(endpoint.id)).toEqual(before)
  })

  it('a ciphertext that was moved to another endpoint does not open there', async () => {
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
