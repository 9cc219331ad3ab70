/** Sync jobs and their chunks. */
import { z } from 'zod'
import { LeaseholdError } from '../../../errors.ts'
import { cancel } from '../../../sync/admin/cancel.ts'
import { listChunks } from '../../../sync/admin/chunks.ts'
import { listJobs } from '../../../sync/admin/jobs.ts'
import { progress } from '../../../sync/admin/progress.ts'
import { replay } from '../../../sync/admin/replay.ts'
import { createSync } from '../../../sync/sync.ts'
import { SYNC_STATES } from '../../../sync/transitions.ts'
import { changeRoutes } from '../change-routes.ts'
import { route } from '../route.ts'
import { MAX_SCANNED, digits, moment, pageOf, paging, text, toCursor } from '../../../operations/fields.ts'
import { oneChanged, optionalTime, several, time, withReason } from '../schemas.ts'

const tag = 'sync'

const state = z.enum(SYNC_STATES)

const job = z.object({
  id: digits,
  definition: z.string(),
  matrixId: z.string(),
  params: z.unknown(),
  priority: z.int(),
  force: z.boolean(),
  freshForMs: z.number().nullable(),
  parallel: z.boolean(),
  state: state.describe(
    'By its own lease and its end: while its chunks are synced, it is AVAILABLE between two checks of them.',
  ),
  phase: z
    .enum(['waiting', 'planning', 'syncing', 'completed', 'failed'])
    .describe('How far it is, for a person.'),
  createdAt: time,
  plannedAt: optionalTime.describe('When all of its chunks were known.'),
  nextCheckAt: time,
  attempts: z.int().describe('How often planning it has failed in a row.'),
  completedAt: optionalTime,
  failedAt: optionalTime,
  errorMessage: z.string().nullable(),
  lockedBy: z.string().nullable(),
  lockedUntil: optionalTime,
  token: digits.describe('The fencing token.'),
})

const chunkCounts = z
  .object({
    total: z.int().describe('How many are known: while the job is planned, more are added.'),
    done: z.int(),
    skipped: z.int().describe('Fresh enough when the job was planned.'),
    running: z.int(),
    waiting: z.int(),
    retrying: z.int().describe('How many of the waiting ones have failed before.'),
    failed: z.int(),
    dropped: z.int().describe('Neither done nor needed.'),
  })
  .describe('How many chunks are in which state.')

const chunk = z.object({
  hash: z.string(),
  query: z.unknown(),
  position: z.int(),
  state,
  needed: z.boolean().describe('A job waits for it.'),
  skipped: z.boolean().describe('It was fresh enough when the job was planned.'),
  attempts: z.int(),
  nextAttemptAt: time,
  lastSyncedAt: optionalTime,
  rowCount: z.number().nullable(),
  completedAt: optionalTime,
  failedAt: optionalTime,
  errorMessage: z.string().nullable(),
  lockedBy: z.string().nullable(),
  lockedUntil: optionalTime,
  token: digits,
})

const jobProgress = job.extend({
  chunks: chunkCounts,
  rows: z.number().describe('How many rows its chunks have brought, without those that were skipped.'),
  rowsPerSecond: z.number().optional().describe('Missing: unknown, or the job has ended.'),
  chunksPerMinute: z.number().optional(),
  timeLeftMs: z.number().optional().describe('At that pace. Missing: unknown.'),
  working: z.array(chunk).describe('Chunks in flight, at most 20.'),
  failures: z.array(chunk).describe('Chunks that were given up, the first ten.'),
})

const conditions = {
  definition: text.optional(),
  matrixId: text.optional(),
  error: text.optional().describe('The error contains this text, in upper or lower case.'),
  from: moment.optional().describe('Enqueued at this time or later.'),
  to: moment.optional().describe('Enqueued before this time.'),
  failedSince: moment.optional().describe('Failed at this time or later: means failed jobs only.'),
} as const

const byId = z.strictObject({ id: digits })

/** A job in the path is changed; the answer is the job as it is now. */
function oneJob(verb: keyof typeof ONE_JOB) {
  const { summary, change } = ONE_JOB[verb]
  return route({
    tag,
    role: 'operate',
    method: 'POST',
    path: `/sync/jobs/{id}/${verb}`,
    summary,
    params: byId,
    body: withReason,
    answer: jobProgress,
    async run({ db, schema, params: { id }, body, caller: { principal } }) {
      const result = await change(db, { schema, ids: [id], principal, reason: body.reason })
      const notFound = new LeaseholdError('JOB_NOT_FOUND', `No sync job has the id ${id}.`)
      oneChanged(result, `The job ${id} cannot be changed so`, notFound)
      return progress(db, id, { schema })
    },
  })
}

const ONE_JOB = {
  cancel: { summary: 'Fail an open job; what it has synced stays', change: cancel },
  replay: { summary: 'Open a failed job once more: only what has failed of it is synced', change: replay },
} as const

export const SYNC = [
  route({
    tag,
    role: 'read',
    method: 'GET',
    path: '/sync/jobs',
    summary: 'List jobs, the newest first',
    query: z.strictObject({
      ...paging,
      ...conditions,
      states: several(state).optional(),
      id: several(digits).optional(),
    }),
    answer: pageOf(job.extend({ chunks: chunkCounts })),
    async run({ db, schema, query: { limit, cursor, id, ...filter } }) {
      const page = { schema, limit, before: cursor, maxScanned: MAX_SCANNED }
      const { jobs, next } = await listJobs(db, { ...filter, ids: id }, page)
      return { items: jobs, next: toCursor(next) }
    },
  }),
  route({
    tag,
    role: 'operate',
    databaseRole: 'producer',
    method: 'POST',
    path: '/sync/jobs',
    summary: 'Enqueue a job, unless one of the same matrix is open',
    status: 201,
    body: z.strictObject({
      definition: text,
      matrixId: text.describe('What is to be synced.'),
      params: z.unknown().optional().describe('Passed to the plan.'),
      priority: z.int32().optional().describe('Higher priorities come first. Default 0.'),
      force: z.boolean().optional().describe('Also sync chunks that were synced before.'),
      freshForMs: z
        .number()
        .min(0)
        .optional()
        .describe('Also sync chunks that were synced longer ago than this.'),
      parallel: z.boolean().optional().describe('Create the job even if another one of its matrix is open.'),
    }),
    answer: z.object({
      jobId: digits,
      created: z.boolean().describe('False: a job of this matrix is open already, and nothing was written.'),
    }),
    run: async ({ db, schema, body: { definition, ...given } }) =>
      createSync({ schema }).enqueue(db, definition, given),
  }),
  route({
    tag,
    role: 'read',
    method: 'GET',
    path: '/sync/jobs/{id}',
    summary: 'Show a job and how far it is',
    params: byId,
    answer: jobProgress,
    run: async ({ db, schema, params }) => progress(db, params.id, { schema }),
  }),
  route({
    tag,
    role: 'read',
    method: 'GET',
    path: '/sync/jobs/{id}/chunks',
    summary: 'List the chunks of a job, in the order of the plan',
    params: byId,
    query: z.strictObject({ ...paging, states: several(state).optional() }),
    answer: pageOf(chunk),
    async run({ db, schema, params, query: { limit, cursor, states } }) {
      const options = { schema, limit, states, after: cursor }
      const { chunks, next } = await listChunks(db, params.id, options)
      return { items: chunks, next: toCursor(next) }
    },
  }),
  oneJob('cancel'),
  oneJob('replay'),
  ...changeRoutes({
    path: '/sync/jobs',
    rows: 'jobs',
    tag,
    forTenants: false,
    actions: { cancel: 'sync.cancel', replay: 'sync.replay' },
    filter: z.strictObject({ ...conditions, states: z.array(state).min(1).optional() }),
  }),
]
