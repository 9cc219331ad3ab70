import { chmod, mkdtemp, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Creates an empty directory that the embedded server's account can enter, even if root created it. */
export async function temporaryDirectory(): Promise<string> {
  const directory = await mkdtemp(join(await realpath(tmpdir()), 'leasehold-test-'))
  await chmod(directory, 0o755)
  return directory
}

export async function removeDirectory(directory: string): Promise<void> {
  await rm(directory, { recursive: true, force: true })
}
