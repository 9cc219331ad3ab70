import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { getRequestListener } from '@hono/node-server'
import { LeaseholdError } from '../errors.ts'
import type { Health } from '../observe/health.ts'
import { createApp } from './app.ts'
import { inUrl, isLoopbackHost } from '../config/loopback.ts'

export interface ServerOptions {
  readonly version: string
  readonly health: Health
  readonly metrics?: () => Promise<string>
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
  /** Lets answers under way finish for a moment, then closes every connection. May be called again. */
  stop(): Promise<void>
}

const GRACE_MS = 2_000

export async function startServer(options: ServerOptions): Promise<HttpServer> {
  const { host } = options
  if (!isLoopbackHost(host)) {
    throw new LeaseholdError('SETTING_INVALID', `host is ${host}, which is not a loopback address.`, {
      remedy: 'Beyond loopback API keys are required, and this version has none yet: use 127.0.0.1.',
    })
  }
  let port = 0
  const app = createApp({ ...options, port: () => port })
  const answer = getRequestListener(app.fetch, {
    // The host of a request without a Host header; such a request is refused all the same.
    hostname: 'localhost',
    // The process's own Request and Response stay as they are.
    overrideGlobalObjects: false,
  })
  const server = createServer((request, response) => {
    answer(request, response).catch(options.onError)
  })
  port = await listen(server, options)
  server.on('error', options.onError)

  let stopped: Promise<void> | undefined
  return {
    url: `http://${inUrl(host)}:${port}`,
    port,
    async stop() {
      stopped ??= close(server)
      await stopped
    },
  }
}

async function listen(server: Server, { host, port, whenTaken }: ServerOptions): Promise<number> {
  try {
    return await listenOn(server, host, port)
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined
    if (code === 'EADDRINUSE' && whenTaken === 'anyPort') return listenOn(server, host, 0)
    if (code === 'EADDRINUSE') throw unusable(host, port, 'something else listens there', error)
    if (code === 'EACCES') throw unusable(host, port, 'this user may not listen there', error)
    if (code === 'EADDRNOTAVAIL') throw unusable(host, port, 'this machine has no such address', error)
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
  return new LeaseholdError('SETTING_INVALID', `HTTP cannot listen on ${inUrl(host)}:${port}: ${why}.`, {
    remedy: 'Choose another port (--port, or LEASEHOLD_PORT); 0 takes any free one.',
    cause,
  })
}

async function close(server: Server): Promise<void> {
  const closed = once(server, 'close')
  server.close()
  server.closeIdleConnections()
  const timer = setTimeout(() => server.closeAllConnections(), GRACE_MS)
  try {
    await closed
  } finally {
    clearTimeout(timer)
  }
}
