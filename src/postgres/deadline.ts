/**
 * Calls back after this time, unless cancelled before. After a handler has blocked the event loop, an expired timer
 * runs before the answer that has long arrived is read; so the network gets one more turn first.
 */
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

/** Waits for the promise, but not longer than this; true when the promise was first. */
export async function within(ms: number, promise: Promise<unknown>): Promise<boolean> {
  let bound: ReturnType<typeof deadline> | undefined
  const expired = new Promise<false>((resolve) => {
    bound = deadline(ms, () => resolve(false))
  })
  try {
    return await Promise.race([promise.then(() => true), expired])
  } finally {
    bound?.cancel()
  }
}
