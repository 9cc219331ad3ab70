import { randomUUID } from 'node:crypto'

/** How many ids of one millisecond are kept in order by the 12 bits that follow it in a version 7 uuid. */
const IN_ONE_MS = 4_096

/**
 * New event ids, version 7: the first is the smallest, so that the ids of one call sort as its events were given, and
 * new rows are neighbours in the index. Random are the last 62 bits.
 */
export function newEventIds(now: () => number = Date.now): () => string {
  const start = now()
  let given = 0
  return () => {
    // After 4,096 the clock is ahead by a millisecond, which RFC 9562 allows.
    const time = (start + Math.floor(given / IN_ONE_MS)).toString(16).padStart(12, '0')
    const place = (given % IN_ONE_MS).toString(16).padStart(3, '0')
    given += 1
    return `${time.slice(0, 8)}-${time.slice(8)}-7${place}${randomUUID().slice(18)}`
  }
}
