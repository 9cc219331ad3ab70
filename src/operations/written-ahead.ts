/**
 * Rows that wait only because the clock of the database was ahead when they were written: by the present one they were
 * written in the future, and they are due no later than they were written.
 */
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { type Count, sumCounts } from './count.ts'

interface Waiting {
  readonly table: string
  readonly due: string
  /** The waiting rows, each part in the words and in the order of a partial index. */
  readonly parts: readonly (readonly [where: string, order: string])[]
  readonly unfinished: string
}

const OPEN = 'completed_at is null and failed_at is null'

const TABLES: readonly Waiting[] = [
  {
    table: 'outbox',
    due: 'available_at',
    parts: [
      [
        "status = 'PENDING' and ordering_key is null and expiries < 2 and available_at > now()",
        'bucket, available_at, id',
      ],
      [
        "status = 'PENDING' and ordering_key is not null and available_at > now()",
        'bucket, available_at, id',
      ],
    ],
    unfinished: "status = 'PENDING'",
  },
  {
    table: 'webhook_outbox',
    due: 'next_attempt_at',
    parts: [
      [
        "delivery_status = 'pending' and ordering_key is null and expiries < 2",
        'bucket, endpoint_id, next_attempt_at, id',
      ],
      ["delivery_status = 'pending' and ordering_key is not null", 'bucket, endpoint_id, ordering_key, id'],
    ],
    unfinished: "delivery_status = 'pending'",
  },
  { table: 'sync_jobs', due: 'next_check_at', parts: [[OPEN, '']], unfinished: OPEN },
  {
    table: 'sync_checkpoints',
    due: 'next_attempt_at',
    parts: [[`${OPEN} and needed`, '']],
    unfinished: `${OPEN} and needed`,
  },
]

/** The clock may have been corrected by as much while a transaction ran. */
const TOLERANCE = "interval '5 seconds'"

function isAhead(due: string): string {
  return `created_at > now() + ${TOLERANCE} and ${due} > now() and ${due} <= created_at`
}

export interface WrittenAhead {
  readonly table: string
  readonly count: Count
  /** How long the last of them waits. */
  readonly longestMs: number
  /** Makes them due. */
  readonly repair: string
}

/** For each table of the applications. At most so many waiting rows of each kind are read. */
export async function findWrittenAhead(
  tx: Queryable,
  schema: string,
  maxRead: number,
): Promise<readonly WrittenAhead[]> {
  const found: WrittenAhead[] = []
  for (const { table, due, parts, unfinished } of TABLES) {
    const name = quoteQualified(schema, table)
    const counts: Count[] = []
    let longestMs = 0
    for (const [where, order] of parts) {
      const { rows } = await tx.query<{ ahead: number; all: number; ms: string | null }>({
        text: `select count(*) filter (where ${isAhead(due)})::int as ahead, count(*)::int as all,
  (extract(epoch from max(${due}) filter (where ${isAhead(due)}) - now()) * 1000)::text as ms
from (select created_at, ${due} from ${name} where ${where}${order === '' ? '' : ` order by ${order}`} limit $1::int) as waiting`,
        values: [maxRead],
      })
      const { ahead = 0, all = 0, ms = null } = rows[0] ?? {}
      counts.push({ count: ahead, exact: all < maxRead })
      longestMs = Math.max(longestMs, Number(ms))
    }
    found.push({
      table,
      count: sumCounts(counts),
      longestMs,
      repair: `update ${name} set ${due} = now() where ${unfinished} and ${isAhead(due)}`,
    })
  }
  return found
}
