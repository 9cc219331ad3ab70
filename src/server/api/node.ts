/** The API as a handler of Node.js, for servers that have no Fetch handlers of their own: Express, Fastify, node:http. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { getRequestListener } from '@hono/node-server'
import type { Api } from './api.ts'

/** What frameworks add to a request. */
interface FrameworkRequest extends IncomingMessage {
  /** Express takes the path at which a handler is mounted off `url`. */
  originalUrl?: string
  /** A parser of bodies has read the request. */
  body?: unknown
  /** What is read instead of the request. */
  rawBody?: Buffer
}

export type NodeHandler = (request: IncomingMessage, response: ServerResponse) => void

/**
 * Handles requests of Node.js with the API. The path includes the base path, also where the framework has taken it off; a
 * body that the framework has parsed is used as it is.
 */
export function toNodeHandler(api: Pick<Api, 'fetch'>): NodeHandler {
  const listener = getRequestListener(async (request, env) => api.fetch(request, env), {
    // For a request without a Host header.
    hostname: 'localhost',
    // Keep the global Request and Response of the process.
    overrideGlobalObjects: false,
  })
  return (request: FrameworkRequest, response) => {
    const { originalUrl, body } = request
    if (originalUrl !== undefined) request.url = originalUrl
    if (request.readableEnded && body !== undefined && request.rawBody === undefined)
      request.rawBody = Buffer.from(typeof body === 'string' ? body : JSON.stringify(body))
    // What the API answers is never an error. A connection that fails meanwhile is closed.
    listener(request, response).catch(() => response.destroy())
  }
}
