/** The one contract for everything that runs in the background. */
export interface Loop {
  readonly name: string
  /** Returns at once. Starting a loop that runs changes nothing. */
  start(): void
  /** Resolves when nothing of it runs any more. It may be stopped twice, or without having been started. */
  stop(): Promise<void>
}

export interface HastenableLoop extends Loop {
  /** Ends the current pause, whose length no longer applies. */
  hasten(): void
}

/**
 * A loop that repeats its work with a pause in between. The work never overlaps with itself; the pause ends early when the
 * loop is stopped. An error of the work is passed to `onError` and does not end the loop.
 */
export function createLoop(options: {
  readonly name: string
  readonly work: (stop: AbortSignal) => Promise<void>
  /** Called after every run, so that it can depend on a setting. */
  readonly pauseMs: () => number
  readonly onError: (error: unknown) => void
}): HastenableLoop {
  let stopping: AbortController | undefined
  let running: Promise<void> | undefined
  let endPause: () => void = () => undefined

  async function run(stop: AbortSignal): Promise<void> {
    while (!stop.aborted) {
      try {
        await options.work(stop)
      } catch (error) {
        if (!stop.aborted) options.onError(error)
      }
      await pause(options.pauseMs(), stop, (end) => {
        endPause = end
      })
    }
  }

  return {
    name: options.name,
    start() {
      if (running !== undefined && stopping?.signal.aborted === false) return
      const before = running
      stopping = new AbortController()
      const { signal } = stopping
      running = (async () => {
        // A run that is still stopping finishes first.
        await before
        await run(signal)
      })()
    },
    async stop() {
      stopping?.abort()
      const ending = running
      await ending
      if (running === ending) running = undefined
    },
    hasten() {
      endPause()
    },
  }
}

/** Resolves after this time, or as soon as the signal fires, or when `end` is called. */
export async function pause(
  ms: number,
  stop: AbortSignal,
  onBegin: (end: () => void) => void = () => undefined,
): Promise<void> {
  if (stop.aborted) return
  await new Promise<void>((resolve) => {
    const timer = setTimeout(end, ms)
    function end(): void {
      clearTimeout(timer)
      stop.removeEventListener('abort', end)
      resolve()
    }
    stop.addEventListener('abort', end, { once: true })
    onBegin(end)
  })
}
