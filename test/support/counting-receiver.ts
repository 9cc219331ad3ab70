import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { text } from 'node:stream/consumers'

import { onTestFinished } from 'vitest'

interface Received {
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly body: string
}

export interface CountingReceiver {
  readonly port: number
  readonly url: string
  readonly requests: readonly Received[]
  /** Connections so far. */
  readonly connections: number
  /** Connections open now. */
  readonly open: number
}

export interface CountingOptions {
  /** Keep connections for the next request. Default true. */
  readonly keepAlive?: boolean
  /** What it answers. Default: 200 and nothing. */
  readonly answer?: (request: Received, response: ServerResponse) => void
}

/** A receiver that behaves and counts its connections, on loopback; stopped by itself at the end of the test. */
export async function startCountingReceiver(options: CountingOptions = {}): Promise<CountingReceiver> {
  const { keepAlive = true, answer } = options
  const requests: Received[] = []
  const sockets = new Set<Socket>()
  let connections = 0
  const receive = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const received = { path: request.url ?? '', headers: request.headers, body: await text(request) }
    requests.push(received)
    response.shouldKeepAlive &&= keepAlive
    if (answer === undefined) response.end()
    else answer(received, response)
  }
  // Idle connections are the client's to close, in the tests that count them.
  const server = createServer(
    { keepAliveTimeout: 120_000 },
    // A request that is cut off is part of some tests.
    (request, response) => void receive(request, response).catch(() => {}),
  )
  server.on('connection', (socket) => {
    connections += 1
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(async () => {
    server.closeAllConnections()
    server.close()
    await once(server, 'close')
  })
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  return {
    port: address.port,
    url: `http://127.0.0.1:${address.port}/hook`,
    requests,
    get connections() {
      return connections
    },
    get open() {
      return sockets.size
    },
  }
}
