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
    code: z.string().describe('The error code, as docs/errors.md lists them.'),
    remedy: z.string().optional(),
    errors: z.array(z.object({ field: z.string(), detail: z.string() })).optional(),
  })
  .describe('What went wrong, which fields are concerned, and what to do (RFC 9457).')

export function openApiDocument(routes: readonly Route[], { basePath, version }: DocumentOptions): Json {
  const paths: Record<string, Record<string, Json>> = {}
  for (const route of routes) {
    const path = (paths[route.path] ??= {})
    path[route.method.toLowerCase()] = operation(route)
  }
  const tags = [...new Set(routes.map(({ tag }) => tag))]
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
    tags: tags.map((name) => ({ name })),
    paths,
    components: {
      securitySchemes: {
        key: { type: 'http', scheme: 'bearer', description: 'A key of `leasehold keys create`.' },
      },
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

function success({ status, answer, isStream }: Route): Json {
  if (status === 204) return { description: 'Done.' }
  const type = isStream ? 'text/event-stream' : 'application/json'
  return { description: 'Success.', content: { [type]: { schema: schemaOf(answer, 'output') } } }
}

const PROBLEM = {
  content: { 'application/problem+json': { schema: { $ref: '#/components/schemas/Problem' } } },
}

function problems({ method, params, isOpen }: Route): Json {
  return {
    401: { description: 'There is no valid key.', ...PROBLEM },
    ...(isOpen ? {} : { 403: { description: 'The key may not do that.', ...PROBLEM } }),
    ...(params === undefined ? {} : { 404: { description: 'There is no such thing.', ...PROBLEM } }),
    ...(method === 'GET'
      ? {}
      : {
          409: {
            description: 'Its state does not allow it, or the same request is in progress.',
            ...PROBLEM,
          },
        }),
    422: { description: 'The request is invalid; the fields are named.', ...PROBLEM },
    429: { description: 'There were too many requests.', ...PROBLEM },
    503: { description: 'The database does not answer, or not in time.', ...PROBLEM },
  }
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
  })
  return rest
}
