import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { createServer as createTlsServer, type TlsOptions, type TLSSocket } from 'node:tls'
import { readFileSync } from 'node:fs'
import { onTestFinished } from 'vitest'

const HEAD = 'HTTP/1.1 200 OK\r\n'
const BYTE_PAUSE_MS = 1_000

/** Misbehaving receivers on loopback: what each does when the first bytes of a request have arrived. */
const HOSTILITIES = {
  neverAnswers: () => {},
  answersByteByByte: (socket: Socket) => drip(socket, `${HEAD}content-length: 0\r\n\r\n`),
  bodyByteByByte: (socket: Socket) => {
    socket.write(`${HEAD}content-length: 1000\r\n\r\n`)
    drip(socket, 'x'.repeat(1_000))
  },
  endlessBody: (socket: Socket) => {
    socket.write(`${HEAD}\r\n`)
    pour(socket, 'x'.repeat(16_384))
  },
  endlessFailure: (socket: Socket) => {
    socket.write('HTTP/1.1 500 Oh\r\nretry-after: 7\r\n\r\n')
    pour(socket, 'no '.repeat(4_096))
  },
  endlessHead: (socket: Socket) => {
    socket.write(HEAD)
    pour(socket, `x-more: ${'y'.repeat(1_000)}\r\n`)
  },
  largeHead: (socket: Socket) =>
    socket.write(`${HEAD}x-large: ${'y'.repeat(4_096)}\r\ncontent-length: 0\r\n\r\n`),
  endlessInterim: (socket: Socket) => pour(socket, 'HTTP/1.1 103 Early Hints\r\n\r\n'.repeat(1_000)),
  endlessReason: (socket: Socket) => {
    socket.write('HTTP/1.1 200 ')
    pour(socket, 'so '.repeat(5_000))
  },
  endlessEmptyLines: (socket: Socket) => pour(socket, '\r\n'.repeat(8_000)),
  endlessChunkExtension: (socket: Socket) => {
    socket.write(`${HEAD}transfer-encoding: chunked\r\n\r\n1;x=`)
    pour(socket, 'y'.repeat(16_384))
  },
  endlessTrailers: (socket: Socket) => {
    socket.write(`${HEAD}transfer-encoding: chunked\r\n\r\n1\r\nz\r\n0\r\n`)
    pour(socket, 'a:\r\n'.repeat(4_000))
  },
  answersAndGoesOn: (socket: Socket) => {
    socket.write(`${HEAD}content-length: 0\r\n\r\n`, () => setImmediate(() => pour(socket, '\r\n')))
  },
  redirectsToMetadata: (socket: Socket) => {
    socket.write('HTTP/1.1 307 Over There\r\nlocation: http://169.254.169.254/latest/meta-data/\r\n')
    socket.end('content-length: 0\r\n\r\n')
  },
  resetsMidHead: (socket: Socket) => {
    socket.write('HTTP/1.1 200 O', () => socket.resetAndDestroy())
  },
  resetsMidBody: (socket: Socket) => {
    // A reset discards what was not read yet. The client runs in this process and needs some turns to read the head.
    socket.write(`${HEAD}content-length: 100\r\n\r\npart`, () =>
      afterTurns(20, () => socket.resetAndDestroy()),
    )
  },
  closesMidBody: (socket: Socket) => socket.end(`${HEAD}content-length: 100\r\n\r\npart`),
  closes: (socket: Socket) => socket.end(),
  speaksAnotherProtocol: (socket: Socket) => socket.end('SSH-2.0-OpenSSH_9.6\r\n'),
  changesProtocol: (socket: Socket) =>
    socket.write('HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n'),
  answersNonsense: (socket: Socket) => {
    const body = Buffer.from([0x00, 0x1b, 0x5b, 0x33, 0x31, 0x6d, 0xff, 0xfe, 0x0a, 0x68, 0x69, 0xe2, 0x82])
    socket.write(`${HEAD}content-encoding: gzip\r\ncontent-length: ${body.length}\r\n\r\n`)
    socket.write(body)
  },
} as const satisfies Record<string, (socket: Socket) => unknown>

export type Hostility = keyof typeof HOSTILITIES

export interface HostileReceiver {
  readonly port: number
  readonly url: string
  /** Connections so far. */
  readonly connections: number
  /** Everything that was sent to it, on all connections. */
  received(): string
  /** Resolves when no connection is open any more. */
  deserted(): Promise<void>
  stop(): Promise<void>
}

/** Starts a receiver that is stopped at the end of the test. */
export async function startHostileReceiver(hostility: Hostility): Promise<HostileReceiver> {
  const act = HOSTILITIES[hostility]
  return listening(
    createServer((socket) => socket.once('data', () => void act(socket))),
    'http',
  )
}

/** Starts a receiver that accepts connections and never reads from them. */
export async function startDeafReceiver(): Promise<HostileReceiver> {
  return listening(createServer({ pauseOnConnect: true }), 'http', false)
}

/** Starts a receiver with TLS that answers every request with 200, or does something else with its connections. */
export async function startTlsReceiver(
  options: TlsOptions,
  answer: (socket: TLSSocket) => void = answerOk,
): Promise<HostileReceiver> {
  const server = createTlsServer(options)
  server.on('secureConnection', (socket) => {
    socket.on('error', () => {})
    answer(socket)
  })
  // Some tests use a client that does not trust the certificate.
  server.on('tlsClientError', () => {})
  return listening(server, 'https', false)
}

function answerOk(socket: Socket): void {
  socket.on('data', () => socket.write(`${HEAD}content-length: 2\r\n\r\nok`))
}

async function listening(server: Server, scheme: string, reads = true): Promise<HostileReceiver> {
  const sockets = new Set<Socket>()
  const chunks: Buffer[] = []
  let connections = 0
  server.on('connection', (socket: Socket) => {
    connections += 1
    sockets.add(socket)
    socket.on('error', () => {})
    if (reads) socket.on('data', (chunk) => chunks.push(chunk))
    socket.once('close', () => {
      sockets.delete(socket)
      server.emit('deserted')
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port')
  const stop = async (): Promise<void> => {
    for (const socket of sockets) socket.destroy()
    if (!server.listening) return
    server.close()
    await once(server, 'close')
  }
  onTestFinished(stop)
  return {
    port: address.port,
    url: `${scheme}://127.0.0.1:${address.port}/hook`,
    get connections() {
      return connections
    },
    received: () => Buffer.concat(chunks).toString('latin1'),
    async deserted() {
      while (sockets.size > 0) await once(server, 'deserted')
    },
    stop,
  }
}

/** Writes one byte at a time, with a pause after each. */
function drip(socket: Socket, text: string): void {
  let sent = 0
  const timer = setInterval(() => {
    socket.write(text.slice(sent, sent + 1))
    sent += 1
    if (sent === text.length) clearInterval(timer)
  }, BYTE_PAUSE_MS)
  socket.once('close', () => clearInterval(timer))
}

/** Writes the same text repeatedly, as fast as it is read. */
function pour(socket: Socket, text: string): void {
  const more = (): void => {
    if (!socket.destroyed) socket.write(text, () => setImmediate(more))
  }
  more()
}

function afterTurns(turns: number, act: () => void): void {
  if (turns === 0) act()
  else setImmediate(() => afterTurns(turns - 1, act))
}

/** A key and a certificate for tests only. `test/fixtures/tls/README.md` says for which host names. */
export function testCertificate(name: 'right' | 'wrong-name' | 'many-names'): {
  readonly key: string
  readonly cert: string
} {
  const read = (part: string): string =>
    readFileSync(new URL(`../fixtures/tls/${name}.${part}.pem`, import.meta.url), 'utf8')
  return { key: read('key'), cert: read('cert') }
}
