/** One route of the API: what it takes, what it answers, who may call it. The schemas validate, and make the OpenAPI document. */
import { z } from 'zod'
import type { KeyRole } from '../../operations/roles.ts'
import type { Database } from '../../postgres/database.ts'
import type { RoleKind } from '../../postgres/permissions.ts'
import type { ApiContext } from './api.ts'
import type { FieldProblem } from '../../errors.ts'
import { fromText, problemsIn, shorten } from '../../operations/input.ts'
import { RequestProblem } from './problem.ts'

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'

type Shape = z.ZodObject

/** Who sent a request. */
export interface Caller {
  /** The name of the key, or of the user: the audit's principal. */
  readonly principal: string
  readonly role: KeyRole
  /** The only tenant that the caller sees. Null: not limited. */
  readonly tenant: string | null
}

export type CallerKind = 'key' | 'session' | 'portal' | 'local' | 'custom'

/** Who sent a request, and how that is known. */
export interface IdentifiedCaller extends Caller {
  /** `local`: without a key, where that is allowed. `custom`: by an `authorize` of the user's own. */
  readonly kind: CallerKind
  /** The key that the request was sent with, or that its session was made with. */
  readonly keyId: string | null
  /** Until when it is accepted. Null: nobody knows an end. */
  readonly expiresAt: Date | null
}

export interface Call<Params, Query, Body> {
  readonly params: Params
  readonly query: Query
  readonly body: Body
  /** Acts as the caller. In a POST, PUT, PATCH or DELETE everything is one transaction. */
  readonly db: Database
  readonly schema: string
  readonly caller: IdentifiedCaller
  readonly context: ApiContext
  readonly request: Request
  /** Of the response. */
  readonly headers: Headers
  /** Is called once the transaction of the request has been committed. */
  readonly afterwards: (act: () => void) => void
  /** Whether the caller may still do this: a key can be revoked while a stream runs. */
  readonly isCurrent: () => Promise<boolean>
}

export interface RouteDeclaration<
  Params extends Shape,
  Query extends Shape,
  Body extends z.ZodType,
  Answer extends z.ZodType,
> {
  readonly method: Method
  /** Below the base path: `/outbox/events/{id}`. */
  readonly path: string
  /** One line, in the imperative. */
  readonly summary: string
  /** The resource that it belongs to. */
  readonly tag: string
  readonly role: KeyRole
  /** Whether keys that are limited to a tenant may call it. The database limits what they see. Default false. */
  readonly forTenants?: boolean
  /** The database role it acts as, if not that of the caller's role. */
  readonly databaseRole?: RoleKind
  readonly params?: Params
  readonly query?: Query
  readonly body?: Body
  /** The status of success. Default 200; 204 has no body. */
  readonly status?: 200 | 201 | 202 | 204
  readonly answer: Answer
  /**
   * Makes the route open: it needs no key. Returns the token that the request carries, by which it is limited; undefined: by
   * the address of the client. Refuses what cannot be a token, which no limit counts and for which no database is asked.
   */
  readonly tokenIn?: (request: Request, body: z.output<Body>) => string | undefined
  /** Whether the answer is a stream of live updates: `run` returns the response itself. Default false. */
  readonly isStream?: boolean
  /** Fields of the answer that are shown once, and not stored for repeated requests. */
  readonly secrets?: readonly string[]
  readonly run: (call: Call<z.output<Params>, z.output<Query>, z.output<Body>>) => Promise<unknown>
}

/** A route whose types are known only to itself. */
export interface Route {
  readonly method: Method
  readonly path: string
  readonly summary: string
  readonly tag: string
  readonly role: KeyRole
  readonly forTenants: boolean
  readonly databaseRole: RoleKind | undefined
  readonly params: Shape | undefined
  readonly query: Shape | undefined
  readonly body: z.ZodType | undefined
  readonly status: 200 | 201 | 202 | 204
  readonly answer: z.ZodType
  /** Whether it needs no key. */
  readonly isOpen: boolean
  /** Of an open route: the token that a request carries. */
  readonly tokenIn: (request: Request, given: GivenInput) => string | undefined
  readonly isStream: boolean
  readonly secrets: readonly string[]
  readonly run: (
    given: GivenInput,
    rest: Omit<Call<never, never, never>, 'params' | 'query' | 'body'>,
  ) => Promise<unknown>
}

export interface GivenInput {
  readonly params: unknown
  readonly query: unknown
  readonly body: unknown
}

const NOTHING = z.strictObject({})

/** Clients that always send JSON send an empty object. */
const NO_BODY = NOTHING.optional()

export function route<
  Params extends Shape = typeof NOTHING,
  Query extends Shape = typeof NOTHING,
  Body extends z.ZodType = z.ZodUndefined,
  Answer extends z.ZodType = z.ZodType,
>(declaration: RouteDeclaration<Params, Query, Body, Answer>): Route {
  const { forTenants = false, isStream = false, databaseRole, tokenIn } = declaration
  const { params, query, body, status = 200, secrets = [] } = declaration
  const validate = (given: GivenInput): Input<Params, Query, Body> => {
    const problems: FieldProblem[] = []
    const parse = <Schema extends z.ZodType>(
      schema: Schema,
      where: string,
      value: unknown,
    ): z.output<Schema> => {
      const parsed = schema.safeParse(value)
      if (parsed.success) return parsed.data
      problems.push(...requestProblems(parsed.error, where, value))
      // What follows is not reached: all problems are reported together.
      return undefined as z.output<Schema>
    }
    const input = {
      // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- without a schema there is nothing to give
      params: parse((params ?? NOTHING) as Params, 'path', given.params),
      // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- as above
      query: parse((query ?? NOTHING) as Query, 'query', readQuery(query, given.query)),
      // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- as above
      body: parse((body ?? NO_BODY) as Body, 'body', given.body),
    }
    if (problems.length > 0) throw new RequestProblem(problems)
    return input
  }
  return {
    ...declaration,
    forTenants,
    isOpen: tokenIn !== undefined,
    tokenIn: (request, given) => tokenIn?.(request, validate(given).body),
    isStream,
    databaseRole,
    params,
    query,
    body,
    status,
    secrets,
    run: async (given, rest) => declaration.run({ ...rest, ...validate(given) }),
  }
}

interface Input<Params extends Shape, Query extends Shape, Body extends z.ZodType> {
  readonly params: z.output<Params>
  readonly query: z.output<Query>
  readonly body: z.output<Body>
}

function requestProblems(error: z.ZodError, where: string, value: unknown): FieldProblem[] {
  return problemsIn(error, value).map(({ path, is, rule }) => ({
    field: fieldAt([where, ...path]),
    detail: is === undefined ? rule : `is ${is}; ${rule}`,
  }))
}

/** The parameters of a query are texts. One that is repeated has several, and is read by its schema. */
function readQuery(schema: Shape | undefined, given: unknown): unknown {
  if (schema === undefined || typeof given !== 'object' || given === null) return given
  return Object.fromEntries(
    Object.entries(given).map(([name, value]: [string, unknown]) => {
      const declared: unknown = Object.hasOwn(schema.shape, name) ? schema.shape[name] : undefined
      return [
        name,
        typeof value === 'string' && declared instanceof z.ZodType ? fromText(declared, value) : value,
      ]
    }),
  )
}

/** A client may name a field as it likes. */
function fieldAt(path: readonly string[]): string {
  return path.map((part) => shorten(part.toWellFormed())).join('.')
}

/** The functions that a route calls name a field alone: `to` is `query.to`, `body.to` or `body.filter.to`. */
export function locateField({ params, query, body }: Route, field: string): string {
  const [name = ''] = field.split(/[.[]/, 1)
  if (/^(path|query|body|header)$/.test(name)) return field
  if (name === 'before' && hasField(query, 'cursor')) return 'query.cursor'
  if (hasField(body, name)) return `body.${field}`
  if (hasField(query, name)) return `query.${field}`
  if (hasField(params, name)) return `path.${field}`
  const filter = body instanceof z.ZodObject ? (body.shape['filter'] as unknown) : undefined
  const isOfFilter = filter instanceof z.ZodOptional && hasField(filter.unwrap(), name)
  if (isOfFilter) return `body.filter.${field}`
  // A body with any fields, such as the settings of a worker.
  return body instanceof z.ZodRecord ? `body.${field}` : field
}

function hasField(schema: unknown, name: string): boolean {
  return schema instanceof z.ZodObject && Object.hasOwn(schema.shape, name)
}
