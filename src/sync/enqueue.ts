import { LeaseholdError } from '../errors.ts'
import { payloadText } from '../messages/json.ts'
import { checkText, describeValue, isWhole, MAX_PAYLOAD_BYTES } from '../messages/validate.ts'
import { namesOf, unknownNames } from '../nearest.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Writer } from '../transactions/writer.ts'
import { writerOf } from '../transactions/adapters.ts'

export interface NewJob<Params = unknown> {
  /** What is to be synced. */
  readonly matrixId: string
  /** Passed to the plan: JSON. */
  readonly params?: Params | undefined
  /** Higher priorities come first. Default 0. */
  readonly priority?: number | undefined
  /** Also sync chunks that were synced before. */
  readonly force?: boolean | undefined
  /** Also sync chunks that were synced longer ago than this. Default: none. */
  readonly freshForMs?: number | undefined
  /** Create the job even if another job of the same matrix is open. */
  readonly parallel?: boolean | undefined
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
  const { matrixId, params, priority, force, freshForMs, parallel } = checked(definition, job)
  const writer = writerOf(tx)
  const jobs = quoteQualified(schema, 'sync_jobs')
  const insert = `insert into ${jobs} (definition, matrix_id, params, priority, force, fresh_for, parallel)
values ($1::text, $2::text, $3::jsonb, $4::int, $5::boolean, nullif($6::text, '')::float8 * interval '1 millisecond', $7::boolean)
on conflict (definition, matrix_id) where completed_at is null and failed_at is null and not parallel do nothing
returning id::text as id`
  const values = [definition, matrixId, params, priority, force, freshForMs ?? '', parallel].map(String)
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
/** The limits of the tables: longer names do not fit into an index. */
const MAX_DEFINITION_BYTES = 100
const MAX_MATRIX_BYTES = 1_000
/** A century. A longer time can only be a mistake. */
const MAX_FRESH_FOR_MS = 100 * 365.25 * 86_400_000

const FIELDS = namesOf<NewJob>({
  matrixId: true,
  params: true,
  priority: true,
  force: true,
  freshForMs: true,
  parallel: true,
})

function idIn(rows: readonly Readonly<Record<string, unknown>>[]): string | undefined {
  const id = rows[0]?.['id']
  return typeof id === 'string' ? id : undefined
}

interface CheckedJob {
  readonly matrixId: string
  readonly priority: number
  readonly force: boolean
  readonly parallel: boolean
  /** As JSON. */
  readonly params: string
  readonly freshForMs: number | undefined
}

/** Refuses a job with every problem, before anything is sent: the caller's transaction stays usable. */
function checked(definition: unknown, job: unknown): CheckedJob {
  if (typeof job !== 'object' || job === null)
    throw refusal([`the job is ${describeValue(job)}, but must be an object such as { matrixId }`])
  // The fields have unknown types until each has been checked.
  const fields = job as Readonly<Record<string, unknown>>
  const { matrixId, params = {}, priority = 0, force = false, freshForMs, parallel = false } = fields
  const text = payloadText(params, 'params')
  const rules: readonly [string, unknown, boolean, string][] = [
    [
      'priority',
      priority,
      isWhole(priority, -MAX_INT, MAX_INT),
      `a whole number from -${MAX_INT} to ${MAX_INT}`,
    ],
    ['force', force, typeof force === 'boolean', 'true or false'],
    ['parallel', parallel, typeof parallel === 'boolean', 'true or false'],
    [
      'freshForMs',
      freshForMs,
      freshForMs === undefined ||
        (typeof freshForMs === 'number' && freshForMs >= 0 && freshForMs <= MAX_FRESH_FOR_MS),
      `a number of milliseconds from 0 to ${MAX_FRESH_FOR_MS}`,
    ],
  ]
  const problems = [
    ...checkName('definition', definition, 'the name of a definition', MAX_DEFINITION_BYTES),
    ...checkName('matrixId', matrixId, 'a text that is not empty', MAX_MATRIX_BYTES),
    ...('problem' in text ? [text.problem] : checkSize(text.text)),
    ...rules
      .filter(([, , isValid]) => !isValid)
      .map(([name, value, , rule]) => `${name} is ${describeValue(value)}, but must be ${rule}`),
    ...unknownNames(fields, FIELDS, 'field'),
  ]
  if (problems.length > 0 || 'problem' in text) throw refusal(problems)
  // Each field has been checked above.
  return { matrixId, params: text.text, priority, force, freshForMs, parallel } as CheckedJob
}

function checkName(field: string, value: unknown, what: string, maxBytes: number): string[] {
  const problems = checkText(field, value, what)
  const bytes = typeof value === 'string' ? Buffer.byteLength(value) : 0
  if (problems.length > 0 || bytes <= maxBytes) return problems
  return [`${field} is ${describeValue(value)} and has ${bytes} bytes, but can have at most ${maxBytes}`]
}

function checkSize(params: string): string[] {
  const bytes = Buffer.byteLength(params)
  if (bytes <= MAX_PAYLOAD_BYTES) return []
  return [
    `params is ${describeValue(params)} and has ${bytes} bytes, but can have at most ${MAX_PAYLOAD_BYTES}`,
  ]
}

/** Each problem begins with its field; the error has that of the first. */
function refusal(problems: readonly string[]): LeaseholdError {
  const [field] = /^\w+(?=[.[]| )/.exec(problems[0] ?? '') ?? []
  return new LeaseholdError('REQUEST_INVALID', `The job was not written: ${problems.join('; ')}.`, {
    remedy: 'Correct the fields named, and enqueue the job again.',
    ...(field === undefined ? {} : { field }),
  })
}
