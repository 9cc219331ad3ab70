/** The HTTP API as this page calls it. Paths, parameters and answers are typed by the OpenAPI document. */
import createClient from 'openapi-fetch'
import type { operations, paths } from '../test/fixtures/openapi.d.ts'
import { setServerDate } from './clock.ts'
import { config, isPortal } from './config.ts'

export const API_PATH = `${config.basePath}/api/v1`

/** The JSON that an operation answers with. */
export type Answer<Name extends keyof operations> = operations[Name] extends {
  responses: infer Responses
}
  ? { [Status in keyof Responses & (200 | 201 | 202)]: JsonOf<Responses[Status]> }[keyof Responses &
      (200 | 201 | 202)]
  : never

type JsonOf<Response> = Response extends { content: { 'application/json': infer Body } } ? Body : never

/** One row of a list. */
export type ItemOf<Name extends keyof operations> =
  Answer<Name> extends { items: readonly (infer Item)[] } ? Item : never

/** An error that the API has answered with (RFC 9457), or that kept it from answering. */
export class ApiProblem extends Error {
  override readonly name = 'ApiProblem'
  /** 0: there was no answer. */
  readonly status: number
  readonly code: string
  readonly remedy: string | undefined
  readonly fields: readonly { readonly field: string; readonly detail: string }[]

  constructor(problem: {
    readonly status: number
    readonly code: string
    readonly detail: string
    readonly remedy?: string | undefined
    readonly errors?: readonly { readonly field: string; readonly detail: string }[] | undefined
  }) {
    super(problem.detail)
    this.status = problem.status
    this.code = problem.code
    this.remedy = problem.remedy
    this.fields = problem.errors ?? []
  }
}

/** The session of a portal has no cookie: in a frame of another site, the browser would not send it. */
let bearer: string | undefined
let onUnauthorized: () => void = () => {}

export function useBearer(token: string | undefined): void {
  bearer = token
}

/** Called when the API does not know the caller any more. */
export function whenUnauthorized(act: () => void): void {
  onUnauthorized = act
}

/** A request with the headers of this page, without an answer that was checked. */
export async function send(request: Request): Promise<Response> {
  if (bearer !== undefined) request.headers.set('authorization', `Bearer ${bearer}`)
  // A POST that is sent once more after a broken connection is executed once.
  if (request.method === 'POST') request.headers.set('idempotency-key', randomKey())
  // A portal is open to whoever has its link, and never to whoever else is signed in with this browser.
  const response = await fetch(request, isPortal ? { credentials: 'omit' } : {})
  if (response.status === 401) onUnauthorized()
  setServerDate(response.headers.get('date'))
  return response
}

export const api = createClient<paths>({
  baseUrl: API_PATH,
  fetch: send,
  // `status=DEAD&status=PENDING`
  querySerializer: { array: { style: 'form', explode: true } },
})

interface Result<Data> {
  readonly data?: Data | undefined
  readonly error?: unknown
  readonly response: Response
}

/** The answer of a call, or the problem as an exception. */
export async function answer<Data>(call: Promise<Result<Data>>): Promise<Exclude<Data, undefined>> {
  const { data, error, response } = await call.catch((thrown: unknown) => {
    if (thrown instanceof DOMException && thrown.name === 'AbortError') throw thrown
    throw new ApiProblem({
      status: 0,
      code: 'NO_ANSWER',
      detail: 'The server does not answer.',
      remedy: 'Is it running, and is this machine connected? The page tries again by itself.',
    })
  })
  if (response.ok) return data as Exclude<Data, undefined>
  throw new ApiProblem({
    status: response.status,
    code: 'INTERNAL',
    detail: `The server answered with the status ${response.status}.`,
    // The API answers with problems only; a proxy in between may not.
    ...(typeof error === 'object' && error !== null ? error : {}),
  })
}

/** `crypto.randomUUID` exists on pages that were sent encrypted only. */
function randomKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, '0'))
    .join('')
}
