import type { Logger } from '../observe/index.ts'
import { ended, watchEnding, type Ending } from './ending.ts'
import { abandonParts, stopParts, type Part } from './parts.ts'

export interface Life {
  readonly log: Logger
  readonly print: (text: string) => void
  /** Starts the parts one after the other, each named as soon as it has something to stop; says what to print. */
  readonly start: (parts: Part[], ending: Ending) => Promise<string>
}

/** Runs a process made of parts until it is told to end. Returns the exit code. */
export async function live(life: Life): Promise<number> {
  const { log } = life
  const parts: Part[] = []
  const ending = watchEnding({
    exitNow(code) {
      abandonParts(parts, log)
      process.exit(code)
    },
    onLateError: (error) => log.error({ err: error }, 'an error while stopping'),
  })
  try {
    const failure = await run(life, parts, ending)
    const clean = await stopParts(parts, log)
    if (failure !== undefined) throw failure.error
    log.info('stopped')
    return clean ? 0 : 1
  } finally {
    ending.close()
  }
}

/** Starts the parts and waits for the end; what made it fail is returned, because the parts are stopped first. */
async function run(
  { log, print, start }: Life,
  parts: Part[],
  ending: Ending,
): Promise<{ readonly error: unknown } | undefined> {
  try {
    print(await start(parts, ending))
  } catch (error) {
    // Told to end while starting: what the start came to is no news any more.
    if (!ending.signal.aborted) return { error }
  }
  const reason = await ended(ending)
  if ('error' in reason) return reason
  log.info({ signal: reason.signal }, 'stopping')
  return undefined
}
