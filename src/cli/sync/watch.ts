/** Progress that is kept live, until the job that is watched has stopReason or the process is told to end. */
import { setTimeout as delay } from 'node:timers/promises'
import { isUnavailable } from '../../postgres/index.ts'
import type { Run } from '../command.ts'
import { listenForStop, stopReason } from '../process.ts'
import type { SyncLook } from './status.ts'

interface Watched {
  readonly look: () => Promise<SyncLook>
  readonly shown: (found: SyncLook) => string
  /** Default: every second at a terminal, every ten elsewhere. */
  readonly everyMs: number | undefined
  /** In place of what was shown before; or below it, with `end` between the two. */
  readonly redraws: boolean
  readonly end: string
}

const TERMINAL_MS = 1_000
const ELSEWHERE_MS = 10_000

export async function watch(run: Run, { look, shown, everyMs, redraws, end }: Watched): Promise<number> {
  const { log, print } = run
  const pauseMs = everyMs ?? (redraws ? TERMINAL_MS : ELSEWHERE_MS)
  const ending = listenForStop(log)
  const write = redraws ? redrawing(print) : (text: string): void => print(`${text}${end}`)
  try {
    while (!ending.signal.aborted) {
      const found = await answered(look, run)
      if (found !== undefined) {
        write(shown(found))
        const code = codeAtEnd(found)
        if (code !== undefined) return code
      }
      await delay(pauseMs, undefined, { signal: ending.signal }).catch(() => undefined)
    }
    const reason = await stopReason(ending)
    if ('error' in reason) throw reason.error
    return 0
  } finally {
    ending.close()
  }
}

/** Undefined while the database does not answer: it may come back, and so may those who watch. */
async function answered(look: () => Promise<SyncLook>, { log }: Run): Promise<SyncLook | undefined> {
  try {
    return await look()
  } catch (error) {
    if (!isUnavailable(error)) throw error
    log.warn(
      { reason: error instanceof Error ? error.message : String(error) },
      'the database does not answer',
    )
    return undefined
  }
}

function codeAtEnd(found: SyncLook): number | undefined {
  if (!('job' in found)) return undefined
  const codes: Readonly<Partial<Record<typeof found.job.phase, number>>> = { completed: 0, failed: 1 }
  return codes[found.job.phase]
}

/** In place of what was there before: back to its first line, and from there everything is cleared. */
export function redrawing(print: (text: string) => void): (text: string) => void {
  let lines = 0
  return (text) => {
    print(`${lines === 0 ? '' : `\u001b[${lines}A\u001b[0J`}${text}\n`)
    lines = text.split('\n').length
  }
}
