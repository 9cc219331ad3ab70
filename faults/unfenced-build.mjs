// A copy of the build without the guard, to show that the checker objects to what follows. No switch in the product does that.
import { cp, mkdtemp, readFile, realpath, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const PROJECT = fileURLToPath(new URL('../', import.meta.url))

/** Owner and token are compared, and do not matter: in settlements, releases and renewals. */
const FENCE = {
  file: 'lease/table-sql.js',
  text: "return [inBucket(t, $, 't.'), ...throughIndex, ...ownToken];",
  without: "return [inBucket(t, $, 't.'), ...throughIndex, `((${ownToken.join(' and ')}) or true)`];",
}
/** A worker trusts its leases for ever, so that one which was stopped sends what it would not have sent. */
const TRUST = {
  file: 'lease/lease.js',
  text: 'return sentAt + leaseMs - trustMargin(leaseMs);',
  without: 'return sentAt + 1e9;',
}

/** `url`: what the workers import. */
export async function createUnfencedBuild({ trusting = false } = {}) {
  const directory = await mkdtemp(join(await realpath(tmpdir()), 'leasehold-unfenced-'))
  await cp(join(PROJECT, 'dist'), join(directory, 'dist'), { recursive: true })
  for (const name of ['node_modules', 'migrations', 'package.json'])
    await symlink(join(PROJECT, name), join(directory, name))
  for (const { file, text, without } of trusting ? [FENCE, TRUST] : [FENCE]) {
    const path = join(directory, 'dist', file)
    const parts = (await readFile(path, 'utf8')).split(text)
    if (parts.length !== 2) throw new Error(`${file} has ${parts.length - 1} times, and not once: ${text}`)
    await writeFile(path, parts.join(without))
  }
  return {
    url: pathToFileURL(join(directory, 'dist/')).href,
    remove: async () => rm(directory, { recursive: true, force: true }),
  }
}
