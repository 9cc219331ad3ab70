import { leaseTable } from '../lease/declaration.ts'
import type { LeaseTable } from '../lease/table.ts'

/**
 * What becomes of an ordering key when an event of it fails.
 *
 * - `block`: the key waits while its event is tried again; once that is published, or dead, the key goes on.
 * - `skip`: the event is dead at its first failure, and the key goes on.
 * - `park`: the event is dead at its first failure, and the key waits until an operator unblocks it or replays the event.
 *
 * A failure is what the publisher says of the event. A relay that dies on it costs it an attempt, under each of them.
 */
export type OnFailure = 'block' | 'skip' | 'park'

export interface OutboxTableOptions {
  readonly schema?: string | undefined
  readonly onFailure?: OnFailure | undefined
}

/** One more failure is one too many. */
const LAST = 'coalesce(attempts + 1 >= max_attempts, false)'

/** The row as a relay sees it. */
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

/** The outbox as a lease table: LIFE-03 and LIFE-05 to LIFE-08 are what it writes. */
export function outboxTable({
  schema = 'leasehold',
  onFailure = 'block',
}: OutboxTableOptions = {}): LeaseTable<'done' | 'retry' | 'dead'> {
  const parks = onFailure === 'park' ? 'ordering_key is not null' : 'false'
  return leaseTable({
    table: { schema, name: 'outbox' },
    id: 'id',
    bucket: 'bucket',
    lease: { owner: 'claimed_by', until: 'locked_until', token: 'lock_token' },
    claimable: 'available_at is not null',
    availableAt: 'available_at',
    order: ['available_at', 'id'],
    onExpiry: 'reap',
    held: "status = 'CLAIMED'",
    attempts: 'attempts',
    ordering: {
      key: 'ordering_key',
      behind: 'behind',
      // In the words of the indexes, which must not change with the status of an event without a key.
      waitedFor: "indexed_status in ('PENDING', 'CLAIMED') or parked",
      inFlight: "indexed_status = 'CLAIMED'",
    },
    notes: { table: { schema, name: 'outbox_claims' }, column: 'claim_id' },
    bundles: { table: { schema, name: 'outbox_bundles' } },
    writes: {
      claim: { status: "'CLAIMED'", available_at: 'null', claimed_at: 'now()' },
      release: {
        status: "'PENDING'",
        available_at: "now() + $delay_ms * interval '1 millisecond'",
        claimed_at: 'null',
      },
      reap: {
        status: `case when ${LAST} then 'DEAD' else 'PENDING' end`,
        available_at: `case when ${LAST} then null else now() end`,
        claimed_at: 'null',
        parked: `${LAST} and ${parks}`,
        last_error: "'the lease expired: its relay died, or lost the database'",
      },
    },
    outcomes: {
      done: { set: { status: "'PUBLISHED'", published_at: 'now()', claimed_at: 'null' } },
      retry: {
        set: {
          status: "'PENDING'",
          attempts: 'attempts + 1',
          last_error: '$error',
          available_at: "now() + coalesce($delay_ms, 0) * interval '1 millisecond'",
          claimed_at: 'null',
        },
        args: { error: 'text', delay_ms: 'float8' },
      },
      dead: {
        set: {
          status: "'DEAD'",
          attempts: 'attempts + 1',
          last_error: '$error',
          parked: parks,
          claimed_at: 'null',
        },
        args: { error: 'text' },
      },
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
