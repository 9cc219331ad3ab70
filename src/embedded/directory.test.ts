import {
  chmod,
  chown,
  cp,
  lstat,
  readFile,
  readdir,
  readlink,
  realpath,
  rm,
  stat,
  symlink,
  writeFile,
} from 'node:fs/promises'
import { dirname, join } from 'node:path'

import { Client } from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'

import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { secretKey } from '../webhooks/signing/encryption.ts'
import { locatePackage } from './binaries.ts'
import { REACHABLE_ROOT } from './account.ts'
import { embeddedSecretKey, findEmbedded } from './index.ts'
import { start } from './server.ts'

async function query(url: string, text: string): Promise<unknown[]> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    return (await client.query<object>(text)).rows
  } finally {
    await client.end()
  }
}

// Only root runs the server under another account.
describe.skipIf(process.getuid?.() !== 0)('a directory that only root can enter', () => {
  // Its own version number, so that the copy of the programs can be deleted afterwards.
  const version = `18.0.0-test.${process.pid}`
  const programs = join(REACHABLE_ROOT, 'programs', `${process.platform}-${process.arch}-${version}`)
  let closed: string

  beforeEach(async () => {
    closed = await temporaryDirectory()
    await cp(await locatePackage(), join(closed, 'package'), { recursive: true, verbatimSymlinks: true })
    const manifest = join(closed, 'package', 'package.json')
    await writeFile(
      manifest,
      (await readFile(manifest, 'utf8')).replace(/"version": "[^"]+"/, `"version": "${version}"`),
    )
    await chmod(closed, 0o700)
  })

  afterEach(async () => {
    const link = join(closed, '.leasehold', 'data')
    const data = await readlink(link).catch(() => undefined)
    if (data !== undefined) await rm(dirname(data), { recursive: true, force: true })
    await removeDirectory(closed)
    await removeDirectory(programs)
  })

  async function startHere(log: string[] = []) {
    return start(
      { directory: join(closed, '.leasehold'), settings: { fsync: 'off' }, onLog: (line) => log.push(line) },
      () => Promise.resolve(join(closed, 'package')),
    )
  }

  it('a server in a directory that only root can enter has its programs and data in a directory that its account can reach', async () => {
    const first = await startHere()
    expect(first).toMatchObject({ origin: 'initialised', directory: join(closed, '.leasehold') })
    await query(first.url, 'create table facts as select 42 as answer')
    await first.stop()

    const link = join(closed, '.leasehold', 'data')
    expect((await lstat(link)).isSymbolicLink()).toBe(true)
    expect(await realpath(link)).toMatch(new RegExp(`^${REACHABLE_ROOT}/`))

    const second = await startHere()
    expect(second.origin).toBe('started')
    expect(await query(second.url, 'select answer from facts')).toEqual([{ answer: 42 }])
    await second.stop()
  })

  it('after the directory was deleted the server starts with empty data, and the log names the old data', async () => {
    await (await startHere()).stop()
    const old = await readlink(join(closed, '.leasehold', 'data'))
    await removeDirectory(join(closed, '.leasehold'))
    const log: string[] = []
    const server = await startHere(log)
    await server.stop()
    expect(server.origin).toBe('initialised')
    expect(log).toContainEqual(expect.stringContaining(old))
  })
})

describe('the secret key', () => {
  let root = ''
  beforeAll(async () => {
    root = await temporaryDirectory()
  })
  afterAll(async () => removeDirectory(root))

  it('the secret key of an embedded server is created once, in a file that only its owner can read', async () => {
    const directory = join(root, '.leasehold')
    const key = await embeddedSecretKey(directory)
    expect(() => secretKey(key)).not.toThrow()
    expect(await embeddedSecretKey(directory)).toBe(key)
    expect((await readFile(join(directory, 'secret-key'), 'utf8')).trim()).toBe(key)
    expect((await stat(join(directory, 'secret-key'))).mode & 0o777).toBe(0o600)
  })

  it('processes that create the secret key at the same time get the same key, and no other file remains', async () => {
    const directory = join(root, 'many')
    const keys = await Promise.all(Array.from({ length: 20 }, async () => embeddedSecretKey(directory)))
    expect(new Set(keys).size).toBe(1)
    expect(await readdir(directory)).toEqual(['secret-key'])
  })
})

describe('a directory that somebody else can write', () => {
  let directory = ''
  beforeEach(async () => {
    directory = await temporaryDirectory()
  })
  afterEach(async () => removeDirectory(directory))

  const others: [string, () => Promise<void>][] = [
    ['that everybody can write', async () => chmod(directory, 0o777)],
  ]
  // Only root can give a directory away.
  if (process.getuid?.() === 0) others.push(['of another user', async () => chown(directory, 1000, 1000)])

  it.each(others)(
    'no server is started or looked for in a directory %s, and nothing is written',
    async (_, give) => {
      const precious = join(directory, 'precious')
      await writeFile(precious, 'precious')
      await symlink(precious, join(directory, '.gitignore'))
      await writeFile(join(directory, 'password'), 'scram-only-known')
      await give()
      const refusal = {
        code: 'EMBEDDED_FAILED',
        message: expect.stringContaining(`The directory ${directory} is not used`),
      }
      await expect(start({ directory })).rejects.toMatchObject(refusal)
      await expect(findEmbedded(directory)).rejects.toMatchObject(refusal)
      await expect(embeddedSecretKey(directory)).rejects.toMatchObject(refusal)
      expect(await readFile(precious, 'utf8')).toBe('precious')
      expect((await readdir(directory)).toSorted()).toEqual(['.gitignore', 'password', 'precious'])
    },
  )
})
