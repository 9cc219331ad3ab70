import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { TestRunner } from 'vitest'

const PROJECT = fileURLToPath(new URL('../../', import.meta.url))
// Install scripts download what no test needs.
const INSTALL = ['ci', '--prefer-offline', '--no-audit', '--no-fund', '--ignore-scripts']
const UNREACHABLE =
  /\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT)\b/
const folders = new Map<string, Promise<void>>()

/**
 * Installs the packages of a folder that has a lock file of its own, its path relative to the project; at once if they
 * are installed already. Call it in a test: if the registry cannot be reached, the test is skipped and the reason is
 * printed; with LEASEHOLD_REQUIRE_BROKERS=1, as in CI, it fails. A folder must be used by one test file only, because
 * files run at the same time.
 */
export async function installed(folder: string): Promise<void> {
  const installing = folders.get(folder) ?? install(join(PROJECT, folder))
  folders.set(folder, installing)
  return installing.catch((error: unknown) => {
    const isSkipped = UNREACHABLE.test(String(error)) && process.env['LEASEHOLD_REQUIRE_BROKERS'] !== '1'
    const test = TestRunner.getCurrentTest()
    if (!isSkipped || test === undefined) throw error
    const reason = `the packages of ${folder} are not installed, and the registry cannot be reached`
    process.stderr.write(`skipped: ${reason}\n`)
    test.context.skip(reason)
  })
}

async function install(directory: string): Promise<void> {
  const lock = await readFile(join(directory, 'package-lock.json'))
  const hash = createHash('sha256').update(lock).digest('hex')
  // `npm ci` empties node_modules first, and the marker with it.
  const marker = join(directory, 'node_modules', '.leasehold-installed')
  if ((await readFile(marker, 'utf8').catch(() => '')) === hash) return
  await promisify(execFile)('npm', INSTALL, { cwd: directory })
  await writeFile(marker, hash)
}
