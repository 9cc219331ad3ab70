/** The outbox in `leasehold status`: how much is in each state, how long it waits, and which keys do not move. */
import type { Count } from '../admin/counting.ts'
import { isMissingTable } from '../postgres/failures.ts'
import type { Database } from '../postgres/index.ts'
import {
  countByStatus,
  oldestPending,
  type OldestPending,
  type StatusCounts,
} from '../outbox/admin/browse-counts.ts'
import {
  type HeldUpKey,
  keysHeldUp,
  type KeysHeldUp,
  MAX_KEYS,
  MAX_WAITING,
} from '../outbox/admin/browse-keys.ts'
import { columns, duration, grouped, relative } from './text-columns.ts'

export interface OutboxStatus {
  readonly counts: StatusCounts
  readonly oldestPending: OldestPending | undefined
  readonly keysHeldUp: KeysHeldUp
}

const LOOK_TIMEOUT_MS = 5_000
const SHOWN_KEYS = 10

/** What is known; or why it is not. */
export async function readOutbox(
  db: Database,
  schema: string,
): Promise<OutboxStatus | { readonly problem: string }> {
  const options = { schema, timeoutMs: LOOK_TIMEOUT_MS }
  try {
    return {
      counts: await countByStatus(db, options),
      oldestPending: await oldestPending(db, options),
      keysHeldUp: await keysHeldUp(db, { ...options, limit: SHOWN_KEYS }),
    }
  } catch (error) {
    if (isMissingTable(error))
      return { problem: `the schema ${schema} has no outbox yet: run \`leasehold migrate\`` }
    return { problem: error instanceof Error ? error.message : String(error) }
  }
}

export function outboxText(
  read: OutboxStatus | { readonly problem: string },
  schema: string,
  now: Date,
  width: number | undefined,
): string {
  const name = `${schema}.outbox`
  if ('problem' in read) return `${name}: ${read.problem}`
  const { counts, keysHeldUp: held } = read
  const oldest = read.oldestPending === undefined ? '-' : duration(read.oldestPending.waitingMs)
  const line = [name, ...[counts.PENDING, counts.CLAIMED, counts.PUBLISHED, counts.DEAD].map(shown), oldest]
  const table = columns([['OUTBOX', 'PENDING', 'LEASED', 'PUBLISHED', 'DEAD', 'OLDEST PENDING'], line])
  return held.keys.length === 0 ? table : `${table}\n\n${keysText(held, now, width)}`
}

export function outboxJson(read: OutboxStatus | { readonly problem: string }): unknown {
  if ('problem' in read) return read
  const { PENDING, CLAIMED, PUBLISHED, DEAD } = read.counts
  return {
    counts: { pending: PENDING, claimed: CLAIMED, published: PUBLISHED, dead: DEAD },
    oldestPending: read.oldestPending ?? null,
    keysHeldUp: read.keysHeldUp.keys,
    moreKeysHeldUp: read.keysHeldUp.more || read.keysHeldUp.partial,
  }
}

function keysText({ keys, more, partial }: KeysHeldUp, now: Date, width: number | undefined): string {
  const lines = keys.map((key) => [
    key.orderingKey,
    key.state,
    key.id,
    String(key.attempts),
    key.waiting >= MAX_WAITING ? `${grouped(MAX_WAITING)} or more` : grouped(key.waiting),
    nextTry(key, now),
    key.lastError ?? '',
  ])
  const table = columns(
    [['KEY HELD UP', 'STATE', 'BY EVENT', 'FAILED', 'WAITING', 'NEXT TRY', 'LAST ERROR'], ...lines],
    width,
  )
  const remarks = [
    ...(more ? ['There are more.'] : []),
    ...(partial ? [`Only the first ${grouped(MAX_KEYS)} keys with unfinished events were examined.`] : []),
    ...(keys.some(({ state }) => state === 'parked')
      ? ["A parked key waits for you: `leasehold outbox unblock <key> --reason '…'`."]
      : []),
  ]
  return [table, ...remarks].join('\n')
}

function nextTry({ state, availableAt }: HeldUpKey, now: Date): string {
  if (state === 'parked') return '-'
  if (availableAt === null) return 'now'
  return availableAt > now ? relative(availableAt, now) : 'due'
}

function shown({ count, exact }: Count): string {
  return exact ? grouped(count) : `about ${grouped(count)}`
}
