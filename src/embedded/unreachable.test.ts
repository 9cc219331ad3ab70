import { chmod, cp, lstat, readFile, readlink, realpath, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'

import { Client } from 'pg'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'

import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { locatePackage } from './binaries.ts'
import { REACHABLE_ROOT } from './place.ts'
import { start } from './start.ts'

async function query(url: string, text: string): Promise<unknown[]> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    return (await client.query<object>(text)).rows
  } finally {
    await client.end()
  }
}

// Only root runs the server under another account; any other user works in place.
describe.skipIf(process.getuid?.() !== 0)('a directory that only root can enter', () => {
  // A version of this test's own, so that the copy of the programs can be removed afterwards.
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

  it('still holds the server: programs and data are where its account can reach them, found by a link', async () => {
    const first = await startHere()
    expect(first).toMatchObject({ origin: 'initialised', directory: join(closed, '.leasehold') })
    await query(first.url, 'create table kept as select 42 as answer')
    await first.stop()

    const link = join(closed, '.leasehold', 'data')
    expect((await lstat(link)).isSymbolicLink()).toBe(true)
    expect(await realpath(link)).toMatch(new RegExp(`^${REACHABLE_ROOT}/`))

    const second = await startHere()
    expect(second.origin).toBe('started')
    expect(await query(second.url, 'select answer from kept')).toEqual([{ answer: 42 }])
    await second.stop()
  })

  it('deleted and started again is a fresh server, and the log names the data that stayed', async () => {
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
