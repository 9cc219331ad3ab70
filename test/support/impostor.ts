import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'

/** The bytes of one message of the server: its type, its length and its contents. */
export function message(type: string, ...contents: (number | string | Buffer)[]): Buffer {
  const body = Buffer.concat(
    contents.map((part) => {
      if (typeof part !== 'number') return Buffer.from(part)
      const int = Buffer.alloc(4)
      int.writeInt32BE(part)
      return int
    }),
  )
  const head = Buffer.alloc(5)
  head.write(type)
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

const ok = message('R', 0)
const ready = message('Z', 'I')
/** The answer of a server that asks for no password to the first message of a client. */
export const GREETING = Buffer.concat([ok, ready])
const scram = message('R', 10, 'SCRAM-SHA-256\0\0')

/** A row whose columns are not in it. No client can read it. */
export const UNREADABLE_ROW = message('D', Buffer.from([0, 7]))
const UNREADABLE = {
  'a row without its columns': UNREADABLE_ROW,
  'a message of an unknown type': message('q', 0),
}

/** Messages whose end a reader could search for without end. */
export const ENDLESS: Readonly<Record<string, Buffer>> = {
  'an error without any field': message('E'),
  'an error whose last field has no end': message('E', 'SERROR\0Mtext'),
  'a notice whose fields have no end': message('N', 'SNOTICE\0Mtext\0'),
  'a message that is shorter than its own length': Buffer.from([0x45, 0, 0, 0, 3]),
}

/** Servers that speak another language, by what they do: at once, or as soon as the connection is in use. */
export const UNREADABLE_SERVERS: Readonly<
  Record<string, { readonly answers: readonly Buffer[]; readonly error: RegExp }>
> = {
  'asks for GSSAPI': { answers: [message('R', 7)], error: /authentication method GSSAPI/ },
  'asks for a method that does not exist': {
    answers: [message('R', 99)],
    error: /authentication method number 99/,
  },
  ...Object.fromEntries(
    Object.entries(UNREADABLE).flatMap(([what, bytes]) => [
      [`sends ${what} instead of a greeting`, { answers: [bytes], error: /cannot be read/ }],
      [`sends ${what} to a connection in use`, { answers: [GREETING, bytes], error: /cannot be read/ }],
    ]),
  ),
}

/** What impostors answer to the client's first message, and to each later one. */
export const IMPOSTORS = {
  'asks for the password in clear text': [message('R', 3)],
  'asks for the password as MD5': [message('R', 5, 'salt')],
  'asks for nothing': [GREETING],
  'is ready without an authentication': [ready],
  'begins with SCRAM and is ready without its end': [scram, ready],
  'begins with SCRAM and is ready at the same time': [Buffer.concat([scram, ready])],
  'begins with SCRAM and then asks for clear text': [scram, message('R', 3)],
  'asks for clear text and for SCRAM at the same time': [Buffer.concat([message('R', 3), scram])],
  'ends SCRAM without a proof': [scram, GREETING],
  'ends SCRAM with a wrong proof': [
    scram,
    'challenge',
    Buffer.concat([message('R', 12, `v=${Buffer.alloc(32).toString('base64')}`), ok, ready]),
  ],
} as const

/** The bytes that a server answers, or how it answers. */
type Answer = Buffer | 'challenge' | ((client: Socket) => void)

/** Whoever took the address of the server. Records everything that its clients send. */
export class Impostor {
  readonly received: Buffer[] = []
  readonly #server: Server
  readonly #clients = new Set<Socket>()
  connections = 0

  constructor(answers: readonly Answer[]) {
    this.#server = createServer((client) => {
      this.connections += 1
      this.#clients.add(client)
      client.on('close', () => this.#clients.delete(client))
      client.on('error', () => {})
      this.#converse(client, answers)
    })
  }

  #converse(client: Socket, answers: readonly Answer[]): void {
    let step = 0
    client.on('data', (chunk) => {
      this.received.push(chunk)
      const answer = answers[step]
      step += 1
      if (answer === 'challenge') {
        const nonce = /r=([^,]+)/.exec(chunk.toString('latin1'))?.[1]
        client.write(message('R', 11, `r=${nonce}x,s=${Buffer.from('salt').toString('base64')},i=4096`))
      } else if (typeof answer === 'function') answer(client)
      else if (answer !== undefined) client.write(answer)
    })
  }

  async listen(at: string | number): Promise<number> {
    this.#server.listen(typeof at === 'string' ? { path: at } : { port: at, host: '127.0.0.1' })
    await once(this.#server, 'listening')
    const address = this.#server.address()
    return typeof address === 'object' && address !== null ? address.port : 0
  }

  /** The number of open connections. */
  get open(): number {
    return this.#clients.size
  }

  get text(): string {
    return Buffer.concat(this.received).toString('latin1')
  }

  /** Whether the password, or an answer to MD5, is among what was received. */
  hasReceived(password: string): boolean {
    return this.text.includes(password) || /md5[0-9a-f]{32}/.test(this.text)
  }

  async close(): Promise<void> {
    this.#server.close()
    for (const client of this.#clients) client.destroy()
    await once(this.#server, 'close')
  }
}
