/** Events of the outbox: read, written, replayed, retried, given up. */
import { z } from 'zod'
import { LeaseholdError } from '../../../errors.ts'
import { listEvents, showEvent } from '../../../outbox/admin/browse.ts'
import { giveUp } from '../../../outbox/admin/give-up.ts'
import { replay } from '../../../outbox/admin/replay.ts'
import { retryNow } from '../../../outbox/admin/retry-now.ts'
import { createOutbox } from '../../../outbox/enqueue/enqueue.ts'
import { HISTORY_OUTCOMES } from '../../../outbox/history.ts'
import { STATUSES } from '../../../outbox/transitions.ts'
import { changeRoutes } from '../change-routes.ts'
import { route } from '../route.ts'
import {
  MAX_SCANNED,
  digits,
  moment,
  pageOf,
  paging,
  text,
  toCursor,
  uuid,
} from '../../../operations/fields.ts'
import { oneChanged, optionalTime, rowId, several, time, withReason } from '../schemas.ts'

const event = z.object({
  id: digits,
  eventId: uuid,
  type: z.string(),
  orderingKey: z.string().nullable(),
  status: z.enum(STATUSES),
  attempts: z.int(),
  maxAttempts: z.int().nullable(),
  expiries: z.int().describe('How many of its leases have expired.'),
  createdAt: time,
  availableAt: time,
  claimedAt: optionalTime,
  claimedBy: z.string().nullable(),
  lockedUntil: optionalTime,
  token: digits.describe('The fencing token.'),
  publishedAt: optionalTime,
  publishedBy: z
    .string()
    .nullable()
    .describe('The worker process that published it. It had claimed it at claimedAt, under the token.'),
  deadAt: optionalTime,
  lastError: z.string().nullable(),
  parked: z.boolean().describe('A dead event that holds up its key.'),
})

const historyEntry = z.object({
  outcome: z
    .enum(HISTORY_OUTCOMES)
    .describe(
      'retry, dead: the publisher reported a failure. expired: the lease was taken back. replayed, givenUp: an operator did so.',
    ),
  endedAt: time,
  attempt: z.int().nullable().describe('1 for the first since the event was written, or replayed.'),
  token: digits.nullable().describe('The fencing token of the attempt.'),
  owner: z.string().nullable().describe('The worker process that made the attempt.'),
  claimedAt: optionalTime,
  until: optionalTime.describe('When its lease was to expire. Null also of an attempt that succeeded.'),
  error: z.string().nullable().describe('The first 500 characters; of an operator, the reason.'),
  by: z.string().nullable().describe('The operator; null: this is an attempt.'),
})

const eventDetails = event.extend({
  payload: z.unknown(),
  headers: z.record(z.string(), z.unknown()),
  history: z
    .array(historyEntry)
    .describe(
      'What became of its attempts, and what operators did with it, the newest last; of more than 20, the newest 20.',
    ),
  waitsFor: z
    .object({
      id: digits,
      status: z.enum(STATUSES),
      parked: z.boolean(),
      attempts: z.int(),
      lastError: z.string().nullable(),
    })
    .nullable()
    .describe('The event of its key that has to be finished first.'),
})

const byId = z.strictObject({ id: rowId })

const conditions = {
  type: text.optional(),
  orderingKey: text.optional(),
  error: text.optional().describe('The last error contains this text, in upper or lower case.'),
  from: moment.optional().describe('Written at this time or later.'),
  to: moment.optional().describe('Written before this time.'),
} as const

const tag = 'outbox'

/** What one event in the path was changed by; the answer is the event as it is now. */
function oneEvent(
  verb: 'replay' | 'retry' | 'give-up',
  change: typeof replay | typeof retryNow | typeof giveUp,
) {
  const summaries = {
    replay: 'Publish a finished event once more',
    retry: 'Make a waiting event due at once',
    'give-up': 'Give up a waiting event: it is dead from now on',
  }
  return route({
    method: 'POST',
    path: `/outbox/events/{id}/${verb}`,
    summary: summaries[verb],
    tag,
    role: 'operate',
    params: byId,
    body: withReason,
    answer: eventDetails,
    async run({ db, schema, params: { id }, body, caller: { principal } }) {
      const result = await change(db, { schema, ids: [id], principal, reason: body.reason })
      const notFound = new LeaseholdError('EVENT_NOT_FOUND', `No event has the id ${id}.`)
      oneChanged(result, `The event ${id} cannot be changed so`, notFound)
      return showEvent(db, id, { schema })
    },
  })
}

export const OUTBOX = [
  route({
    method: 'GET',
    path: '/outbox/events',
    summary: 'List events, the newest first',
    tag,
    role: 'read',
    query: z.strictObject({
      ...paging,
      ...conditions,
      status: several(z.enum(STATUSES)).optional(),
      id: several(rowId).optional(),
    }),
    answer: pageOf(event),
    async run({ db, schema, query: { limit, cursor, id, ...filter } }) {
      const page = { schema, limit, before: cursor, maxScanned: MAX_SCANNED }
      const { events, next } = await listEvents(db, { ...filter, ids: id }, page)
      return { items: events, next: toCursor(next) }
    },
  }),
  route({
    method: 'POST',
    path: '/outbox/events',
    summary: 'Write an event',
    tag,
    role: 'operate',
    databaseRole: 'producer',
    status: 201,
    body: z
      .strictObject({
        type: text,
        payload: z.unknown(),
        orderingKey: text.optional(),
        headers: z.record(z.string(), z.string()).optional(),
        availableAt: moment.optional(),
        eventId: uuid.optional(),
        maxAttempts: z.int().min(1).nullable().optional(),
      })
      .meta({
        examples: [{ type: 'order.paid', payload: { orderId: 'o-1', amount: '19.90' }, orderingKey: 'o-1' }],
      }),
    answer: z.object({
      id: digits,
      eventId: uuid,
      duplicate: z.boolean().describe('There is an event with this event id, and nothing was written.'),
    }),
    run: async ({ db, schema, body }) => createOutbox({ schema }).enqueue(db, body),
  }),
  route({
    method: 'GET',
    path: '/outbox/events/{id}',
    summary: 'Show an event with its payload',
    tag,
    role: 'read',
    params: byId,
    answer: eventDetails,
    run: async ({ db, schema, params }) => showEvent(db, params.id, { schema }),
  }),
  oneEvent('replay', replay),
  oneEvent('retry', retryNow),
  oneEvent('give-up', giveUp),
  ...changeRoutes({
    path: '/outbox/events',
    rows: 'events',
    tag,
    forTenants: false,
    actions: { replay: 'outbox.replay', retry: 'outbox.retry', 'give-up': 'outbox.giveUp' },
    filter: z.strictObject({ ...conditions, status: z.array(z.enum(STATUSES)).min(1).optional() }),
  }),
]
