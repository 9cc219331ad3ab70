/** Worker processes, and the settings that workers follow while they run. */
import { z } from 'zod'
import { appliedSettings } from '../../../operations/renewals.ts'
import { LeaseholdError } from '../../../errors.ts'
import type { Database } from '../../../postgres/database.ts'
import {
  changeSettings,
  LATENCY_BOUNDS_MS,
  listWorkers,
  storedSettings,
  type WorkerRow,
  type WorkerSettings,
} from '../../../worker/index.ts'
import { route } from '../route.ts'
import { text } from '../../../operations/fields.ts'
import { optionalTime, time } from '../schemas.ts'

const tableCounters = z.object({
  claims: z.int().describe('Claims that found rows.'),
  claimed: z.int(),
  done: z.int().describe('Rows settled as done, or with another outcome that is progress.'),
  retried: z.int(),
  dead: z.int(),
  failed: z.int().describe('Rows whose handler threw or reported a failure.'),
  fencedOff: z.int(),
  recovered: z.int().describe('Rows taken back from expired leases and dead processes.'),
  renewed: z.int().describe('Leases renewed, counted at each renewal.'),
  outcomes: z
    .record(z.string(), z.int())
    .describe('Rows by outcome, for outcomes other than done, retry and dead.'),
  latency: z
    .array(z.int())
    .describe(
      `Rows that are done, by the time since they were written: up to ${LATENCY_BOUNDS_MS.join(', ')} ms, and above.`,
    ),
  lastError: z.object({ at: z.string(), error: z.string() }).optional(),
})

const worker = z.object({
  id: z.string(),
  host: z.string(),
  pid: z.int(),
  version: z.string(),
  roles: z.array(z.string()),
  declared: z
    .record(z.string(), z.record(z.string(), z.unknown()))
    .describe('The settings its workers were started with.'),
  settings: z
    .record(z.string(), z.record(z.string(), z.union([z.number(), z.boolean()])))
    .describe(
      'The settings its workers run with: those they were started with, those that are stored, and defaults.',
    ),
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
  counters: z
    .object({ uptimeMs: z.int(), tables: z.record(z.string(), tableCounters) })
    .describe('What it has done since it started, by table.'),
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

async function workersWithSettings(
  db: Database,
  schema: string,
): Promise<(WorkerRow & { readonly settings: Readonly<Record<string, WorkerSettings>> })[]> {
  const [workers, stored] = await Promise.all([listWorkers(db, schema), storedSettings(db, schema)])
  const byName = new Map(stored.map(({ name, value }) => [name, value]))
  return workers.map((each) => {
    const known = Object.entries(each.declared ?? {}).flatMap(([name, declared]) => {
      const settings = appliedSettings(declared, byName.get(name))
      return settings === undefined ? [] : [[name, settings] as const]
    })
    return { ...each, settings: Object.fromEntries(known) }
  })
}

const byName = z.strictObject({ name: text.max(63) })

export const WORKERS = [
  route({
    method: 'GET',
    path: '/workers',
    summary: 'List the worker processes: those that run, and for a day those that have ended',
    tag: 'workers',
    role: 'read',
    answer: z.object({ items: z.array(worker) }),
    run: async ({ db, schema }) => ({ items: await workersWithSettings(db, schema) }),
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
      const found = (await workersWithSettings(db, schema)).find((each) => each.id === id)
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
