import { leaseTable } from '../lease/declaration.ts'
import type { RetryPolicy } from '../lease/retry-policy.ts'
import type { LeaseTable } from '../lease/table.ts'
import { withFailedAttempt } from './history.ts'

/**
 * What becomes of an ordering key when an event of it fails.
 *
 * - `block`: the key waits while its event is retried; once that is published, or dead, the key continues.
 * - `skip`: the event is dead at its first failure, and the key continues.
 * - `park`: the event is dead at its first failure, and the key waits until an operator unblocks it or replays the event.
 *
 * A failure is what the publisher reports of the event. A relay that dies costs the event an attempt under each policy.
 */
export type OnFailure = 'block' | 'skip' | 'park'

export interface OutboxTableOptions {
  readonly schema?: string | undefined
  readonly onFailure?: OnFailure | undefined
  readonly retry?: Partial<RetryPolicy> | undefined
}

/** An event's row as a relay claims it. */
export interface OutboxRow {
  readonly id: string
  readonly event_id: string
  readonly event_type: string
  readonly ordering_key: string | null
  readonly payload: unknown
  readonly headers: Readonly<Record<string, string>>
  readonly attempts: number
  readonly max_attempts: number | null
  readonly created_at: Date
}

/** The outbox as a lease table. What it writes is required by LIFE-03 and LIFE-05 to LIFE-08. */
export function outboxTable({
  schema = 'leasehold',
  onFailure = 'block',
  retry = {},
}: OutboxTableOptions = {}): LeaseTable<'done' | 'retry' | 'dead'> {
  const parked = onFailure === 'park' ? 'ordering_key is not null' : 'false'
  return leaseTable({
    table: { schema, name: 'outbox' },
    bucket: 'bucket',
    lease: { owner: 'claimed_by', until: 'locked_until', token: 'lock_token' },
    claimable: "status = 'PENDING'",
    availableAt: 'available_at',
    createdAt: 'created_at',
    onExpiry: 'reap',
    leased: "status = 'CLAIMED'",
    attempts: { max: 'max_attempts' },
    retry,
    ordering: { key: 'ordering_key', unfinished: "status = 'PENDING' or parked" },
    bytes: 'pg_column_size(payload) + pg_column_size(headers)',
    writes: {
      claim: { status: "'CLAIMED'", claimed_at: 'now()' },
      release: {
        status: "'PENDING'",
        available_at: "now() + $delay_ms * interval '1 millisecond'",
        claimed_at: 'null',
      },
      reap: { history: withFailedAttempt('expired') },
    },
    outcomes: {
      // claimed_at stays: with published_by and the token it says who published the event, from when to when.
      done: { status: "'PUBLISHED'", published_at: 'now()', published_by: 'claimed_by' },
      retry: { status: "'PENDING'", claimed_at: 'null', history: withFailedAttempt('retry') },
      dead: {
        status: "'DEAD'",
        dead_at: 'now()',
        parked,
        claimed_at: 'null',
        history: withFailedAttempt('dead'),
      },
    },
    expired: {
      error:
        "'the lease expired: its relay died, lost the database connection, or took longer than maxLeases allows'",
    },
    columns: [
      'id',
      'event_id',
      'event_type',
      'ordering_key',
      'payload',
      'headers',
      'attempts',
      'max_attempts',
      'created_at',
    ],
  })
}
