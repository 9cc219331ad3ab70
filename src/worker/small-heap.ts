import { setFlagsFromString } from 'node:v8'

let isSmall = false

/**
 * Makes V8 collect garbage earlier, for the whole process: for one that only runs workers. Call it before other modules are
 * loaded, because a young generation that has grown stays as large as it is.
 *
 * A worker that processes a backlog produces much garbage and little that stays. V8 lets its young generation grow all the
 * same, on Node 24 to 110 MB. With these flags it does not grow, and the heap grows to one and a half times what is live
 * instead of four times. The process then takes half of the memory, and up to a third more processor time.
 */
export function keepHeapSmall(): void {
  isSmall = true
  setFlags()
}

/** Node 20 resets the first of the flags for the whole process whenever a thread starts. */
export function restoreHeapFlags(): void {
  if (isSmall) setFlags()
}

function setFlags(): void {
  setFlagsFromString('--semi-space-growth-factor=1')
  setFlagsFromString('--heap-growing-percent=50')
}
