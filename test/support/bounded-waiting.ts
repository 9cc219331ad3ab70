/**
 * `vi.waitFor` without a time limit waits as long as `expect.poll` does (vitest.config.ts). Vitest's own default of one
 * second is a limit on the speed of the machine.
 */
import { vi } from 'vitest'

const BOUND = { timeout: 120_000, interval: 20 }
const waitFor = vi.waitFor

// Files that share a process share `vi`, and this file is run for each of them.
if (waitFor.name !== 'boundedWaitFor')
  vi.waitFor = async function boundedWaitFor(callback, options = BOUND) {
    return waitFor(callback, options)
  }
