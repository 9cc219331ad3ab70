import { countByStatus } from '../../outbox/admin/browse-counts.ts'
import type { Database } from '../../postgres/index.ts'
import type { Events } from '../../worker/index.ts'

/** What has happened since the demo began. */
export interface Tally {
  readonly written: number
  readonly published: number
  readonly retried: number
  readonly dead: number
}

export interface Summary {
  wrote(events: number): void
  /** One line of now. */
  line(db: Database): Promise<string>
  close(): void
}

/** Follows the relay's events; asks the database only for what waits. */
export function startSummary(
  events: Events,
  schema: string,
  now: () => number = performance.now.bind(performance),
): Summary {
  const tally = { written: 0, published: 0, retried: 0, dead: 0 }
  const startedAt = now()
  let last = { at: startedAt, published: 0 }
  const off = events.on('settled', ({ outcome, ids }) => {
    if (outcome === 'done') tally.published += ids.length
    else if (outcome === 'retry') tally.retried += ids.length
    else if (outcome === 'dead') tally.dead += ids.length
  })
  return {
    wrote: (count) => {
      tally.written += count
    },
    async line(db) {
      const { PENDING, CLAIMED } = await countByStatus(db, { schema })
      const at = now()
      const perSecond = ((tally.published - last.published) / Math.max(1, at - last.at)) * 1_000
      last = { at, published: tally.published }
      return summaryLine(tally, {
        seconds: Math.round((at - startedAt) / 1_000),
        perSecond,
        waiting: PENDING.count,
        inFlight: CLAIMED.count,
      })
    },
    close: off,
  }
}

export function summaryLine(
  { written, published, retried, dead }: Tally,
  now: {
    readonly seconds: number
    readonly perSecond: number
    readonly waiting: number
    readonly inFlight: number
  },
): string {
  const parts = [
    `${String(now.seconds).padStart(4)} s`,
    `written ${written}`,
    `published ${published} (${now.perSecond.toFixed(0)}/s)`,
    `waiting ${now.waiting}`,
    `in flight ${now.inFlight}`,
    `retried ${retried}`,
    `dead ${dead}`,
  ]
  return parts.join('   ')
}
