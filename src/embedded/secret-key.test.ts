import { readdir, readFile, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { secretKey } from '../webhooks/signing/encryption.ts'
import { embeddedSecretKey } from './index.ts'

let root = ''
beforeAll(async () => {
  root = await temporaryDirectory()
})
afterAll(async () => removeDirectory(root))

it('the key of an embedded server is made once and kept for its owner alone', async () => {
  const directory = join(root, '.leasehold')
  const key = await embeddedSecretKey(directory)
  expect(() => secretKey(key)).not.toThrow()
  expect(await embeddedSecretKey(directory)).toBe(key)
  expect((await readFile(join(directory, 'secret-key'), 'utf8')).trim()).toBe(key)
  expect((await stat(join(directory, 'secret-key'))).mode & 0o777).toBe(0o600)
})

it('of many who make it at the same moment all have the same, and nothing else is left', async () => {
  const directory = join(root, 'many')
  const keys = await Promise.all(Array.from({ length: 20 }, async () => embeddedSecretKey(directory)))
  expect(new Set(keys).size).toBe(1)
  expect(await readdir(directory)).toEqual(['secret-key'])
})
