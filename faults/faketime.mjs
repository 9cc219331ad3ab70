// Debian's libfaketime, which gives a process another clock.
import { access, readdir } from 'node:fs/promises'
import { join } from 'node:path'

const LIBRARIES = '/usr/lib'

/** The path of the library; `threads`: the one for processes with threads. Undefined: it is not installed. */
export async function findFaketime({ threads = false } = {}) {
  const name = threads ? 'libfaketimeMT.so.1' : 'libfaketime.so.1'
  const given = process.env['FAKETIME_DIRECTORY']
  const triplets = await readdir(LIBRARIES).catch(() => [])
  const directories = [given ?? [], triplets.map((triplet) => join(LIBRARIES, triplet, 'faketime'))].flat()
  for (const directory of directories) {
    const path = join(directory, name)
    if (
      await access(path).then(
        () => true,
        () => false,
      )
    )
      return path
  }
  return undefined
}

export async function skipWithoutFaketime() {
  const found = await findFaketime()
  return found === undefined ? 'libfaketime is not installed (apt-get install libfaketime)' : undefined
}
