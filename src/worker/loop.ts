/** The one way to start and stop whatever runs in the background. */
export interface Loop {
  readonly name: string
  /** Returns at once. Starting what runs already changes nothing. */
  start(): void
  /** Resolves when nothing of it is left running. Stopping twice, or what never started, is fine. */
  stop(): Promise<void>
}

export interface HastenableLoop extends Loop {
  /** Ends the pause that is running: it was measured by what no longer holds. */
  hasten(): void
}

/**
 * A loop that does its work again and again with a pause in between. The work is never run twice at once; the pause
 * ends early when the loop is stopped. What the work throws is handed to `onError` and does not end the loop.
 */
export function createLoop(options: {
  readonly name: string
  readonly work: (stop: AbortSignal) => Promise<void>
  /** Asked after every run, so that it can follow a setting. */
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
        // One that is still stopping is let finish first.
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

/** Resolves after this time, or as soon as it is told to stop, or to end. */
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
