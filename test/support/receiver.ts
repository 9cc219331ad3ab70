import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll } from 'vitest'

export interface Received {
  readonly path: string
  readonly headers: IncomingMessage['headers']
  readonly body: string
  /** When it had arrived, on the monotonic clock. */
  readonly at: number
}

export type Answer = (request: Received, response: ServerResponse) => number | void | Promise<number | void>

export interface Receiver {
  readonly url: string
  readonly received: Received[]
  /** Resolves when so many have arrived. */
  reached(count: number): Promise<void>
  /** What it answers from now on: a status, or whatever the function does with the response. */
  answer(answer: Answer): void
  /** How many requests are being answered at this moment, and the most there ever were. */
  readonly open: number
  readonly most: number
  /** How many connections there ever were. */
  readonly connections: number
  /** Ends all connections, and takes no more. */
  stop(): Promise<void>
}

/** Servers on loopback that remember what they were sent: receivers of webhooks, and whatever else is posted to. */
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
        for (const look of waiting) look()
        const status = await answer(one, response)
        if (typeof status === 'number') response.writeHead(status).end()
      } finally {
        open -= 1
      }
    }

    const server = createServer((request, response) => {
      // Whoever sent it may be gone before it has been read.
      respond(request, response).catch(() => response.destroy())
    })
    server.on('connection', () => (connections += 1))
    await new Promise<void>((ready) => server.listen(port, '127.0.0.1', ready))
    // A server that listens has an address and a port.
    const address = server.address() as AddressInfo
    const receiver: Receiver = {
      url: `http://127.0.0.1:${address.port}/hook`,
      received,
      async reached(count) {
        await new Promise<void>((resolve) => {
          const look = (): void => {
            if (received.length < count) return
            waiting.delete(look)
            resolve()
          }
          waiting.add(look)
          look()
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
        // One that was stopped before is closed with an error, which is as good.
        await new Promise((closed) => server.close(closed))
      },
    }
    receivers.push(receiver)
    return receiver
  }
}

/** Lets every request wait for its answer until the test says so. Those that come later are answered at once. */
export function hold(target: Receiver, status = 204): { letGo(): void } {
  let letGo: () => void = () => undefined
  const gone = new Promise<void>((resolve) => {
    letGo = resolve
  })
  target.answer(async () => {
    await gone
    return status
  })
  return { letGo: () => letGo() }
}
