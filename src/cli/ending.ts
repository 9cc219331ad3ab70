const SIGNALS = { SIGHUP: 129, SIGINT: 130, SIGTERM: 143 } as const

type Signal = keyof typeof SIGNALS

export type Reason = { readonly signal: Signal } | { readonly error: unknown }

/**
 * At a terminal, Ctrl-C reaches the whole process group, and `npm start` passes its own copy on as well: the same
 * signal so soon after is the same wish.
 */
const SAME_WISH_MS = 500

export interface Ending {
  /** Aborted, with the `Reason`, once the process is to end: by a signal or by an error that nobody caught. */
  readonly signal: AbortSignal
  /** Leaves the signals to the operating system again. */
  close(): void
}

export interface EndingOptions {
  /** A second signal came: there is no time for anything that waits. */
  readonly exitNow: (code: number) => void
  /** An error that nobody caught came when the process was ending already. */
  readonly onLateError: (error: unknown) => void
}

/** Turns the first signal into a wish to end, and the second into an exit at once. */
export function watchEnding({ exitNow, onLateError }: EndingOptions): Ending {
  const controller = new AbortController()
  let first: { readonly name: Signal; readonly at: number } | undefined

  const onSignal = (name: Signal): void => {
    if (first === undefined) {
      first = { name, at: performance.now() }
      controller.abort({ signal: name } satisfies Reason)
    } else if (name !== first.name || performance.now() - first.at > SAME_WISH_MS) {
      exitNow(SIGNALS[name])
    }
  }
  // Unheard, an exception would end the process and leave the embedded server behind.
  const onError = (error: unknown): void => {
    if (controller.signal.aborted) onLateError(error)
    else controller.abort({ error } satisfies Reason)
  }

  // Object.keys forgets which keys it was given.
  const names = Object.keys(SIGNALS) as Signal[]
  for (const name of names) process.on(name, onSignal)
  process.on('uncaughtException', onError)
  return {
    signal: controller.signal,
    close() {
      for (const name of names) process.off(name, onSignal)
      process.off('uncaughtException', onError)
    },
  }
}

/** Resolves with why the process is to end. */
export async function ended({ signal }: Ending): Promise<Reason> {
  await new Promise<void>((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
  // Only `watchEnding` aborts it, and always with a Reason.
  return signal.reason as Reason
}

/** Waits for the work, or rejects as soon as the process is to end; what the work comes to then matters no more. */
export async function unlessEnded<Value>({ signal }: Ending, work: Promise<Value>): Promise<Value> {
  return new Promise((resolve, reject) => {
    const giveUp = (): void => reject(new Error('ended while starting'))
    if (signal.aborted) giveUp()
    signal.addEventListener('abort', giveUp, { once: true })
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', giveUp))
  })
}
