/** Waits for the promise, but not longer than this; true when the promise was first. */
export async function within(ms: number, promise: Promise<unknown>): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined
  const bound = new Promise<false>((resolve) => {
    timer = setTimeout(() => resolve(false), ms)
  })
  try {
    return await Promise.race([promise.then(() => true), bound])
  } finally {
    clearTimeout(timer)
  }
}
