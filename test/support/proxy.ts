import { EventEmitter, once } from 'node:events'
import { connect, createServer, type Server, type Socket } from 'node:net'

/** A TCP proxy on loopback in front of a database that simulates network faults. */
export interface Proxy {
  /** The URL of the database through the proxy. */
  readonly url: string
  /** The number of open connections. */
  readonly connections: number
  /** The number of round trips of all clients: requests that followed an answer. */
  readonly roundTrips: number
  readonly bytes: { readonly up: number; readonly down: number }
  /** Resets every open connection (RST). */
  cut(): void
  /** Resets a connection (RST) as soon as its client sends this text. */
  cutAt(text: string): void
  /** Sends these bytes to every client, as if the server had. */
  inject(bytes: Buffer): void
  /** Silently drops every byte of old and new connections from now on. `false` ends it. */
  swallow(on: boolean): void
  /** Resolves when the next bytes of a client have been dropped. */
  swallowed(): Promise<void>
  /** Refuses new connections until `accept()`, on the same port. Open connections are not affected. */
  refuse(): Promise<void>
  accept(): Promise<void>
  close(): Promise<void>
}

export async function startProxy(target: string): Promise<Proxy> {
  const { hostname, port } = new URL(target)
  const sockets = new Set<Socket>()
  const clients = new Set<Socket>()
  const count = { up: 0, down: 0, roundTrips: 0 }
  const loss = new EventEmitter()
  let swallowing = false
  let fatalText: string | undefined
  let server: Server | undefined

  function forward(client: Socket): void {
    const upstream = connect({ host: hostname, port: Number(port), noDelay: true })
    client.setNoDelay(true)
    clients.add(client)
    client.on('close', () => clients.delete(client))
    let answered = true
    client.on('data', (chunk) => {
      if (swallowing) {
        loss.emit('swallowed')
        return
      }
      if (fatalText !== undefined && chunk.includes(fatalText)) {
        client.resetAndDestroy()
        return
      }
      // On a slow machine a session may discard its plans after a slow statement. That is not counted.
      if (answered && !chunk.includes('discard plans')) count.roundTrips += 1
      answered = false
      count.up += chunk.length
      upstream.write(chunk)
    })
    upstream.on('data', (chunk) => {
      if (swallowing) return
      answered = true
      count.down += chunk.length
      client.write(chunk)
    })
    // The listening side is half-open (see below), so the end of the stream is forwarded here.
    client.on('end', () => {
      if (!swallowing) upstream.end()
    })
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(from)
      // For the other side a fault is the end of the connection.
      from.on('error', () => from.destroy())
      from.on('close', () => {
        sockets.delete(from)
        if (!swallowing) to.destroy()
      })
    }
  }

  async function listen(onPort: number): Promise<number> {
    // Half-open, so that the operating system does not answer the end of a stream that is being dropped.
    const listening = createServer({ allowHalfOpen: true }, forward)
    server = listening
    listening.listen(onPort, '127.0.0.1')
    await once(listening, 'listening')
    const address = listening.address()
    if (address === null || typeof address === 'string') throw new Error('The proxy has no port.')
    return address.port
  }

  async function refuse(): Promise<void> {
    // Not awaited: close() stops listening at once, but calls back only after the last connection has ended.
    server?.close()
    server = undefined
    await Promise.resolve()
  }

  const ownPort = await listen(0)
  const url = new URL(target)
  url.hostname = '127.0.0.1'
  url.port = String(ownPort)

  return {
    url: url.href,
    get connections() {
      return sockets.size / 2
    },
    get roundTrips() {
      return count.roundTrips
    },
    get bytes() {
      return { up: count.up, down: count.down }
    },
    cut() {
      for (const socket of sockets) socket.resetAndDestroy()
    },
    inject(bytes) {
      for (const client of clients) client.write(bytes)
    },
    cutAt(text) {
      fatalText = text
    },
    swallow(on) {
      swallowing = on
    },
    async swallowed() {
      await once(loss, 'swallowed')
    },
    refuse,
    async accept() {
      await listen(ownPort)
    },
    async close() {
      await refuse()
      const closing = [...sockets].map(async (socket) => once(socket, 'close'))
      for (const socket of sockets) socket.destroy()
      await Promise.all(closing)
    },
  }
}
