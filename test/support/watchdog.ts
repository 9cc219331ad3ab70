import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'

/**
 * A killed test run cannot stop its servers. Therefore a process of its own waits for its stdin to close, which happens
 * when the run ends in whatever way, and then ends the servers of this directory. `release` after an orderly end, when
 * the directory has been deleted.
 */
export function startWatchdog(directory: string): { release(): void } {
  const script = fileURLToPath(new URL('watchdog.mjs', import.meta.url))
  const watchdog = spawn(process.execPath, [script, directory], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  })
  watchdog.unref()
  return { release: () => watchdog.stdin.destroy() }
}
