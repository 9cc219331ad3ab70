import { examine } from './examine.ts'
import { dataDirectory, placeOf, readPassword } from './place.ts'
import { DATABASE } from './server.ts'
import { urlOf } from './session.ts'
import { DEFAULT_DIRECTORY } from './start.ts'

/** The running server of this directory, if one answers and is proved to be ours; never starts one. */
export async function findEmbedded(
  directory: string = DEFAULT_DIRECTORY,
): Promise<{ url: string; port: number } | undefined> {
  const place = placeOf(directory)
  const password = await readPassword(place)
  if (password === undefined) return undefined
  const found = await examine(await dataDirectory(place), password)
  if (found.state !== 'running') return undefined
  return { url: urlOf(found.port, password, DATABASE), port: found.port }
}
