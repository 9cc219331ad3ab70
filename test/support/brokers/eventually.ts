import { setTimeout as delay } from 'node:timers/promises'

const PATIENCE_MS = 60_000
const POLL_MS = 25

/** Tries until it works; what it threw last, when it never does. For what a server does without telling. */
export async function eventually<Result>(attempt: () => Promise<Result>): Promise<Result> {
  const deadline = performance.now() + PATIENCE_MS
  for (;;) {
    try {
      return await attempt()
    } catch (error) {
      if (performance.now() > deadline) throw error
      await delay(POLL_MS)
    }
  }
}
