import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { startEmbedded, type EmbeddedServer } from '../embedded/index.ts'
import type { Logger } from '../observe/index.ts'
import type { Part } from './parts.ts'

/** A fast shutdown and, should that not do, an immediate one: their bounds together, and a little more. */
const STOP_WITHIN_MS = 50_000

export interface StartingEmbedded {
  readonly part: Part
  readonly started: Promise<EmbeddedServer>
}

/**
 * Starts the embedded server. The part is there at once: a process that is told to end while the server is still
 * starting waits for it, to stop it.
 */
export function startEmbeddedPart(directory: string, log: Logger): StartingEmbedded {
  let server: EmbeddedServer | undefined
  const started = startEmbedded({ directory, onLog: (line) => log.info(line) }).then(
    (ready) => (server = ready),
  )
  return {
    started,
    part: {
      name: 'embedded PostgreSQL',
      stopWithinMs: STOP_WITHIN_MS,
      async stop() {
        // A start that failed is reported to whoever awaits `started`, and left nothing to stop.
        const ready = await started.catch(() => undefined)
        await ready?.stop()
      },
      abandon() {
        shutDownAtOnce(directory, server)
      },
    },
  }
}

/**
 * Immediate shutdown: no committed data is lost, the next start recovers. The process is known by the pid file in its
 * own data directory, and only when that is the server we own, or one that we are just starting.
 */
function shutDownAtOnce(directory: string, server: EmbeddedServer | undefined): void {
  const file = join(directory, 'data', 'postmaster.pid')
  if (server?.origin === 'shared' || !existsSync(file)) return
  const [pid = '', , , port] = readFileSync(file, 'utf8').split('\n')
  const isOwn = server === undefined ? parentOf(pid) === process.pid : Number(port) === server.port
  if (isOwn && Number(pid) > 1) process.kill(Number(pid), 'SIGQUIT')
}

function parentOf(pid: string): number {
  if (process.platform === 'linux') {
    return Number(/^PPid:\s*(\d+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
  }
  return Number(execFileSync('ps', ['-o', 'ppid=', '-p', pid], { encoding: 'utf8' }))
}
