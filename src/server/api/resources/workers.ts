/** Worker processes, and the settings that workers follow while they run. */
import { z } from 'zod'
import { LeaseholdError } from '../../../errors.ts'
import { changeSettings, listWorkers, storedSettings } from '../../../worker/index.ts'
import { route } from '../route.ts'
import { optionalTime, text, time } from '../schemas.ts'

const worker = z.object({
  id: z.string(),
  host: z.string(),
  pid: z.int(),
  version: z.string(),
  roles: z.array(z.string()),
  declared: z
    .record(z.string(), z.record(z.string(), z.unknown()))
    .describe('The settings its workers were started with.'),
  reaps: z.array(z.string()),
  serves: z
    .record(z.string(), z.object({ table: z.string(), role: z.string() }))
    .describe('The table that each of its workers processes, by the name of the worker.'),
  state: z.enum(['alive', 'missing', 'dead', 'stopped']),
  startedAt: time,
  lastSeenAt: time,
  inFlight: z.int(),
  paused: z.array(
    z.object({
      worker: z.string(),
      table: z.string(),
      reason: z.string(),
      since: z.string(),
      error: z.string().optional(),
    }),
  ),
  stoppedAt: optionalTime,
  diedAt: optionalTime,
  sessionVisible: z.boolean(),
})

/** The names and values are checked against what the workers were started with. */
const values = z.record(z.string(), z.union([z.number(), z.boolean(), z.null()]))

const setting = z.object({
  name: z.string().describe('The name of the worker.'),
  value: z.record(z.string(), z.unknown()),
  changedAt: time,
  changedBy: z.string(),
})

const byName = z.strictObject({ name: text.max(63) })

export const WORKERS = [
  route({
    method: 'GET',
    path: '/workers',
    summary: 'List the worker processes: those that run, and for a day those that have ended',
    tag: 'workers',
    role: 'read',
    answer: z.object({ items: z.array(worker) }),
    run: async ({ db, schema }) => ({ items: await listWorkers(db, schema) }),
  }),
  route({
    method: 'GET',
    path: '/workers/{id}',
    summary: 'Show a worker process',
    tag: 'workers',
    role: 'read',
    params: z.strictObject({ id: text }),
    answer: worker,
    async run({ db, schema, params: { id } }) {
      const found = (await listWorkers(db, schema)).find((each) => each.id === id)
      if (found !== undefined) return found
      throw new LeaseholdError('WORKER_NOT_FOUND', `No worker process has the id ${JSON.stringify(id)}.`, {
        remedy: 'GET /workers lists them; those that ended more than a day ago are forgotten.',
      })
    },
  }),
  route({
    method: 'GET',
    path: '/settings',
    summary: 'List the settings that workers follow in addition to those they were started with',
    tag: 'settings',
    role: 'read',
    answer: z.object({ items: z.array(setting) }),
    run: async ({ db, schema }) => ({ items: await storedSettings(db, schema) }),
  }),
  route({
    method: 'PATCH',
    path: '/settings/{name}',
    summary:
      'Change settings of a worker while it runs, in all processes; null removes a setting, paused: true pauses it',
    tag: 'settings',
    role: 'operate',
    params: byName,
    body: values,
    answer: z.record(z.string(), z.unknown()).describe('All settings of the worker.'),
    async run({ db, schema, params: { name }, body, caller: { principal } }) {
      return changeSettings(db, schema, name, body, principal)
    },
  }),
]
