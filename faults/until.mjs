import { setTimeout as delay } from 'node:timers/promises'

/** Bounds a hang: the machine may be slow, but not this slow. */
const LONGEST_WAIT_MS = 60_000

export async function until(what, isTrue) {
  const deadline = performance.now() + LONGEST_WAIT_MS
  while (!(await isTrue())) {
    if (performance.now() > deadline) throw new Error(`gave up waiting for ${what}`)
    await delay(50)
  }
}
