/** What a request carries besides its path: the body as JSON, and the parameters of the query. */
import { LeaseholdError } from '../../errors.ts'
import { RequestProblem } from './problem.ts'
import type { GivenInput } from './route.ts'

const MAX_BODY_BYTES = 1_048_576

const NO_BODY = { body: undefined, text: '' }

/** What a request carries, not validated yet. */
export interface ReceivedInput extends GivenInput {
  /** The body as it was sent. */
  readonly text: string
}

export async function receive(
  request: Request,
  params: unknown,
  maxBytes = MAX_BODY_BYTES,
): Promise<ReceivedInput> {
  const query = queryOf(new URL(request.url))
  return { params, query, ...(await readBody(request, maxBytes)) }
}

async function readBody(
  request: Request,
  maxBytes: number,
): Promise<{ readonly body: unknown; readonly text: string }> {
  const type = request.headers.get('content-type')?.split(';', 1)[0]?.trim().toLowerCase()
  const text = await readText(request, maxBytes)
  if (text.trim() === '') return NO_BODY
  if (type !== 'application/json')
    throw new RequestProblem([
      { field: 'header.content-type', detail: `is ${type ?? 'missing'}; give application/json` },
    ])
  if (depthOf(text) > MAX_DEPTH)
    throw new RequestProblem([{ field: 'body', detail: `is nested more than ${MAX_DEPTH} levels deep` }])
  try {
    return { body: JSON.parse(text), text }
  } catch {
    throw new RequestProblem([{ field: 'body', detail: 'is not valid JSON' }])
  }
}

/** Neither JSON.stringify nor the parser of PostgreSQL can follow any depth: each level is a call. */
const MAX_DEPTH = 500

/** How deep arrays and objects are nested in a JSON text. */
function depthOf(text: string): number {
  let depth = 0
  let deepest = 0
  let isInText = false
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at]
    if (isInText) {
      if (character === '\\') at += 1
      else if (character === '"') isInText = false
    } else if (character === '"') isInText = true
    else if (character === '[' || character === '{') deepest = Math.max(deepest, (depth += 1))
    else if (character === ']' || character === '}') depth -= 1
  }
  return deepest
}

/** The length that a client states need not be true. */
async function readText(request: Request, maxBytes: number): Promise<string> {
  const chunks: Uint8Array[] = []
  let bytes = 0
  for await (const chunk of request.body ?? []) {
    bytes += chunk.byteLength
    if (bytes > maxBytes)
      throw new LeaseholdError('BODY_TOO_LARGE', `The body has more than ${maxBytes} bytes.`, {
        remedy: 'Send less at a time.',
        field: 'body',
      })
    chunks.push(chunk)
  }
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(Buffer.concat(chunks))
  } catch {
    throw new RequestProblem([{ field: 'body', detail: 'is not valid UTF-8' }])
  }
}

/** A parameter that is given more than once is a list. */
function queryOf({ searchParams }: URL): Record<string, string | string[]> {
  const names = new Set(searchParams.keys())
  return Object.fromEntries(
    [...names].map((name) => {
      const [first = '', ...others] = searchParams.getAll(name)
      return [name, others.length === 0 ? first : [first, ...others]]
    }),
  )
}
