import type { Logger } from '../observe/index.ts'

/** Something that runs until it is stopped: HTTP, the pool, the embedded server, and every worker to come. */
export interface Part {
  readonly name: string
  /** After this long the next part is stopped without waiting further. */
  readonly stopWithinMs: number
  /** Not clean: it has stopped, and left something behind that it has told of. */
  stop(): Promise<void | { readonly clean: boolean }>
  /** What can still be done at once, synchronously, when there is no time for stop(). */
  readonly abandon?: () => void
}

/** Stops the parts, the last started first; true when every one of them ended well. */
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

/** The last resort, in the same order. One that fails must not keep the others from being tried. */
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
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    const message = `${part.name} did not stop within ${part.stopWithinMs} ms`
    timer = setTimeout(() => reject(new Error(message)), part.stopWithinMs)
  })
  try {
    return (await Promise.race([part.stop(), late])) ?? undefined
  } finally {
    clearTimeout(timer)
  }
}
