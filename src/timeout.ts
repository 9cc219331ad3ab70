/**
 * Bounded waiting: the one place that races a promise with a timer or with an abort.
 *
 * A timer that has expired runs before the network is read. After a handler has blocked the event loop, an answer may
 * have arrived long ago and still lose to its own time limit. Therefore every time limit here gives the network one
 * more turn of the event loop before it fires.
 */

/** The longest delay of a timer, 24 days: Node.js fires a timer with a longer one at once. */
export const MAX_TIMER_MS = 2_147_483_647

/** Calls back once the time is over, unless it is cancelled before. */
export function deadline(ms: number, onExpired: () => void): { cancel(): void } {
  let lastTurn: NodeJS.Immediate | undefined
  const timer = setTimeout(() => {
    lastTurn = setImmediate(onExpired)
  }, ms)
  return {
    cancel() {
      clearTimeout(timer)
      clearImmediate(lastTurn)
    },
  }
}

/** Waits for the promise, but not longer than this. Returns whether the promise was resolved in time. */
export async function within(ms: number, promise: Promise<unknown>): Promise<boolean> {
  let limit: ReturnType<typeof deadline> | undefined
  const expired = new Promise<false>((resolve) => {
    limit = deadline(ms, () => resolve(false))
  })
  try {
    return await Promise.race([promise.then(() => true), expired])
  } finally {
    limit?.cancel()
  }
}

/** Waits for the work, but rejects with the signal's reason once the signal fires. The work's result is then ignored. */
export async function untilAborted<Result>(
  signal: AbortSignal,
  work: () => Promise<Result>,
): Promise<Result> {
  signal.throwIfAborted()
  let onAbort = (): void => {}
  const aborted = new Promise<never>((_resolve, reject) => {
    onAbort = () => reject(signal.reason)
    signal.addEventListener('abort', onAbort, { once: true })
  })
  try {
    return await Promise.race([work(), aborted])
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}
