import { randomBytes } from 'node:crypto'
import { inspect } from 'node:util'

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'

import { decrypt, encrypt, isUnderNewestKey, secretKey, secretKeys } from './encryption.ts'
import { newSecret } from './secret.ts'

function keyText(): string {
  return randomBytes(32).toString('base64')
}

const KEY = keyText()
const keys = secretKey(KEY)

describe('a stored secret', () => {
  it('any secret can be encrypted and decrypted', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme' }), fc.string({ minLength: 1 }), (plain, endpoint) => {
        expect(decrypt(keys, encrypt(keys, plain, endpoint), endpoint)).toBe(plain)
      }),
    )
  })

  it('a ciphertext does not reveal the secret, nor whether two secrets are equal', () => {
    const secret = newSecret('v1')
    const [one, other] = [encrypt(keys, secret, 'ep_1'), encrypt(keys, secret, 'ep_1')]
    expect(one).toMatch(/^enc1\.[0-9a-f]{12}\.[\w-]+$/)
    expect(one).not.toContain(secret.slice(6))
    expect(other).not.toBe(one)
  })

  it('a ciphertext cannot be decrypted for another endpoint', () => {
    const stored = encrypt(keys, newSecret('v1'), 'ep_1')
    expect(() => decrypt(keys, stored, 'ep_2')).toThrow(
      expect.objectContaining({
        code: 'SECRET_DAMAGED',
        message: expect.stringMatching(
          /^The stored secret of ep_2 was changed, or belongs to something else\. Rotate/,
        ),
      }),
    )
  })

  it('a ciphertext cannot be decrypted after any character was changed, removed or added', () => {
    const stored = encrypt(keys, newSecret('v1'), 'ep_1')
    const alphabet = 'ABCXYZabcxyz0189_-.=+/ '.split('')
    fc.assert(
      fc.property(
        fc.nat(stored.length - 1),
        fc.constantFrom('', ...alphabet),
        fc.boolean(),
        (at, put, add) => {
          const changed = stored.slice(0, at) + put + stored.slice(add ? at : at + 1)
          fc.pre(changed !== stored)
          expect(() => decrypt(keys, changed, 'ep_1')).toThrow(
            expect.objectContaining({ code: expect.stringMatching(/^SECRET_(DAMAGED|KEY_INVALID)$/) }),
          )
        },
      ),
      { numRuns: 500 },
    )
  })

  it.each([1, 2, 3])('a ciphertext of %j bytes has only one valid last character', (bytes) => {
    const stored = encrypt(keys, 'x'.repeat(bytes), 'ep_1')
    const others = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'.split('')
    for (const last of others.filter((other) => !stored.endsWith(other))) {
      expect(() => decrypt(keys, stored.slice(0, -1) + last, 'ep_1')).toThrow(
        expect.objectContaining({ code: 'SECRET_DAMAGED' }),
      )
    }
  })

  it.each(['', 'whsec_AAAA', 'enc1.', 'enc2.0123456789ab.AAAA', 'enc1.0123456789ab.AAAA'])(
    'a stored secret in another form is refused: %j',
    (stored) => {
      expect(() => decrypt(keys, stored, 'ep_1')).toThrow(
        /^The stored secret of ep_1 is not in the form it was stored in\./,
      )
    },
  )

  it('encrypting and decrypting need the id of an endpoint', () => {
    expect(() => encrypt(keys, 'x', '')).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }))
  })
})

describe('a key', () => {
  it('a key in base64 equals the same key in hex', () => {
    const hex = Buffer.from(KEY, 'base64').toString('hex')
    for (const text of [hex, hex.toUpperCase(), ` ${KEY}\n`]) {
      expect(decrypt(secretKey(text), encrypt(keys, 'x', 'ep_1'), 'ep_1')).toBe('x')
    }
  })

  it('a wrong key is recognised, and the error names the setting', () => {
    const other = secretKey(keyText())
    const stored = encrypt(keys, 'x', 'ep_1')
    expect(() => decrypt(other, stored, 'ep_1')).toThrow(
      expect.objectContaining({
        code: 'SECRET_KEY_INVALID',
        message: `LEASEHOLD_SECRET_KEY is not the key that the secret of ep_1 was encrypted with: that one has the id ${keys.newest.id}, given: ${other.newest.id}. Add the older key after the newest.`,
      }),
    )
  })

  it('after a new key was added, the older key still decrypts what it encrypted', () => {
    const older = encrypt(keys, 'x', 'ep_1')
    const newest = keyText()
    const both = secretKeys([newest, KEY])
    expect(decrypt(both, older, 'ep_1')).toBe('x')
    expect(isUnderNewestKey(both, older)).toBe(false)

    const reencrypted = encrypt(both, decrypt(both, older, 'ep_1'), 'ep_1')
    expect(isUnderNewestKey(both, reencrypted)).toBe(true)
    expect(decrypt(secretKey(newest), reencrypted, 'ep_1')).toBe('x')
    expect(() => decrypt(keys, reencrypted, 'ep_1')).toThrow(
      expect.objectContaining({ code: 'SECRET_KEY_INVALID' }),
    )
  })

  it.each([
    ['empty', ''],
    ['too short', randomBytes(31).toString('base64')],
    ['too long', randomBytes(33).toString('base64')],
    ['half hex', randomBytes(16).toString('hex')],
    ['a password', 'correct horse battery staple'],
    ['without its padding', KEY.slice(0, -1)],
  ])('a key that is %s is refused', (_, text) => {
    const rule = /^LEASEHOLD_SECRET_KEY is not 32 bytes as base64 or hex\. Set it to 32 random bytes/
    expect(() => secretKey(text)).toThrow(expect.objectContaining({ code: 'SECRET_KEY_INVALID' }))
    expect(() => secretKey(text)).toThrow(rule)
  })

  it('a missing key is reported', () => {
    expect(() => secretKeys([])).toThrow(/^LEASEHOLD_SECRET_KEY is not set\./)
  })

  it('a key is not shown when it is printed or written as JSON', () => {
    const bytes = Buffer.from(KEY, 'base64')
    const shown = inspect(keys, { depth: 9, showHidden: true }) + JSON.stringify(keys)
    for (const form of [KEY, bytes.toString('hex'), bytes.toString('base64url')])
      expect(shown).not.toContain(form)
  })
})
