import { ended, watchEnding } from './ending.ts'
import type { Run } from './run.ts'

/** What a change that takes a while is given: a way to be stopped, and one to say how far it is. */
export interface Following<Progress> {
  readonly signal: AbortSignal
  readonly onProgress: (progress: Progress) => void
}

/** Does it, tells a person how far it is, and stops after the batch being written when the process is told to. */
export async function following<Progress>(
  { log, terminal }: Pick<Run, 'log' | 'terminal'>,
  tell: { readonly line: (progress: Progress) => string; readonly halfWay: (progress: Progress) => string },
  act: (following: Following<Progress>) => Promise<number>,
): Promise<number> {
  const ending = watchEnding({
    exitNow: (code) => process.exit(code),
    onLateError: (error) => log.error({ err: error }, 'an error while stopping'),
  })
  let reached: Progress | undefined
  const onProgress = (progress: Progress): void => {
    reached = progress
    if (terminal.isTerminal) terminal.err(tell.line(progress))
  }
  try {
    const code = await act({ signal: ending.signal, onProgress })
    if (ending.signal.aborted) {
      const reason = await ended(ending)
      if ('error' in reason) throw reason.error
    }
    return code
  } catch (error) {
    if (reached !== undefined) terminal.err(`${tell.halfWay(reached)}\n`)
    throw error
  } finally {
    ending.close()
  }
}
