/** Endpoints of webhooks, and the deliveries to them. A key of a tenant sees and changes those of its tenant only. */
import { z } from 'zod'
import { isLeaseholdError, LeaseholdError } from '../../../errors.ts'
import { listDeliveries, showDelivery } from '../../../webhooks/admin/browse.ts'
import { cancel } from '../../../webhooks/admin/cancel.ts'
import { readEndpointHealth, readHealthOfEndpoints } from '../../../webhooks/admin/endpoint-health.ts'
import { summariseEndpoints } from '../../../webhooks/admin/endpoint-summary.ts'
import { replay } from '../../../webhooks/admin/replay.ts'
import { retryNow } from '../../../webhooks/admin/retry-now.ts'
import { type Endpoints, endpoints } from '../../../webhooks/endpoints/endpoints.ts'
import { sendTest } from '../../../webhooks/send/test-event.ts'
import { DELIVERY_STATUSES } from '../../../webhooks/transitions.ts'
import { changeRoutes } from '../change-routes.ts'
import { RequestProblem } from '../problem.ts'
import { type Call, route } from '../route.ts'
import {
  MAX_SCANNED,
  digits,
  limitOf,
  moment,
  pageOf,
  paging,
  reason,
  text,
  toCursor,
  uuid,
} from '../../../operations/fields.ts'
import { flag, oneChanged, optionalTime, rowId, several, time, withReason } from '../schemas.ts'

const tag = 'webhooks'
const shared = { tag, forTenants: true } as const
const forReaders = { ...shared, role: 'read' } as const
const forOperators = { ...shared, role: 'operate' } as const

// Endpoints

const endpoint = z.object({
  id: uuid,
  tenant: z.string().describe('Empty: the default tenant.'),
  url: z.string(),
  description: z.string(),
  eventTypes: z.array(z.string()).describe('Empty: all types.'),
  headers: z.record(z.string(), z.string()).describe('Their names; the values are hidden.'),
  ratePerSecond: z.number().nullable(),
  concurrency: z.int(),
  timeoutMs: z.int(),
  ordered: z.boolean(),
  signing: z.enum(['v1', 'v1a']),
  enabled: z.boolean(),
  disabledReason: z.string().nullable(),
  disabledAt: optionalTime,
  failures: z.int().describe('How many attempts in a row had failed when the circuit last opened or closed.'),
  failingSince: optionalTime.describe('When the circuit opened; null while it is closed.'),
  openUntil: optionalTime.describe('No delivery is attempted before this time.'),
  previousSecretUntil: optionalTime.describe(
    'Until when deliveries are also signed with the secret before the last rotation.',
  ),
  createdAt: time,
  updatedAt: time,
})

const publicKey = z
  .string()
  .nullable()
  .describe('The key that receivers of v1a verify with. Null for v1, and for keys with the role read.')

const endpointDetails = endpoint.extend({ publicKey })

const updatedEndpoint = endpoint.extend({
  headersRemoved: z
    .array(z.string())
    .describe('The headers that were removed, because the new url has another scheme, host or port.'),
})

const endpointWithSecret = endpointDetails.extend({
  secret: z
    .string()
    .optional()
    .describe('The secret: it is shown once, and not when the request is repeated.'),
})

const tenantName = z.string().max(255)

/** What can be changed at any time. The values are checked by the same code that checks them for the library. */
const changeable = {
  description: z.string().optional(),
  eventTypes: z
    .array(z.string())
    .optional()
    .describe('`order.paid`; `order.*` is every type that begins with `order.`. Empty: all types.'),
  headers: z
    .record(z.string(), z.string())
    .optional()
    .describe('Sent with every delivery; stored encrypted.'),
  ratePerSecond: z.number().positive().nullable().optional().describe('Null: no limit.'),
  concurrency: z.int().min(1).optional(),
  timeoutMs: z.int().min(1).optional(),
  ordered: z
    .boolean()
    .optional()
    .describe('Whether events of an ordering key are delivered one at a time, in the order sent.'),
} as const

const url = z.string('give a URL as a text')
const secret = z.string().max(1_000).optional().describe('Default: a new one.')
const byEndpoint = z.strictObject({ id: uuid })

type AnyCall = Pick<Call<unknown, unknown, unknown>, 'db' | 'schema' | 'caller' | 'context'>

/** Who reads all tenants with the role read may not read secrets, from which a public key is computed: without a key, they are not read. */
function endpointsOf({ db, schema, caller, context }: AnyCall): Endpoints {
  const readsNoSecrets = caller.tenant === null && caller.role === 'read'
  return endpoints(db, { ...context.webhooks, schema, ...(readsNoSecrets ? { secretKey: '' } : {}) })
}

const ENDPOINTS = [
  route({
    ...forReaders,
    method: 'GET',
    path: '/webhooks/endpoints',
    summary: 'List endpoints in the order of their creation',
    query: z.strictObject({
      ...paging,
      tenant: tenantName.optional(),
      enabled: flag.optional(),
      eventType: text.optional().describe('Only endpoints that receive events of this type.'),
    }),
    answer: pageOf(endpoint),
    async run({ query: { limit, cursor, ...filter }, ...call }) {
      const page = await endpointsOf(call).list({ ...filter, limit, after: endpointCursor(cursor) })
      return { items: page.endpoints, next: toCursor(page.next) }
    },
  }),
  route({
    ...forOperators,
    method: 'POST',
    path: '/webhooks/endpoints',
    summary: 'Create an endpoint',
    status: 201,
    body: z.strictObject({
      url,
      tenant: tenantName
        .optional()
        .describe('Default: the tenant of the key, or else the empty text, the default tenant.'),
      ...changeable,
      signing: z
        .enum(['v1', 'v1a'])
        .optional()
        .describe('v1: HMAC-SHA256 with a shared secret; v1a: ed25519.'),
      secret,
      reason: reason.optional(),
    }),
    answer: endpointWithSecret,
    secrets: ['secret'],
    async run({ body: { reason: why, tenant, ...given }, ...call }) {
      const { principal, tenant: own } = call.caller
      const by = { principal, reason: why }
      const created = await endpointsOf(call)
        .create({ ...given, tenant: tenant ?? own ?? '' }, by)
        .catch((error: unknown) => throwOtherTenant(error, tenant, own))
      const { endpoint: made, ...shown } = created
      return { ...made, ...shown }
    },
  }),
  route({
    ...forReaders,
    method: 'GET',
    path: '/webhooks/endpoints/{id}',
    summary: 'Show an endpoint',
    params: byEndpoint,
    answer: endpointDetails,
    run: async ({ params, ...call }) => endpointsOf(call).get(params.id),
  }),
  route({
    ...forOperators,
    method: 'PATCH',
    path: '/webhooks/endpoints/{id}',
    summary:
      'Change an endpoint; a new url also closes its circuit, and removes its headers if it has another scheme, host or port and no headers are given',
    params: byEndpoint,
    body: z.strictObject({ url: url.optional(), ...changeable, reason: reason.optional() }),
    answer: updatedEndpoint,
    async run({ params, body: { reason: why, ...changes }, ...call }) {
      return endpointsOf(call).update(params.id, changes, {
        principal: call.caller.principal,
        reason: why,
      })
    },
  }),
  route({
    ...forOperators,
    method: 'DELETE',
    path: '/webhooks/endpoints/{id}',
    summary: 'Delete an endpoint; its waiting deliveries fail within a minute or so',
    params: byEndpoint,
    query: z.strictObject({ reason: reason.optional() }),
    status: 204,
    answer: z.null(),
    async run({ params, query, ...call }) {
      await endpointsOf(call).delete(params.id, { principal: call.caller.principal, ...query })
      return null
    },
  }),
  route({
    ...forOperators,
    method: 'POST',
    path: '/webhooks/endpoints/{id}/enable',
    summary: 'Enable an endpoint, and close its circuit',
    params: byEndpoint,
    body: withReason,
    answer: endpoint,
    run: async ({ params, body, ...call }) =>
      endpointsOf(call).enable(params.id, { principal: call.caller.principal, ...body }),
  }),
  route({
    ...forOperators,
    method: 'POST',
    path: '/webhooks/endpoints/{id}/disable',
    summary: 'Disable an endpoint: nothing new is sent to it, and its deliveries wait',
    params: byEndpoint,
    body: withReason,
    answer: endpoint,
    run: async ({ params, body, ...call }) =>
      endpointsOf(call).disable(params.id, { principal: call.caller.principal, ...body }),
  }),
  route({
    ...forOperators,
    method: 'POST',
    path: '/webhooks/endpoints/{id}/rotate-secret',
    summary: 'Give an endpoint a new secret; for a while deliveries are also signed with the old one',
    params: byEndpoint,
    body: z.strictObject({
      keepOldForMs: z
        .int()
        .min(0)
        .optional()
        .describe(
          'How long deliveries are also signed with the old secret. Give 0 if it has leaked. Default: a day.',
        ),
      secret,
      reason: reason.optional(),
    }),
    answer: endpointWithSecret,
    secrets: ['secret'],
    async run({ params, body: { reason: why, ...options }, ...call }) {
      const by = { principal: call.caller.principal, reason: why }
      const { endpoint: rotated, ...shown } = await endpointsOf(call).rotateSecret(params.id, by, options)
      return { ...rotated, ...shown }
    },
  }),
]

function endpointCursor(cursor: string | undefined): string | undefined {
  const after = cursor
  if (after === undefined || uuid.safeParse(after).success) return after
  throw new RequestProblem([
    { field: 'query.cursor', detail: 'is a cursor of another list; give `next` of the page before' },
  ])
}

/** The database lets a key of a tenant write endpoints of that tenant only (row-level security). */
function throwOtherTenant(error: unknown, given: string | undefined, own: string | null): never {
  const cause = isLeaseholdError(error, 'PERMISSION_DENIED') ? error.cause : error
  if (own === null || !(cause instanceof Error) || !cause.message.includes('row-level security')) throw error
  throw new RequestProblem([
    {
      field: 'body.tenant',
      detail: `is ${JSON.stringify(given)}; the key is limited to the tenant ${JSON.stringify(own)}: give that, or leave it out`,
    },
  ])
}

const health = z.object({
  id: uuid,
  url: z.string().nullable().describe('Null: the endpoint has been deleted.'),
  tenant: z.string().nullable(),
  state: z
    .enum(['deleted', 'disabled', 'open', 'probing', 'ok'])
    .describe('open: nothing is attempted; probing: the next delivery shows whether it is back.'),
  reason: z.string().nullable().describe('Why it is disabled.'),
  since: optionalTime.describe('Since when it is disabled, or its circuit open.'),
  openUntil: optionalTime,
  pending: z.int().describe('Counted up to 1,000.'),
  failed: z.int().describe('Among the newest 100,000 that have failed.'),
})

const partial = z
  .boolean()
  .describe(
    'True: there may be more attempts. Only the newest 100,000 deliveries of these endpoints are searched, and 10,000 read.',
  )

const endpointHealth = z.object({
  id: uuid,
  hours: z
    .array(
      z.object({
        from: time,
        delivered: z.int().describe('Attempts that succeeded.'),
        failed: z.int().describe('Attempts that failed.'),
        medianMs: z.number().nullable().describe('The median duration of the attempts.'),
      }),
    )
    .describe('24, the oldest first; the last is the current hour.'),
  failures: z
    .array(z.object({ deliveryId: digits, at: time, status: z.int().nullable(), errorCode: z.string() }))
    .describe('The last ten attempts that failed, the newest first.'),
  partial,
})

const sparkline = z.object({
  id: uuid,
  delivered: z.array(z.int()).describe('Attempts that succeeded, for each of the times.'),
  failed: z.array(z.int()).describe('Attempts that failed.'),
})

// Deliveries

const delivery = z.object({
  id: digits,
  eventId: uuid.describe('The webhook-id, by which receivers recognise the event.'),
  endpointId: uuid,
  endpointUrl: z.string().nullable().describe('Null: the endpoint has been deleted.'),
  tenant: z.string().nullable(),
  type: z.string(),
  orderingKey: z.string().nullable(),
  status: z.enum(DELIVERY_STATUSES),
  attempts: z.int().describe('How many attempts have failed; an expired lease counts as one.'),
  expiries: z.int().describe('How many of its leases have expired.'),
  createdAt: time,
  nextAttemptAt: time,
  leaseOwner: z.string().nullable(),
  leaseUntil: optionalTime,
  token: digits.describe('The fencing token.'),
  deliveredAt: optionalTime,
  failedAt: optionalTime,
  lastAttemptAt: optionalTime,
  lastDurationMs: z.int().nullable(),
  lastStatus: z.int().nullable(),
  lastErrorCode: z.string().nullable(),
  lastError: z.string().nullable(),
})

const attempt = z.object({
  attempt: z.int().describe('1 for the first since the event was sent, or replayed.'),
  token: digits,
  startedAt: optionalTime.describe('Null: its dispatcher died, and nobody knows.'),
  durationMs: z.int().nullable(),
  status: z.int().nullable(),
  errorCode: z.string().nullable().describe('Null: it succeeded.'),
  error: z.string().nullable(),
  response: z.string().nullable().describe('The beginning of the response.'),
  recordedAt: time,
})

const deliveryDetails = delivery.extend({
  body: z.string().describe('Byte for byte as it is signed and sent.'),
  headers: z.record(z.string(), z.string()),
  history: z.array(attempt).describe('The newest last; of more than 100, the newest 100.'),
  waitsFor: z
    .object({
      id: digits,
      attempts: z.int(),
      lastError: z.string().nullable(),
      inFlight: z.boolean(),
    })
    .nullable()
    .describe('The delivery of its ordering key that has to be finished first.'),
})

const conditions = {
  endpoint: uuid.optional(),
  tenant: tenantName.optional().describe('Of the endpoints of this tenant. Empty: the default tenant.'),
  type: text.optional(),
  error: text
    .optional()
    .describe('The last error has this code, or contains this text, in upper or lower case.'),
  from: moment.optional().describe('Sent at this time or later.'),
  to: moment.optional().describe('Sent before this time.'),
  failedSince: moment.optional().describe('Failed at this time or later: means failed deliveries only.'),
} as const

const byDelivery = z.strictObject({ id: rowId })

/** A delivery in the path is changed; the answer is the delivery as it is now. */
function oneDelivery(verb: keyof typeof ONE_DELIVERY) {
  const { summary, change, filter } = ONE_DELIVERY[verb]
  return route({
    ...forOperators,
    method: 'POST',
    path: `/webhooks/deliveries/{id}/${verb}`,
    summary,
    params: byDelivery,
    body: withReason,
    answer: deliveryDetails,
    async run({ db, schema, params: { id }, body, caller: { principal } }) {
      const result = await change(db, { schema, ids: [id], filter, principal, reason: body.reason })
      const notFound = new LeaseholdError('DELIVERY_NOT_FOUND', `No delivery has the id ${id}.`)
      oneChanged(result, `The delivery ${id} cannot be changed so`, notFound)
      return showDelivery(db, id, { schema })
    },
  })
}

/** As many as a page of a list shows. */
const MAX_SPARKLINES = 50

const ONE_DELIVERY = {
  replay: {
    summary: 'Send a finished delivery once more',
    change: replay,
    // Whoever names one delivery means it, also when it has arrived.
    filter: { status: ['failed', 'delivered'] },
  },
  retry: { summary: 'Make a waiting delivery due at once', change: retryNow, filter: {} },
  cancel: { summary: 'Fail a waiting delivery without another attempt', change: cancel, filter: {} },
} as const

export const WEBHOOKS = [
  ...ENDPOINTS,
  route({
    ...forOperators,
    method: 'POST',
    path: '/webhooks/endpoints/{id}/test',
    summary: 'Send a test event to an endpoint, of the type webhook.test, whatever it subscribes to',
    params: byEndpoint,
    body: z.strictObject({ reason: reason.optional() }),
    status: 201,
    answer: deliveryDetails,
    async run({ db, schema, params, body, caller: { principal } }) {
      const { id } = await sendTest(db, params.id, { principal, ...body }, { schema })
      return showDelivery(db, id, { schema })
    },
  }),
  route({
    ...forReaders,
    method: 'GET',
    path: '/webhooks/health',
    summary:
      'List the endpoints that get nothing, or have deliveries that wait or have failed, the worst first',
    query: z.strictObject({ limit: limitOf(20) }),
    answer: z.object({ items: z.array(health), more: z.boolean() }),
    async run({ db, schema, query: { limit }, caller }) {
      // Policies see to it that a key sees its tenant only. Naming the tenant leads to its deliveries.
      const tenant = caller.tenant ?? undefined
      const { endpoints: items, more } = await summariseEndpoints(db, { schema, limit, tenant })
      return { items, more }
    },
  }),
  route({
    ...forReaders,
    method: 'GET',
    path: '/webhooks/endpoints/{id}/health',
    summary: 'Show how the attempts at an endpoint went in the last 24 hours, and its last failures',
    params: byEndpoint,
    answer: endpointHealth,
    run: async ({ db, schema, params }) => readEndpointHealth(db, params.id, { schema }),
  }),
  route({
    ...forReaders,
    method: 'GET',
    path: '/webhooks/sparklines',
    summary: 'Count the attempts at several endpoints in each of the last 24 hours',
    query: z.strictObject({
      endpoint: several(uuid)
        .refine((ids) => ids.length <= MAX_SPARKLINES, `give at most ${MAX_SPARKLINES} endpoints`)
        .optional()
        .describe(
          `Repeat it for several, up to ${MAX_SPARKLINES}. Default: the first ${MAX_SPARKLINES} in the order of their creation.`,
        ),
    }),
    answer: z.object({
      times: z.array(time).describe('The starts of the hours; the last is the current one.'),
      items: z.array(sparkline).describe('Of the endpoints that exist.'),
      partial,
    }),
    async run({ query: { endpoint: given }, ...call }) {
      const { db, schema } = call
      const ids =
        given ?? (await endpointsOf(call).list({ limit: MAX_SPARKLINES })).endpoints.map(({ id }) => id)
      const all = await readHealthOfEndpoints(db, ids, { schema })
      return {
        times: (all[0]?.hours ?? []).map(({ from }) => from),
        items: all.map(({ id, hours }) => ({
          id,
          delivered: hours.map(({ delivered }) => delivered),
          failed: hours.map(({ failed }) => failed),
        })),
        partial: all.some((each) => each.partial),
      }
    },
  }),
  route({
    ...forReaders,
    method: 'GET',
    path: '/webhooks/deliveries',
    summary: 'List deliveries, the newest first',
    query: z.strictObject({
      ...paging,
      ...conditions,
      status: several(z.enum(DELIVERY_STATUSES)).optional(),
      id: several(rowId)
        .optional()
        .describe('The number of a delivery, or an event id: all deliveries of the event.'),
    }),
    answer: pageOf(delivery),
    async run({ db, schema, query: { limit, cursor, id, ...filter }, caller }) {
      const page = { schema, limit, before: cursor, maxScanned: MAX_SCANNED }
      // Policies see to it that a key sees its tenant only. Naming the tenant leads to its deliveries.
      const tenant = filter.tenant ?? caller.tenant ?? undefined
      const { deliveries, next } = await listDeliveries(db, { ...filter, tenant, ids: id }, page)
      return { items: deliveries, next: toCursor(next) }
    },
  }),
  route({
    ...forReaders,
    method: 'GET',
    path: '/webhooks/deliveries/{id}',
    summary: 'Show a delivery with its body and its attempts',
    params: byDelivery,
    answer: deliveryDetails,
    run: async ({ db, schema, params }) => showDelivery(db, params.id, { schema }),
  }),
  oneDelivery('replay'),
  oneDelivery('retry'),
  oneDelivery('cancel'),
  // To recover an endpoint since a time: replay with the filter { endpoint, failedSince }.
  ...changeRoutes({
    path: '/webhooks/deliveries',
    rows: 'deliveries',
    tag,
    forTenants: true,
    actions: { replay: 'webhooks.replay', retry: 'webhooks.retry', cancel: 'webhooks.cancel' },
    filter: z.strictObject({ ...conditions, status: z.array(z.enum(DELIVERY_STATUSES)).min(1).optional() }),
  }),
]
