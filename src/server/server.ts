/**
 * The HTTP server: `/livez` answers while the process is alive, `/readyz` whether it can do its work, `/metrics` what it has
 * done; and the dashboard with the HTTP API, where there is one.
 */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { getRequestListener } from '@hono/node-server'
import { LOOPBACK_HOSTS } from '../config/schema.ts'
import { LeaseholdError } from '../errors.ts'
import type { Health } from '../observe/health.ts'
import type { Api } from './api/api.ts'
import { createApp, hostInUrl } from './app.ts'

export interface ServerOptions {
  readonly version: string
  readonly health: Health
  readonly metrics?: () => Promise<string>
  readonly dashboard?: Pick<Api, 'fetch'>
  readonly host: string
  /** 0 takes any free port. */
  readonly port: number
  /** What to do when the port is taken. */
  readonly whenTaken: 'refuse' | 'anyPort'
  readonly onError: (error: Error) => void
}

export interface HttpServer {
  readonly url: string
  readonly port: number
  /** Gives running requests a moment to finish, then closes every connection. May be called more than once. */
  stop(): Promise<void>
}

/** How long requests may take to finish when the server stops. */
const CLOSE_GRACE_MS = 2_000

/** Many times what probes, scrapes and operators need, so that nobody uses up the file descriptors. */
const MAX_CONNECTIONS = 256

export async function startServer(options: ServerOptions): Promise<HttpServer> {
  const { host } = options
  let port = 0
  const isLoopback = LOOPBACK_HOSTS.includes(host)
  const app = createApp({ ...options, isLoopback, port: () => port })
  const answer = getRequestListener(app.fetch, {
    // For a request without a Host header, which is refused anyway.
    hostname: 'localhost',
    // Keep the global Request and Response of the process.
    overrideGlobalObjects: false,
  })
  const server = createServer((request, response) => {
    answer(request, response).catch(options.onError)
  })
  limitConnections(server)
  // A client that sends its request slowly would keep a connection from others.
  server.headersTimeout = 10_000
  server.requestTimeout = 30_000
  port = await listen(server, options)
  server.on('error', options.onError)

  let stopped: Promise<void> | undefined
  return {
    url: `http://${hostInUrl(host)}:${port}`,
    port,
    async stop() {
      stopped ??= close(server)
      await stopped
    },
  }
}

/**
 * At the limit, a new connection takes the place of the first one that waits for its client, which has sent no request, or
 * not the whole of one, or does not read the answer. Where every connection is being answered, the new one is closed.
 */
function limitConnections(server: Server): void {
  /** The last request of each; connections without one yet are the oldest of them that wait. */
  const connections = new Map<Socket, IncomingMessage | undefined>()
  const waitsForClient = ([socket, request]: [Socket, IncomingMessage | undefined]): boolean =>
    request?.complete !== true || socket.writableLength > 0
  server.on('connection', (socket: Socket) => {
    if (connections.size >= MAX_CONNECTIONS) {
      const [longest = socket] = [...connections].find(waitsForClient) ?? []
      connections.delete(longest)
      longest.destroy()
      if (longest === socket) return
    }
    connections.set(socket, undefined)
    socket.once('close', () => connections.delete(socket))
  })
  server.prependListener('request', (request: IncomingMessage, response: ServerResponse) => {
    connections.set(request.socket, request)
    response.once('close', () => {
      // Behind those that have waited longer.
      if (connections.delete(request.socket) && !request.socket.destroyed)
        connections.set(request.socket, undefined)
    })
  })
}

async function listen(server: Server, { host, port, whenTaken }: ServerOptions): Promise<number> {
  try {
    return await listenOn(server, host, port)
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined
    if (code === 'EADDRINUSE' && whenTaken === 'anyPort') return listenOn(server, host, 0)
    if (code === 'EADDRINUSE') throw unusable(host, port, 'the port is in use', error)
    if (code === 'EACCES') throw unusable(host, port, 'this user is not allowed to listen on it', error)
    if (code === 'EADDRNOTAVAIL' || code === 'ENOTFOUND' || code === 'EAI_AGAIN')
      throw unusable(host, port, 'this machine does not have that address', error)
    throw error
  }
}

async function listenOn(server: Server, host: string, port: number): Promise<number> {
  server.listen({ host, port })
  await once(server, 'listening')
  const address = server.address()
  return typeof address === 'object' && address !== null ? address.port : port
}

function unusable(host: string, port: number, why: string, cause: unknown): LeaseholdError {
  return new LeaseholdError('SETTING_INVALID', `HTTP cannot listen on ${hostInUrl(host)}:${port}: ${why}.`, {
    remedy: 'Choose another address with --host, or another port with --port; 0 takes any free port.',
    cause,
  })
}

async function close(server: Server): Promise<void> {
  const closed = once(server, 'close')
  server.close()
  server.closeIdleConnections()
  const timer = setTimeout(() => server.closeAllConnections(), CLOSE_GRACE_MS)
  try {
    await closed
  } finally {
    clearTimeout(timer)
  }
}
