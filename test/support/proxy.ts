import { EventEmitter, once } from 'node:events'
import { connect, createServer, type Server, type Socket } from 'node:net'

/** A TCP proxy on loopback in front of a database, to do to it what networks do. */
export interface Proxy {
  /** The database's URL, through the proxy. */
  readonly url: string
  /** Connections open at the moment. */
  readonly connections: number
  /** Requests that went to the database after an answer: the round trips its clients made. */
  readonly roundTrips: number
  readonly bytes: { readonly up: number; readonly down: number }
  /** Resets every open connection (RST). */
  cut(): void
  /** From now on every byte, of old and new connections, disappears; nobody is told. `false` ends it. */
  swallow(on: boolean): void
  /** Resolves when the next bytes of a client have been swallowed. */
  swallowed(): Promise<void>
  /** Refuses new connections; `accept` takes them again, on the same port. Open ones are left alone. */
  refuse(): Promise<void>
  accept(): Promise<void>
  close(): Promise<void>
}

export async function startProxy(target: string): Promise<Proxy> {
  const { hostname, port } = new URL(target)
  const sockets = new Set<Socket>()
  const count = { up: 0, down: 0, roundTrips: 0 }
  const loss = new EventEmitter()
  let swallowing = false
  let server: Server | undefined

  function forward(client: Socket): void {
    const upstream = connect({ host: hostname, port: Number(port), noDelay: true })
    client.setNoDelay(true)
    let answered = true
    client.on('data', (chunk) => {
      if (swallowing) {
        loss.emit('swallowed')
        return
      }
      // On a busy machine a statement may take so long that its plan is thrown away; that is no part of any verb.
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
    // The listening side is half-open (see below), so its end is passed on by hand.
    client.on('end', () => {
      if (!swallowing) upstream.end()
    })
    for (const [from, to] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(from)
      // A fault is passed on as what it is for the other side: the end of the connection.
      from.on('error', () => from.destroy())
      from.on('close', () => {
        sockets.delete(from)
        if (!swallowing) to.destroy()
      })
    }
  }

  async function listen(onPort: number): Promise<number> {
    // Half-open, so that a goodbye swallowed on its way is not answered by the operating system.
    const listening = createServer({ allowHalfOpen: true }, forward)
    server = listening
    listening.listen(onPort, '127.0.0.1')
    await once(listening, 'listening')
    const address = listening.address()
    if (address === null || typeof address === 'string') throw new Error('The proxy has no port.')
    return address.port
  }

  async function refuse(): Promise<void> {
    // Not awaited until its last connection is gone: close() stops listening at once.
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
