import { setTimeout as delay } from 'node:timers/promises'

const TIMEOUT_MS = 120_000
const POLL_MS = 25

/** Repeats the attempt until it succeeds, for changes in a server that have no event. Throws the last error on timeout. */
export async function eventually<Result>(attempt: () => Promise<Result>): Promise<Result> {
  const deadline = performance.now() + TIMEOUT_MS
  for (;;) {
    try {
      return await attempt()
    } catch (error) {
      if (performance.now() > deadline) throw error
      await delay(POLL_MS)
    }
  }
}
