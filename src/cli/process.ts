/**
 * The life of a process that runs until it is told to stop: it is made of parts, which are started one after the other
 * and stopped in reverse order. The first signal stops the parts; a second one exits at once.
 */
import { within } from '../timeout.ts'
import type { Logger } from '../observe/log.ts'
import { stdoutCarriesEvents } from '../outbox/publishers/publishing.ts'
import type { Run } from './command.ts'

/** Something that runs until it is stopped, such as the database pool, the HTTP server or the workers. */
export interface Part {
  readonly name: string
  /** What stopping it waits for, and how long, for the person who pressed Ctrl-C. */
  readonly stopText?: () => string
  /** After this time the next part is stopped without waiting any longer. */
  readonly stopWithinMs: number
  /** Not clean: it has stopped but could not finish everything, and has logged what. */
  stop(): Promise<void | { readonly clean: boolean }>
  /** What can be done synchronously when there is no time for `stop()`. */
  readonly abandon?: () => void
}

/** What a process is given while it starts. */
export interface Startup {
  /** Adds a part; to be called as soon as there is something to stop. */
  add(part: Part): void
  /** Aborted once the process is told to stop. */
  readonly signal: AbortSignal
  /** Waits for the work, or rejects as soon as the process is told to stop. */
  unlessStopping<Value>(work: Promise<Value>): Promise<Value>
  /** Tells the process to stop, as SIGTERM does. Without effect if it was told so before. */
  stop(): void
}

/** What a signal does instead of stopping the process. */
export type SignalActions = { readonly [Name in Signal]?: () => void }

/**
 * Starts the parts, prints what `start` returns, and stops them when the process is told to stop. Returns the exit code:
 * 1 when a part did not stop cleanly.
 */
export async function runProcess(
  { log, terminal }: Pick<Run, 'log' | 'terminal'>,
  start: (startup: Startup) => Promise<string>,
  actions: SignalActions = {},
): Promise<number> {
  const parts: Part[] = []
  const listener = listenForStop(log, () => abandonParts(parts, log), actions)
  const { signal } = listener
  const startup: Startup = {
    add: (part) => void parts.push(part),
    signal,
    unlessStopping: async (work) => unlessAborted(signal, work),
    stop: () => listener.stop(),
  }

  async function startAndWait(): Promise<StopReason> {
    try {
      const ready = await start(startup)
      // Where events go to stdout, whoever reads them expects nothing else.
      if (stdoutCarriesEvents()) terminal.err(ready)
      else terminal.out(ready)
    } catch (error) {
      // Told to stop while starting: that the start failed does not matter any more.
      if (!signal.aborted) return { error }
    }
    return stopReason(listener)
  }

  try {
    const reason = await startAndWait()
    if ('signal' in reason) log.info({ signal: reason.signal }, stopMessage(parts, reason.signal))
    const clean = await stopParts(parts, log)
    if ('error' in reason) throw reason.error
    log.info('stopped')
    return clean ? 0 : 1
  } finally {
    listener.close()
  }
}

function stopMessage(parts: readonly Part[], signal: Signal): string {
  const waits = parts.flatMap((part) => part.stopText?.() ?? [])
  const again = signal === 'SIGINT' ? 'Ctrl-C' : signal
  return `${['stopping', ...waits].join(': ')} (a second ${again} quits at once)`
}

/** Stops the parts, the last started first; true when all of them stopped cleanly. */
export async function stopParts(parts: readonly Part[], log: Logger): Promise<boolean> {
  let clean = true
  for (const part of parts.toReversed()) {
    const startedAt = performance.now()
    try {
      const stopped = await stopInTime(part)
      if (stopped?.clean === false) clean = false
      log.debug({ part: part.name, ms: Math.round(performance.now() - startedAt) }, 'stopped')
    } catch (error) {
      clean = false
      log.error({ part: part.name, err: error }, 'did not stop cleanly')
    }
  }
  return clean
}

/** The last resort, in the same order. A part that fails does not keep the others from being abandoned. */
export function abandonParts(parts: readonly Part[], log: Logger): void {
  for (const part of parts.toReversed()) {
    try {
      part.abandon?.()
    } catch (error) {
      log.error({ part: part.name, err: error }, 'could not be abandoned')
    }
  }
}

async function stopInTime(part: Part): Promise<{ readonly clean: boolean } | undefined> {
  const stopped = part.stop()
  if (await within(part.stopWithinMs, stopped)) return (await stopped) ?? undefined
  throw new Error(`${part.name} did not stop within ${part.stopWithinMs} ms`)
}

const SIGNAL_EXIT_CODES = { SIGHUP: 129, SIGINT: 130, SIGTERM: 143 } as const

type Signal = keyof typeof SIGNAL_EXIT_CODES

/** Why the process stops: a signal, or an error that nobody caught. */
export type StopReason = { readonly signal: Signal } | { readonly error: unknown }

export interface StopListener {
  /** Aborted with the `StopReason` once the process is told to stop. */
  readonly signal: AbortSignal
  /** As SIGTERM, but it never counts as a second signal. */
  stop(): void
  /** Gives the signals back to the operating system. */
  close(): void
}

/**
 * At a terminal Ctrl-C reaches the whole process group, and `npm start` passes its own copy on as well. So the same
 * signal within this time counts once.
 */
const SAME_SIGNAL_MS = 500

/** Listens for the signals and uncaught errors that stop the process. A second signal exits at once. */
export function listenForStop(
  log: Logger,
  beforeExit: () => void = () => {},
  actions: SignalActions = {},
): StopListener {
  const controller = new AbortController()
  let first: { readonly name: Signal; readonly at: number } | undefined

  const onSignal = (name: Signal): void => {
    if (first === undefined) {
      first = { name, at: performance.now() }
      controller.abort({ signal: name } satisfies StopReason)
    } else if (name !== first.name || performance.now() - first.at > SAME_SIGNAL_MS) {
      beforeExit()
      process.exit(SIGNAL_EXIT_CODES[name])
    }
  }
  // Without this listener an uncaught error would end the process and leave the embedded server running.
  const onError = (error: unknown): void => {
    if (controller.signal.aborted) log.error({ err: error }, 'an error while stopping')
    else controller.abort({ error } satisfies StopReason)
  }

  // Object.keys forgets which keys it was given.
  const names = Object.keys(SIGNAL_EXIT_CODES) as Signal[]
  const listeners = names.map((name) => [name, actions[name] ?? onSignal] as const)
  for (const [name, listen] of listeners) process.on(name, listen)
  process.on('uncaughtException', onError)
  return {
    signal: controller.signal,
    stop() {
      if (first === undefined) onSignal('SIGTERM')
    },
    close() {
      for (const [name, listen] of listeners) process.off(name, listen)
      process.off('uncaughtException', onError)
    },
  }
}

/** Resolves with the reason once the process is told to stop. */
export async function stopReason({ signal }: StopListener): Promise<StopReason> {
  await new Promise<void>((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
  // Only `listenForStop` aborts it, and always with a StopReason.
  return signal.reason as StopReason
}

async function unlessAborted<Value>(signal: AbortSignal, work: Promise<Value>): Promise<Value> {
  return new Promise((resolve, reject) => {
    const giveUp = (): void => reject(new Error('told to stop while starting'))
    if (signal.aborted) giveUp()
    signal.addEventListener('abort', giveUp, { once: true })
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', giveUp))
  })
}

/** What a long change is given: a signal that stops it, and a function that reports its progress. */
export interface ProgressOptions<Progress> {
  readonly signal: AbortSignal
  readonly onProgress: (progress: Progress) => void
}

/**
 * Runs a change that takes a while. A signal stops it after the batch that is being written. `line` shows its progress on
 * a terminal; `halfWay` says what was done when it fails.
 */
export async function withProgress<Progress>(
  { log, terminal }: Pick<Run, 'log' | 'terminal'>,
  texts: { readonly line: (progress: Progress) => string; readonly halfWay: (progress: Progress) => string },
  change: (options: ProgressOptions<Progress>) => Promise<number>,
): Promise<number> {
  const listener = listenForStop(log)
  let latest: Progress | undefined
  const onProgress = (progress: Progress): void => {
    latest = progress
    if (terminal.isTerminal) terminal.err(texts.line(progress))
  }
  try {
    const code = await change({ signal: listener.signal, onProgress })
    if (listener.signal.aborted) {
      const reason = await stopReason(listener)
      if ('error' in reason) throw reason.error
    }
    return code
  } catch (error) {
    if (latest !== undefined) terminal.err(`${texts.halfWay(latest)}\n`)
    throw error
  } finally {
    listener.close()
  }
}
