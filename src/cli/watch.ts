/** `--watch`: what a command shows is read and shown again and again, until Ctrl-C or its end. */
import { setTimeout as delay } from 'node:timers/promises'
import type { Command } from 'commander'
import { messageOf } from '../errors.ts'
import { isUnavailable } from '../postgres/index.ts'
import { type Run, UsageError } from './command.ts'
import { durationFlag, invalidArgument, isSet, textFlag } from './flags.ts'
import { listenForStop, stopReason } from './process.ts'

const DAY_MS = 86_400_000

export function addWatchFlags(command: Command, until: string): Command {
  return command
    .option('--watch', `keep updating until ${until}`)
    .option(
      '--every <time>',
      'interval between updates with --watch (default: 1s on a terminal, otherwise 10s)',
    )
    .option('--json', 'print one JSON document instead of text; with --watch, one per line')
}

export function watchFlags(flags: Run['flags']): {
  readonly watches: boolean
  readonly everyMs: number | undefined
} {
  const watches = isSet(flags, 'watch')
  const everyMs = durationFlag(flags, 'every')
  if (everyMs === 0 || (everyMs ?? 0) > DAY_MS) {
    throw invalidArgument('every', textFlag(flags, 'every') ?? '', 'say how long, up to a day: 1s, or 500ms.')
  }
  if (everyMs !== undefined && !watches) throw new UsageError('--every goes with --watch.')
  return { watches, everyMs }
}

export interface Watched<Found> {
  readonly read: () => Promise<Found>
  readonly format: (found: Found) => string
  /** Default: every second at a terminal, every ten elsewhere. */
  readonly everyMs: number | undefined
  /**
   * Whether what was shown before is replaced: its lines, which have to fit onto the screen, or all of the screen. Otherwise
   * the new text follows, after `end`.
   */
  readonly redraws: 'lines' | 'screen' | false
  readonly end: string
  /** The exit code, once there is nothing more to watch. */
  readonly codeAtEnd?: (found: Found) => number | undefined
}

const TERMINAL_INTERVAL_MS = 1_000
const OTHER_INTERVAL_MS = 10_000

export async function watch<Found>(run: Run, watched: Watched<Found>): Promise<number> {
  const { read, format, everyMs, redraws, end, codeAtEnd } = watched
  const { log, print } = run
  const pauseMs = everyMs ?? (redraws === false ? OTHER_INTERVAL_MS : TERMINAL_INTERVAL_MS)
  const ending = listenForStop(log)
  const writers = {
    lines: redrawing(print),
    screen: (text: string): void => print(`\u001B[H\u001B[2J${text}\n`),
    none: (text: string): void => print(`${text}${end}`),
  }
  const write = writers[redraws === false ? 'none' : redraws]
  try {
    while (!ending.signal.aborted) {
      const found = await answered(read, run)
      if (found !== undefined) {
        write(format(found))
        const code = codeAtEnd?.(found)
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

/** Undefined while the database does not answer: watching continues until it does. */
async function answered<Found>(read: () => Promise<Found>, { log }: Run): Promise<Found | undefined> {
  try {
    return await read()
  } catch (error) {
    if (!isUnavailable(error)) throw error
    log.warn({ reason: messageOf(error) }, 'the database does not answer')
    return undefined
  }
}

/** Replaces what was printed before: the cursor moves back to its first line, and everything from there on is cleared. */
export function redrawing(print: (text: string) => void): (text: string) => void {
  let lines = 0
  return (text) => {
    print(`${lines === 0 ? '' : `\u001b[${lines}A\u001b[0J`}${text}\n`)
    lines = text.split('\n').length
  }
}
