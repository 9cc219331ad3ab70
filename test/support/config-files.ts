import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll } from 'vitest'
import { removeDirectory, temporaryDirectory } from './directory.ts'

/** Directories with config files, which are removed at the end of the test file. */
export function useConfigFiles(): {
  /** What contains them all. It exists from the first test on. */
  readonly root: { readonly path: string }
  /** Makes a directory with this config file. */
  readonly directoryWith: (text: string, name?: string) => Promise<string>
} {
  const root = { path: '' }
  let files = 0
  beforeAll(async () => {
    root.path = await temporaryDirectory()
  })
  afterAll(async () => removeDirectory(root.path))
  return {
    root,
    async directoryWith(text, name = 'leasehold.config.mjs') {
      files += 1
      const directory = join(root.path, String(files))
      await mkdir(directory)
      await writeFile(join(directory, name), text)
      return directory
    },
  }
}
