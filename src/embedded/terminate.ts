import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'

import { LeaseholdError } from '../errors.ts'
import { isRunning, type ProcessIdentity } from './process-identity.ts'
import { hasCode } from './system-errors.ts'

const POLL_MS = 25

/**
 * Fast shutdown ends the sessions and writes a checkpoint; immediate shutdown leaves the recovery to the
 * next start. Neither loses committed data. The postmaster ends after its last child.
 */
const STEPS = [
  { signal: 'SIGINT', waitMs: 30_000 },
  { signal: 'SIGQUIT', waitMs: 15_000 },
] as const

export interface ServerProcess extends ProcessIdentity {
  /** Present when this process started it; an adopted server is nobody's child here. */
  readonly child?: ChildProcess
}

/** Returns when the server's process is gone. */
export async function terminate(server: ServerProcess): Promise<void> {
  for (const { signal, waitMs } of STEPS) {
    if (!(await isRunning(server))) return
    sendSignal(server.pid, signal)
    if (await goneWithin(server, waitMs)) return
  }
  throw new LeaseholdError(
    'EMBEDDED_FAILED',
    `PostgreSQL (process ${server.pid}) did not end, neither by a fast nor by an immediate shutdown.`,
    { remedy: 'See what keeps it with `ps`, and end it by hand.' },
  )
}

function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!hasCode(error, 'ESRCH')) throw error
  }
}

async function goneWithin({ child, ...identity }: ServerProcess, waitMs: number): Promise<boolean> {
  if (child !== undefined) {
    if (child.exitCode !== null || child.signalCode !== null) return true
    const timeout = AbortSignal.timeout(waitMs)
    child.ref()
    try {
      await once(child, 'exit', { signal: timeout })
      return true
    } catch (error) {
      if (timeout.aborted) return false
      throw error
    } finally {
      child.unref()
    }
  }
  const deadline = performance.now() + waitMs
  while (await isRunning(identity)) {
    if (performance.now() > deadline) return false
    await delay(POLL_MS)
  }
  return true
}
