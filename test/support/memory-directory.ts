import { chmod, mkdtemp, statfs } from 'node:fs/promises'
import { freemem } from 'node:os'
import { join } from 'node:path'

import { removeDirectory } from './directory.ts'
import { startWatchdog } from './watchdog.ts'

const MEMORY = '/dev/shm'
/** A run has had up to 1 GB of files at a time; the rest is for its processes. */
const NEEDED_BYTES = 6e9

/**
 * Puts the temporary files of this run into memory, where there is enough of it, and returns what removes them. A run
 * creates and deletes a great many files of PostgreSQL. On ext4 without a journal, each new file skips, one by one, the
 * inodes that were deleted in the last minutes: of 14 s of system time of `src/embedded/server.test.ts`, 10 s were that.
 * A TMPDIR that is set is respected.
 */
export async function useMemory(): Promise<() => Promise<void>> {
  if (process.env['TMPDIR'] !== undefined || !(await hasMemory())) return async () => {}
  const directory = await mkdtemp(join(MEMORY, 'leasehold-run-'))
  // PostgreSQL runs under an account of its own if root runs the tests.
  await chmod(directory, 0o1777)
  const watchdog = startWatchdog(directory)
  // The processes of the test files inherit it.
  process.env['TMPDIR'] = directory
  return async () => {
    delete process.env['TMPDIR']
    await removeDirectory(directory)
    watchdog.release()
  }
}

async function hasMemory(): Promise<boolean> {
  try {
    const { bavail, bsize } = await statfs(MEMORY)
    return Math.min(bavail * bsize, freemem()) >= NEEDED_BYTES
  } catch {
    return false
  }
}
