/** What the columns of a row say about its state, for every combination of them. */
import { afterAll, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { openDatabase } from '../postgres/database.ts'
import { SYNC_STATES } from './transitions.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
afterAll(async () => db.close())

const LEASES = {
  none: 'null',
  'one that has run out': "now() - interval '1 second'",
  'one that ends this moment': 'now()',
  'one that runs': "now() + interval '1 minute'",
} as const
type LeaseEnd = keyof typeof LEASES
const ENDED = "now() - interval '1 hour'"
type Combination = readonly [lease: LeaseEnd, completed: boolean, failed: boolean]

/** SYNC-03, line by line as the document has it. */
function documented(lease: LeaseEnd, completed: boolean, failed: boolean): string[] {
  const open = !completed && !failed
  const lines: [string, boolean][] = [
    ['AVAILABLE', lease === 'none' && open],
    ['RUNNING', lease === 'one that runs'],
    ['EXPIRED', lease !== 'none' && lease !== 'one that runs' && open],
    ['COMPLETED', completed],
    ['FAILED', failed],
  ]
  return lines.filter(([, holds]) => holds).map(([state]) => state)
}

const COMBINATIONS: readonly Combination[] = (
  ['none', 'one that has run out', 'one that ends this moment', 'one that runs'] as const
).flatMap((lease) =>
  [false, true].flatMap((completed) => [false, true].map((failed) => [lease, completed, failed] as const)),
)

const TABLES = {
  sync_jobs: {
    view: 'sync_job_states',
    columns: 'definition, matrix_id',
    values: "'d', 'm'",
  },
  sync_checkpoints: {
    view: 'sync_checkpoint_states',
    columns: 'definition, matrix_id, chunk_hash, chunk_query, last_synced_at, row_count',
    values: "'d', 'm', 'h', '{}', now(), 1",
  },
} as const

describe.each(['sync_jobs', 'sync_checkpoints'] as const)('SYNC-03: %s', (table) => {
  const { view, columns, values } = TABLES[table]

  /** Writes such a row and reads its state, in a transaction of its own: `now()` is the same for both. */
  async function stateOf(lease: LeaseEnd, completed: boolean, failed: boolean): Promise<string | undefined> {
    const undo = new Error('undone')
    let state: string | undefined
    try {
      await db.transaction(async (tx) => {
        await tx.query({
          text: `insert into leasehold.${table} (${columns}, locked_until, locked_by, completed_at, failed_at)
            values (${values}, ${LEASES[lease]}, ${lease === 'none' ? 'null' : "'w'"},
              ${completed ? ENDED : 'null'}, ${failed ? ENDED : 'null'})`,
        })
        const { rows } = await tx.query<{ state: string }>({ text: `select state from leasehold.${view}` })
        state = rows[0]?.state
        throw undo
      })
    } catch (error) {
      if (error !== undo) throw error
    }
    return state
  }

  const canBe = ([lease, completed, failed]: Combination): boolean =>
    (lease === 'none' || (!completed && !failed)) && !(completed && failed)

  it.each(COMBINATIONS.filter(canBe))(
    'with lease: %s, completed: %s, failed: %s is in exactly the state that the document defines',
    async (...combination) => {
      expect([await stateOf(...combination)]).toEqual(documented(...combination))
    },
  )

  // Completed and failed, or ended and leased: they would be in two states, now or while the lease lasts.
  it.each(COMBINATIONS.filter((combination) => !canBe(combination)))(
    'with lease: %s, completed: %s, failed: %s cannot be written',
    async (...combination) => {
      await expect(stateOf(...combination)).rejects.toThrow(/ends_once|no_lease_at_the_end/)
    },
  )

  it('SYNC-01: has no column for its state, which follows from the time without a write', async () => {
    const { rows } = await db.query<{ column: string }>({
      text: `select column_name as column from information_schema.columns
        where table_schema = 'leasehold' and table_name = $1`,
      values: [table],
    })
    const names = rows.map(({ column }) => column)
    expect(names.filter((name) => /status|state|running|progress/.test(name))).toEqual([])
    const state = async (tx: Pick<typeof db, 'query'>): Promise<string | undefined> =>
      (await tx.query<{ state: string }>({ text: `select state from leasehold.${view}` })).rows[0]?.state
    // Within a transaction `now()` stands still, so that the lease cannot expire before its state is read.
    await db.transaction(async (tx) => {
      await tx.query({
        text: `insert into leasehold.${table} (${columns}, locked_until, locked_by)
          values (${values}, now() + interval '300 milliseconds', 'w')`,
      })
      expect(await state(tx)).toBe('RUNNING')
    })
    await expect.poll(async () => state(db)).toBe('EXPIRED')
  })

  it('SYNC-02: carries locked_until, locked_by and a token, and half a lease cannot be written', async () => {
    const { rows } = await db.query<{ column: string; type: string }>({
      text: `select column_name as column, data_type as type from information_schema.columns
        where table_schema = 'leasehold' and table_name = $1 and column_name like 'lock%' order by 1`,
      values: [table],
    })
    expect(rows).toEqual([
      { column: 'lock_token', type: 'bigint' },
      { column: 'locked_by', type: 'text' },
      { column: 'locked_until', type: 'timestamp with time zone' },
    ])
    for (const half of ["null, 'w'", 'now(), null']) {
      const insert = `insert into leasehold.${table} (${columns}, locked_until, locked_by) values (${values.replace("'m'", "'n'")}, ${half})`
      await expect(db.query({ text: insert })).rejects.toThrow(`${table}_lease_is_whole`)
    }
  })
})

it('SYNC-03: there are five states', () => {
  const all = COMBINATIONS.flatMap((combination) => documented(...combination))
  expect(new Set(all)).toEqual(new Set(SYNC_STATES))
})

describe('SYNC-15: the database itself refuses', () => {
  const JOB = "(definition, matrix_id, lock_token) values ('d', 'final', 7)"
  const CHUNK =
    "(definition, matrix_id, chunk_hash, chunk_query, last_synced_at, row_count, lock_token) values ('d', 'final', 'h', '{}', now(), 1, 7)"
  const COMPLETED = 'completed_at = now()'
  const FAILED = 'failed_at = now()'
  const LEASED = "locked_by = 'w', locked_until = now() + interval '1 minute'"

  /** The error of the last of these changes of a row, in a transaction that is undone; undefined if it is accepted. */
  async function refusal(table: string, changes: readonly string[]): Promise<unknown> {
    const undo = new Error('undone')
    return db
      .transaction(async (tx) => {
        await tx.query({ text: `insert into leasehold.${table} ${table === 'sync_jobs' ? JOB : CHUNK}` })
        for (const change of changes)
          await tx.query({ text: `update leasehold.${table} set ${change} where matrix_id = 'final'` })
        throw undo
      })
      .catch((error: unknown) => (error === undo ? undefined : error))
  }

  it.each([
    ['sync_jobs', 'COMPLETED → open', [COMPLETED, 'completed_at = null'], 'completed_at'],
    ['sync_jobs', 'COMPLETED → FAILED', [COMPLETED, `completed_at = null, ${FAILED}`], 'completed_at'],
    ['sync_jobs', 'COMPLETED → leased', [COMPLETED, `completed_at = null, ${LEASED}`], 'completed_at'],
    ['sync_jobs', 'FAILED → COMPLETED', [FAILED, `failed_at = null, ${COMPLETED}`], 'failed_at'],
    ['sync_jobs', 'FAILED → leased', [FAILED, `failed_at = null, ${LEASED}`], 'failed_at'],
    ['sync_jobs', 'a lower token', ['lock_token = 6'], 'lock_token'],
    ['sync_jobs', 'a lower token with a replay', [FAILED, 'failed_at = null, lock_token = 0'], 'lock_token'],
    ['sync_checkpoints', 'COMPLETED → FAILED', [COMPLETED, `completed_at = null, ${FAILED}`], 'completed_at'],
    ['sync_checkpoints', 'COMPLETED → leased', [COMPLETED, `completed_at = null, ${LEASED}`], 'completed_at'],
    ['sync_checkpoints', 'FAILED → COMPLETED', [FAILED, `failed_at = null, ${COMPLETED}`], 'failed_at'],
    ['sync_checkpoints', 'FAILED → leased', [FAILED, `failed_at = null, ${LEASED}`], 'failed_at'],
    ['sync_checkpoints', 'a lower token', ['lock_token = 6'], 'lock_token'],
  ] as const)('of %s: %s', async (table, _, changes, column) => {
    expect(await refusal(table, changes)).toMatchObject({ code: '23514', table, column })
  })

  it.each([
    [
      'sync_jobs',
      'a replay of a failed job',
      [FAILED, 'failed_at = null, error_message = null, attempts = 0'],
    ],
    ['sync_jobs', 'an older end', [COMPLETED, "completed_at = now() - interval '1 day'"]],
    ['sync_jobs', 'a claim', [`${LEASED}, lock_token = 8`]],
    [
      'sync_checkpoints',
      'a new job that wants a chunk again',
      [COMPLETED, 'completed_at = null, attempts = 0'],
    ],
    ['sync_checkpoints', 'a replay', [FAILED, 'failed_at = null']],
  ] as const)('but not: %s, %s', async (table, _, changes) => {
    expect(await refusal(table, changes)).toBeUndefined()
  })
})
