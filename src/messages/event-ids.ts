import { randomUUID } from 'node:crypto'

/** The 12 bits after the timestamp of a version 7 uuid count the ids of one millisecond. */
const IDS_PER_MS = 4_096

/**
 * Generates event ids, uuids of version 7. They ascend, so that the ids of one call sort in the order of its events and
 * new rows are neighbours in the index. The last 62 bits are random.
 */
export function newEventIds(now: () => number = Date.now): () => string {
  const start = now()
  let count = 0
  return () => {
    // After 4,096 ids the timestamp runs ahead of the clock by a millisecond, which RFC 9562 allows.
    const time = (start + Math.floor(count / IDS_PER_MS)).toString(16).padStart(12, '0')
    const counter = (count % IDS_PER_MS).toString(16).padStart(3, '0')
    count += 1
    return `${time.slice(0, 8)}-${time.slice(8)}-7${counter}${randomUUID().slice(18)}`
  }
}
