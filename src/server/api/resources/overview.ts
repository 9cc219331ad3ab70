/** The overview, once or live. */
import { z } from 'zod'
import { readOverview } from '../overview.ts'
import { route } from '../route.ts'
import { count, digits, optionalTime } from '../schemas.ts'

const oldestPendingMs = z
  .int()
  .nullable()
  .describe('For how long the oldest could have been claimed; null: none can.')

const overview = z.object({
  outbox: z.object({ pending: count, claimed: count, published: count, dead: count, oldestPendingMs }),
  webhooks: z.object({ pending: count, inFlight: count, delivered: count, failed: count, oldestPendingMs }),
  sync: z.object({ open: count, completed: count, failed: count, chunksWaiting: count, chunksLeased: count }),
  workers: z.object({
    alive: z.int(),
    missing: z.int(),
    dead: z.int(),
    stopped: z.int(),
    paused: z.int(),
    inFlight: z.int(),
  }),
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
    answer: z.string().describe('Events named "overview"; the data of each is a whole overview.'),
    run: async ({ context, request, isCurrent }) => Promise.resolve(context.live.respond(request, isCurrent)),
  }),
]
