import { describe, expect, it } from 'vitest'

import { newSecret, publicKeyOf, signingKey, verifyingKey } from './secret.ts'

const PAIR = '6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=='
const SEED = '6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc='

function shared(bytes: number): string {
  return `whsec_${Buffer.alloc(bytes, 7).toString('base64')}`
}

describe('a new secret', () => {
  it('a new shared secret has 32 random bytes', () => {
    const [one, other] = [newSecret('v1'), newSecret('v1')]
    expect(one).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/)
    expect(other).not.toBe(one)
    expect(signingKey(one).key.symmetricKeySize).toBe(32)
  })

  it('a new v1a secret is an ed25519 key with a public key for the receiver', () => {
    const [one, other] = [newSecret('v1a'), newSecret('v1a')]
    expect(one).toMatch(/^whsk_[A-Za-z0-9+/]{86}==$/)
    expect(other).not.toBe(one)
    const publicKey = publicKeyOf(one)
    expect(publicKey).toMatch(/^whpk_[A-Za-z0-9+/]{43}=$/)
    expect(signingKey(one)).toMatchObject({
      kind: 'v1a',
      key: { type: 'private', asymmetricKeyType: 'ed25519' },
    })
    expect(verifyingKey(publicKey)).toMatchObject({ kind: 'v1a', key: { type: 'public' } })
  })
})

describe('a given secret', () => {
  it('a shared secret may have 24 to 64 bytes', () => {
    expect(signingKey(shared(24)).kind).toBe('v1')
    expect(verifyingKey(shared(64)).kind).toBe('v1')
    for (const bytes of [0, 23, 65]) {
      expect(() => signingKey(shared(bytes))).toThrow(
        new RegExp(`^secret has ${bytes} bytes\\. Give 24 to 64`),
      )
    }
  })

  it('a private key may be an ed25519 seed, with or without its public key', () => {
    const publicKey = 'whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4='
    expect(publicKeyOf(`whsk_${PAIR}`)).toBe(publicKey)
    expect(publicKeyOf(`whsk_${SEED}`)).toBe(publicKey)
  })

  it('a private key with the public key of another is refused', () => {
    const mixed = Buffer.concat([Buffer.from(SEED, 'base64'), Buffer.alloc(32, 1)]).toString('base64')
    expect(() => signingKey(`whsk_${mixed}`)).toThrow(/^secret has a public key that is not that of its seed/)
  })

  it.each([
    ['nothing', '', /^secret does not begin with whsec_ or whsk_/],
    ['no prefix', Buffer.alloc(32).toString('base64'), /^secret does not begin with whsec_ or whsk_/],
    ['a public key', publicKeyOf(`whsk_${PAIR}`), /^secret does not begin with whsec_ or whsk_/],
    ['a space at the end', `${shared(24)} `, /^secret is not base64 after whsec_/],
    ['its padding cut off', shared(32).slice(0, -1), /^secret is not base64 after whsec_/],
    [
      'base64url',
      `whsec_${Buffer.alloc(32, 255).toString('base64url')}`,
      /^secret is not base64 after whsec_/,
    ],
    ['half a seed', `whsk_${Buffer.alloc(16).toString('base64')}`, /^secret has 16 bytes/],
  ])('a secret with %s is refused for signing', (_, secret, message) => {
    expect(() => signingKey(secret)).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }))
    expect(() => signingKey(secret)).toThrow(message)
  })

  it.each([
    ['a private key', `whsk_${PAIR}`, /^secret is a private key\. Verify with its public key/],
    ['a short public key', `whpk_${Buffer.alloc(31).toString('base64')}`, /^secret has 31 bytes/],
    ['no prefix', SEED, /^secret does not begin with whsec_ or whpk_/],
  ])('a secret that is %s is refused for verifying', (_, secret, message) => {
    expect(() => verifyingKey(secret)).toThrow(expect.objectContaining({ code: 'REQUEST_INVALID' }))
    expect(() => verifyingKey(secret)).toThrow(message)
  })

  it('a shared secret has no public key', () => {
    expect(() => publicKeyOf(shared(32))).toThrow(/^secret has no public key/)
  })
})
