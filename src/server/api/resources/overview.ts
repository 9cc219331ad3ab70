/** The overview, once or live. */
import { z } from 'zod'
import { readOverview } from '../overview.ts'
import { route } from '../route.ts'
import { digits, moment } from '../../../operations/fields.ts'
import { count, optionalTime, time } from '../schemas.ts'

const oldestPendingMs = z
  .int()
  .nullable()
  .describe('For how long the oldest could have been claimed; null: none can.')

const writtenAhead = count.describe(
  'Those that wait only because the clock of the database was ahead when they were written. `exact` is false where not all were read.',
)

const totals = {
  done: z.int().describe('Rows settled as done, or with another outcome that is progress.'),
  retried: z.int(),
  dead: z.int(),
  fencedOff: z.int().describe('Outcomes that were not written, because the lease was no longer current.'),
  recovered: z.int().describe('Rows taken back from expired leases and dead processes.'),
} as const

const overview = z.object({
  outbox: z.object({
    pending: count,
    claimed: count,
    published: count,
    dead: count,
    oldestPendingMs,
    writtenAhead,
  }),
  webhooks: z.object({
    pending: count,
    inFlight: count,
    delivered: count,
    failed: count,
    oldestPendingMs,
    writtenAhead,
  }),
  sync: z.object({
    open: count,
    completed: count,
    failed: count,
    chunksWaiting: count,
    chunksLeased: count,
    writtenAhead,
  }),
  workers: z.object({
    alive: z.int(),
    missing: z.int(),
    dead: z.int(),
    stopped: z.int(),
    paused: z.int(),
    stopping: z.int().describe('Alive, and finishing what they have in flight: they claim nothing more.'),
    inFlight: z.int(),
  }),
  totals: z
    .object({
      since: optionalTime.describe('When the first of these processes started.'),
      ...totals,
      tables: z.array(
        z.object({
          table: z.string().describe('With its schema.'),
          workers: z.array(z.string()).describe('The names of the workers that process it.'),
          ...totals,
        }),
      ),
    })
    .describe(
      'What the processes in the registry have done since each started: those that run, and those that ended within a day.',
    ),
  database: z.object({
    version: z.string(),
    connections: z.int(),
    maxConnections: z.int(),
    oldestSnapshot: z
      .object({
        pid: z.int(),
        application: z.string(),
        state: z.string().nullable(),
        heldForMs: z.number(),
      })
      .nullable(),
    tables: z.array(
      z.object({
        name: z.string(),
        tableBytes: digits,
        indexBytes: digits,
        liveRows: digits,
        deadRows: digits,
        lastVacuumAt: optionalTime,
      }),
    ),
  }),
})

/** One number for each time. */
function column(description: string) {
  return z.array(z.number().nullable()).describe(`${description} Null: unknown at that time.`)
}

const history = z.object({
  everyMs: z
    .int()
    .describe('How far the points are apart. A larger distance is a gap: the database did not answer.'),
  times: z.array(time),
  tables: z.array(
    z.object({
      table: z.string().describe('With its schema.'),
      workers: z.array(z.string()).describe('The names of the workers that process it.'),
      donePerSecond: column('Rows settled as done, or with another outcome that is progress.'),
      retriedPerSecond: column('Rows settled as retry.'),
      deadPerSecond: column('Rows that are dead.'),
      fencedOff: column('Outcomes that were not written since the time before.'),
      recovered: column('Rows taken back from expired leases and dead processes since the time before.'),
      latencyP50Ms: column('The median time from when a row was written until it was done.'),
      latencyP99Ms: column('The time that 99 of 100 rows did not exceed.'),
      pending: column('How many rows wait; counted every 30 s, and above 100,000 an estimate.'),
      oldestPendingMs: column('For how long the oldest row could have been claimed.'),
    }),
  ),
})

export const OVERVIEW = [
  route({
    method: 'GET',
    path: '/overview',
    summary: 'Show the state of everything at a glance',
    tag: 'overview',
    role: 'read',
    answer: overview,
    run: async ({ db, schema }) => readOverview(db, { schema }),
  }),
  route({
    method: 'GET',
    path: '/live',
    summary: 'Follow the overview as server-sent events',
    tag: 'overview',
    role: 'read',
    isStream: true,
    answer: z
      .string()
      .describe(
        'Events named "overview", whose data is a whole overview, and "history", whose data is the newest point as GET /history returns it.',
      ),
    async run({ context, request, caller, isCurrent }) {
      void context.history.start()
      return Promise.resolve(context.live.respond(request, caller.principal, isCurrent))
    },
  }),
  route({
    method: 'GET',
    path: '/history',
    summary: 'Show rates, latencies and backlogs of the last hour, in points for charts',
    tag: 'overview',
    role: 'read',
    query: z.strictObject({
      after: moment
        .optional()
        .describe('Only points after this time. Default: all since the server started.'),
    }),
    answer: history,
    async run({ context, query: { after } }) {
      await context.history.start()
      return context.history.points(after)
    },
  }),
]
