/**
 * What a stream yields, in batches: full ones while it is quick, and whatever there is when it pauses, so that nothing
 * waits for what a slow plan yields later.
 */
export async function* inBatches<Item>(
  items: Iterable<Item> | AsyncIterable<Item>,
  { most, waitMs }: { readonly most: number; readonly waitMs: number },
): AsyncGenerator<Item[], void, undefined> {
  const stream = streamOf(items)
  let next: Promise<IteratorResult<Item, void>> | undefined
  try {
    for (;;) {
      const batch: Item[] = []
      const pause = pauseAfter(waitMs)
      try {
        while (batch.length < most) {
          next ??= stream.next()
          // The first one is waited for; those after it as long as the pause says.
          const result = await (batch.length === 0 ? next : Promise.race([next, pause.over]))
          if (result === undefined) break
          next = undefined
          if (result.done === true) {
            if (batch.length > 0) yield batch
            return
          }
          if (batch.length === 0) pause.begin()
          batch.push(result.value)
        }
      } finally {
        pause.end()
      }
      yield batch
    }
  } finally {
    // One that is still thinking about the next item is told, and not waited for: it may never come back.
    const told = stream.return()
    if (next === undefined) await told
    else void Promise.allSettled([next, told])
  }
}

async function* streamOf<Item>(
  items: Iterable<Item> | AsyncIterable<Item>,
): AsyncGenerator<Item, void, undefined> {
  yield* items
}

interface Pause {
  readonly over: Promise<undefined>
  begin(): void
  end(): void
}

function pauseAfter(ms: number): Pause {
  let timer: NodeJS.Timeout | undefined
  let finish: () => void = () => undefined
  const over = new Promise<undefined>((resolve) => {
    finish = () => resolve(undefined)
  })
  return {
    over,
    begin() {
      timer = setTimeout(finish, ms)
    },
    end: () => clearTimeout(timer),
  }
}
