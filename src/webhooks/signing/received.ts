/** The raw request, out of what frameworks hand to a receiver. */
import { LeaseholdError } from '../../errors.ts'

/** What is used of the WHATWG `Headers`, whoever's implementation it is. */
export interface HeadersLike {
  get(name: string): string | null
}

/** What is used of the WHATWG `Request`: Hono, Next, Remix, Deno, Bun and the like give one. */
export interface FetchRequest {
  readonly headers: HeadersLike
  readonly bodyUsed: boolean
  arrayBuffer(): Promise<ArrayBuffer>
}

/** The request of Express, Fastify, Node itself or a test, with the body as it came over the wire. */
export interface RawRequest {
  readonly headers: HeadersLike | Readonly<Record<string, string | readonly string[] | undefined>>
  readonly body: string | Uint8Array
}

export type WebhookRequest = FetchRequest | RawRequest

const RAW_BODY =
  'Give the bytes as they came: JSON that was parsed and written again is not what was signed. ' +
  "Express: express.raw({ type: '*/*' }) on this route. Fastify: addContentTypeParser with parseAs: 'buffer'. " +
  'Hono, Next and other fetch handlers: the Request itself. node:http: Buffer.concat of its chunks.'

/** The value of a header, whatever the case of its name. A header that came twice has its values joined. */
export function headerOf({ headers }: WebhookRequest, name: string): string | undefined {
  if (isHeadersLike(headers)) return headers.get(name) ?? undefined
  const found = Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1]
  return typeof found === 'string' || found === undefined ? found : found.join(', ')
}

export async function bodyOf(request: WebhookRequest): Promise<Buffer> {
  if ('arrayBuffer' in request && typeof request.arrayBuffer === 'function') {
    if (request.bodyUsed) {
      refuse('The body of the request has been read already.', 'Verify first, or verify request.clone().')
    }
    return Buffer.from(await request.arrayBuffer())
  }
  // Not every caller is compiled: a parsed body is the mistake that everybody makes once.
  const body: unknown = 'body' in request ? request.body : undefined
  if (typeof body === 'string') return Buffer.from(body)
  if (body instanceof Uint8Array) return Buffer.from(body.buffer, body.byteOffset, body.byteLength)
  const found = body === null || body === undefined ? 'missing' : `${typeof body}, not text or bytes`
  return refuse(`The body of the request is ${found}.`, RAW_BODY)
}

function isHeadersLike(headers: WebhookRequest['headers']): headers is HeadersLike {
  return typeof headers.get === 'function'
}

function refuse(message: string, remedy: string): never {
  throw new LeaseholdError('REQUEST_INVALID', message, { remedy })
}
