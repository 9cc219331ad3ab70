import { createServer, type IncomingMessage, type ServerResponse, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { once } from 'node:events'
import { text } from 'node:stream/consumers'
import { afterAll, onTestFinished } from 'vitest'

export interface Received {
  readonly path: string
  readonly headers: IncomingMessage['headers']
  readonly body: string
  /** When the whole request had arrived, on the monotonic clock. */
  readonly at: number
}

export type Answer = (request: Received, response: ServerResponse) => number | void | Promise<number | void>

export interface Receiver {
  readonly url: string
  readonly received: Received[]
  /** Resolves when this many requests have arrived. */
  reached(count: number): Promise<void>
  /** Sets the answer to all further requests: a status, or whatever the function does with the response. */
  answer(answer: Answer): void
  /** The number of requests being answered now, and its maximum so far. */
  readonly open: number
  readonly most: number
  /** The number of connections so far. */
  readonly connections: number
  /** Closes all connections and accepts no more. */
  stop(): Promise<void>
}

/** HTTP servers on loopback that record their requests: receivers of webhooks and of anything else that is posted. */
export function useReceivers() {
  const receivers: Receiver[] = []
  afterAll(async () => {
    for (const receiver of receivers.splice(0)) await receiver.stop()
  })
  return async (first: Answer = () => 204, port = 0): Promise<Receiver> => {
    const received: Received[] = []
    const waiting = new Set<() => void>()
    let answer = first
    let open = 0
    let most = 0
    let connections = 0

    async function respond(request: IncomingMessage, response: ServerResponse): Promise<void> {
      open += 1
      most = Math.max(most, open)
      try {
        const chunks: Buffer[] = []
        for await (const chunk of request) chunks.push(chunk as Buffer)
        const one = {
          path: request.url ?? '/',
          headers: request.headers,
          body: Buffer.concat(chunks).toString(),
          at: performance.now(),
        }
        received.push(one)
        for (const check of waiting) check()
        const status = await answer(one, response)
        if (typeof status === 'number') response.writeHead(status).end()
      } finally {
        open -= 1
      }
    }

    const server = createServer((request, response) => {
      // The sender may close the connection before the request was read.
      respond(request, response).catch(() => response.destroy())
    })
    server.on('connection', () => (connections += 1))
    await new Promise<void>((ready) => server.listen(port, '127.0.0.1', ready))
    // A listening server has an address and a port.
    const address = server.address() as AddressInfo
    const receiver: Receiver = {
      url: `http://127.0.0.1:${address.port}/hook`,
      received,
      async reached(count) {
        await new Promise<void>((resolve) => {
          const check = (): void => {
            if (received.length < count) return
            waiting.delete(check)
            resolve()
          }
          waiting.add(check)
          check()
        })
      },
      answer(next) {
        answer = next
      },
      get open() {
        return open
      },
      get most() {
        return most
      },
      get connections() {
        return connections
      },
      async stop() {
        server.closeAllConnections()
        // Closing it a second time calls back with an error, which does not matter.
        await new Promise((closed) => server.close(closed))
      },
    }
    receivers.push(receiver)
    return receiver
  }
}

/** Delays the answers to all requests until `letGo()`. Later requests are answered at once. */
export function hold(target: Receiver, status = 204): { letGo(): void } {
  let letGo: () => void = () => undefined
  const released = new Promise<void>((resolve) => {
    letGo = resolve
  })
  target.answer(async () => {
    await released
    return status
  })
  return { letGo: () => letGo() }
}

interface CountedRequest {
  readonly path: string
  readonly headers: IncomingHttpHeaders
  readonly body: string
}

export interface CountingReceiver {
  readonly port: number
  readonly url: string
  readonly requests: readonly CountedRequest[]
  /** Connections so far. */
  readonly connections: number
  /** Connections open now. */
  readonly open: number
}

export interface CountingOptions {
  /** Whether connections are kept for the next request. Default true. */
  readonly keepAlive?: boolean
  /** Its answer. Default: status 200 and an empty body. */
  readonly answer?: (request: CountedRequest, response: ServerResponse) => void
}

/** Starts a well-behaved receiver on loopback that counts its connections. It stops at the end of the test. */
export async function startCountingReceiver(options: CountingOptions = {}): Promise<CountingReceiver> {
  const { keepAlive = true, answer } = options
  const requests: CountedRequest[] = []
  const sockets = new Set<Socket>()
  let connections = 0
  const receive = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const received = { path: request.url ?? '', headers: request.headers, body: await text(request) }
    requests.push(received)
    response.shouldKeepAlive &&= keepAlive
    if (answer === undefined) response.end()
    else answer(received, response)
  }
  // The tests that count idle connections expect the client to close them.
  const server = createServer(
    { keepAliveTimeout: 120_000 },
    // Some tests cut a request off.
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
