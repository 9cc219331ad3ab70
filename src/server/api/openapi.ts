/** The OpenAPI 3.1 document, made from the schemas that validate. */
import { z } from 'zod'
import type { Route } from './route.ts'

export interface DocumentOptions {
  readonly basePath: string
  readonly version: string
}

type Json = Readonly<Record<string, unknown>>

const PROBLEM_SCHEMA = z
  .object({
    type: z.string(),
    title: z.string(),
    status: z.int(),
    detail: z.string(),
    code: z.string().describe('The error code, as docs/reference/errors.md lists them.'),
    remedy: z.string().optional(),
    errors: z.array(z.object({ field: z.string(), detail: z.string() })).optional(),
  })
  .describe('What went wrong, which fields are concerned, and what to do (RFC 9457).')

const INTEGER = { type: 'integer', minimum: 0 }

/** What the resources are. */
const TAGS: Readonly<Record<string, string>> = {
  session: 'Who the caller is, and the session of the dashboard.',
  overview: 'The state of everything at a glance, once or live.',
  workers: 'Worker processes.',
  settings: 'Settings that workers follow while they run.',
  outbox: 'Events that are published to a broker or a handler.',
  webhooks: 'Endpoints, and the deliveries to them.',
  portal: 'Links with which customers open the portal of their tenant.',
  sync: 'Jobs, and the chunks that they are split into.',
  reconcilers: 'Rows of your own tables that are examined until they settle.',
  tables: 'Lease tables.',
  leases: 'Leases that workers hold.',
  changes: 'Changes of many rows, which run in the background.',
  audit: 'What was changed, when and by whom.',
  doctor: 'What is wrong with the database, and how to repair it.',
  keys: 'The keys of this API.',
}

export function openApiDocument(routes: readonly Route[], { basePath, version }: DocumentOptions): Json {
  const paths: Record<string, Record<string, Json>> = {}
  for (const route of routes) {
    const path = (paths[route.path] ??= {})
    path[route.method.toLowerCase()] = operation(route)
  }
  const tags = [...new Set(routes.map(({ tag }) => tag))]
  const problemResponses: readonly ProblemResponse[] = Object.values(PROBLEMS)
  const responses = problemResponses.map(({ name, description, headers }) => [
    name,
    { description, ...(headers === undefined ? {} : { headers }), content: PROBLEM_CONTENT },
  ])
  return {
    openapi: '3.1.0',
    info: {
      title: 'Leasehold',
      version,
      description:
        'Ids, tokens and large numbers are strings. Lists are paged: give `next` of a page as `cursor` to get the next one. Errors are problem+json. A POST with an `Idempotency-Key` is executed once within a day.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: basePath }],
    security: [{ key: [] }],
    tags: tags.map((name) => ({ name, description: TAGS[name] ?? `Concerns ${name}.` })),
    paths,
    components: {
      securitySchemes: {
        key: {
          type: 'http',
          scheme: 'bearer',
          description: 'A key of `leasehold keys create`, or the session of the portal.',
        },
      },
      headers: {
        'RateLimit-Limit': { description: 'How many requests may be sent at once.', schema: INTEGER },
        'RateLimit-Remaining': { description: 'How many may be sent now.', schema: INTEGER },
        'RateLimit-Reset': {
          description: 'After how many seconds all of them may be sent again.',
          schema: INTEGER,
        },
        'Retry-After': { description: 'After how many seconds to try once more.', schema: INTEGER },
        'Idempotency-Replayed': {
          description: 'The request was executed before; this is its answer, without secrets.',
          schema: { type: 'string', const: 'true' },
        },
      },
      responses: Object.fromEntries(responses),
      schemas: { Problem: schemaOf(PROBLEM_SCHEMA, 'output') },
    },
  }
}

function operation(route: Route): Json {
  const { method, params, query, body, summary, tag, role, forTenants, isOpen } = route
  const needs = isOpen
    ? 'Needs no key.'
    : `Needs a key with the role ${role}${forTenants ? '; one of a tenant sees that tenant only' : ', without a tenant'}.`
  const idempotency = {
    name: 'Idempotency-Key',
    in: 'header',
    required: false,
    description: 'The request is executed once, however often it is sent with this key.',
    schema: { type: 'string', minLength: 1, maxLength: 255 },
    example: 'invoice-4711',
  }
  return {
    operationId: operationId(route),
    summary,
    description: needs,
    tags: [tag],
    ...(isOpen ? { security: [] } : {}),
    parameters: [
      ...parameters(params, 'path'),
      ...parameters(query, 'query'),
      ...(method === 'POST' && !isOpen ? [idempotency] : []),
    ],
    ...(body === undefined
      ? {}
      : {
          requestBody: {
            required: !body.safeParse(undefined).success,
            content: { 'application/json': { schema: schemaOf(body, 'input') } },
          },
        }),
    responses: {
      [String(route.status)]: success(route),
      ...problems(route),
    },
  }
}

const RATE_LIMIT = Object.fromEntries(
  ['RateLimit-Limit', 'RateLimit-Remaining', 'RateLimit-Reset'].map((name) => [name, headerRef(name)]),
)

function headerRef(name: string): Json {
  return { $ref: `#/components/headers/${name}` }
}

function success({ method, status, answer, isStream, isOpen }: Route): Json {
  const isIdempotent = method === 'POST' && !isOpen
  const headers = {
    ...RATE_LIMIT,
    ...(isIdempotent ? { 'Idempotency-Replayed': headerRef('Idempotency-Replayed') } : {}),
  }
  if (status === 204) return { description: 'Done.', headers }
  const type = isStream ? 'text/event-stream' : 'application/json'
  return { description: 'Success.', headers, content: { [type]: { schema: schemaOf(answer, 'output') } } }
}

const PROBLEM_CONTENT = { 'application/problem+json': { schema: { $ref: '#/components/schemas/Problem' } } }

const RETRY_AFTER = { 'Retry-After': headerRef('Retry-After') }

interface ProblemResponse {
  readonly name: string
  readonly description: string
  readonly headers?: Json
}

const PROBLEMS = {
  401: { name: 'KeyInvalid', description: 'There is no valid key.' },
  403: { name: 'RoleTooLow', description: 'The key may not do that.' },
  404: { name: 'NotFound', description: 'There is no such thing.' },
  409: { name: 'Conflict', description: 'Its state does not allow it, or the same request is in progress.' },
  413: { name: 'BodyTooLarge', description: 'The body has more than 1 MiB.' },
  422: { name: 'Invalid', description: 'The request is invalid; the fields are named.' },
  429: { name: 'TooManyRequests', description: 'There were too many requests.', headers: RETRY_AFTER },
  503: {
    name: 'Unavailable',
    description: 'The database does not answer, or not in time.',
    headers: RETRY_AFTER,
  },
} as const satisfies Readonly<Record<number, ProblemResponse>>

function problems({ method, params, isOpen }: Route): Json {
  const statuses = [
    401,
    ...(isOpen && method === 'GET' ? [] : ([403] as const)),
    ...(params === undefined ? [] : ([404] as const)),
    ...(method === 'GET' ? [] : ([409, 413] as const)),
    422,
    429,
    503,
  ] as const
  return Object.fromEntries(
    statuses.map((status) => [status, { $ref: `#/components/responses/${PROBLEMS[status].name}` }]),
  )
}

/** `GET /outbox/events/{id}/explain` → `getOutboxEventsByIdExplain`. */
export function operationId({ method, path }: Pick<Route, 'method' | 'path'>): string {
  const words = path
    .split('/')
    .filter((part) => part !== '')
    .map((part) => part.replace(/^\{(\w+)\}$/, 'by-$1'))
    .flatMap((part) => part.split('-'))
  return [
    method.toLowerCase(),
    ...words.map((word) => `${word.charAt(0).toUpperCase()}${word.slice(1)}`),
  ].join('')
}

function parameters(schema: z.ZodObject | undefined, where: 'path' | 'query'): Json[] {
  if (schema === undefined) return []
  const { properties = {}, required = [] } = schemaOf(schema, 'input') as {
    readonly properties?: Readonly<Record<string, Json>>
    readonly required?: readonly string[]
  }
  return Object.entries(properties).map(([name, { description, ...property }]) => ({
    name,
    in: where,
    required: where === 'path' || required.includes(name),
    ...(description === undefined ? {} : { description }),
    schema: property,
  }))
}

function schemaOf(schema: z.ZodType, io: 'input' | 'output'): Json {
  const { $schema: _, ...rest } = z.toJSONSchema(schema, {
    target: 'draft-2020-12',
    io,
    unrepresentable: 'any',
    // In JSON a codec is what it reads: JSON.stringify has no other form for a Date.
    override({ zodSchema, jsonSchema }) {
      if (io === 'output' && zodSchema instanceof z.ZodCodec)
        // What it reads is a schema of zod's, not of its core.
        Object.assign(jsonSchema, schemaOf(zodSchema.def.in as z.ZodType, 'input'))
    },
  })
  return rest
}
