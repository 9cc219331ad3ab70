import { inspect } from 'node:util'
import { LeaseholdError } from '../errors.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Writer } from '../transactions/writer.ts'
import { writerOf } from '../transactions/adapters.ts'

export interface NewJob<Params = unknown> {
  /** What is to be synced. */
  readonly matrixId: string
  /** Passed to the plan: JSON. */
  readonly params?: Params
  /** Higher priorities come first. Default 0. */
  readonly priority?: number
  /** Also sync chunks that were synced before. */
  readonly force?: boolean
  /** Also sync chunks that were synced longer ago than this. Default: none. */
  readonly freshForMs?: number
  /** Create the job even if another job of the same matrix is open. */
  readonly parallel?: boolean
}

export interface Enqueued {
  readonly jobId: string
  /** `false`: a job of this matrix is open already, and `jobId` is its id. */
  readonly created: boolean
}

/** Writes a job in the caller's transaction, unless the matrix has an open one. */
export async function enqueueJob(
  tx: Writer,
  schema: string,
  definition: string,
  job: NewJob,
): Promise<Enqueued> {
  const {
    matrixId,
    params = {},
    priority = 0,
    force = false,
    freshForMs,
    parallel = false,
  } = checked(definition, job)
  const writer = writerOf(tx)
  const jobs = quoteQualified(schema, 'sync_jobs')
  const insert = `insert into ${jobs} (definition, matrix_id, params, priority, force, fresh_for, parallel)
values ($1::text, $2::text, $3::jsonb, $4::int, $5::boolean, nullif($6::text, '')::float8 * interval '1 millisecond', $7::boolean)
on conflict (definition, matrix_id) where completed_at is null and failed_at is null and not parallel do nothing
returning id::text as id`
  const values = [
    definition,
    matrixId,
    JSON.stringify(params),
    priority,
    force,
    freshForMs ?? '',
    parallel,
  ].map(String)
  const find = `select id::text as id from ${jobs}
where definition = $1::text and matrix_id = $2::text and completed_at is null and failed_at is null and not parallel`
  // The open job that caused the conflict may end before it is read, so both statements are repeated.
  for (let i = 0; i < MAX_TRIES; i += 1) {
    const created = idIn((await writer.query(insert, values)).rows)
    if (created !== undefined) return { jobId: created, created: true }
    const open = idIn((await writer.query(find, [definition, matrixId])).rows)
    if (open !== undefined) return { jobId: open, created: false }
  }
  throw new LeaseholdError('WRITER_INVALID', `The job of ${matrixId} was neither written nor found.`, {
    remedy: 'What is given as the transaction must resolve query(text, values) to the rows, or to { rows }.',
  })
}

const MAX_TRIES = 5
const MAX_INT = 2_147_483_647

function idIn(rows: readonly Readonly<Record<string, unknown>>[]): string | undefined {
  const id = rows[0]?.['id']
  return typeof id === 'string' ? id : undefined
}

function checked(definition: string, job: NewJob): NewJob {
  const { matrixId, params, priority, force, freshForMs, parallel } = job
  const isText = (value: unknown): boolean =>
    typeof value === 'string' && value !== '' && !value.includes('\0')
  const isFlag = (value: unknown): boolean => value === undefined || typeof value === 'boolean'
  const rules: readonly [string, unknown, boolean, string][] = [
    ['definition', definition, isText(definition), 'the name of a definition'],
    ['matrixId', matrixId, isText(matrixId), 'a text that is not empty'],
    [
      'params',
      params,
      params === undefined || JSON.stringify(params) !== undefined,
      'a value that can be written as JSON',
    ],
    [
      'priority',
      priority,
      priority === undefined || (Number.isInteger(priority) && Math.abs(priority) <= MAX_INT),
      'a whole number',
    ],
    ['force', force, isFlag(force), 'true or false'],
    ['parallel', parallel, isFlag(parallel), 'true or false'],
    [
      'freshForMs',
      freshForMs,
      freshForMs === undefined || (freshForMs >= 0 && Number.isFinite(freshForMs)),
      'a number of milliseconds from 0',
    ],
  ]
  const broken = rules.filter(([, , isValid]) => !isValid)
  if (broken.length === 0) return job
  const problems = broken.map(([name, value, , rule]) => `${name} is ${inspect(value)}, but must be ${rule}`)
  throw new LeaseholdError('REQUEST_INVALID', `The job was not written: ${problems.join('; ')}.`)
}
