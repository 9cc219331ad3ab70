import type { Duplex } from 'node:stream'
import { Client, type ClientConfig, type Connection } from 'pg'
import { LeaseholdError, messageOf } from '../errors.ts'

/**
 * A password with this prefix is only ever used for SCRAM. The passwords of embedded servers have it, so that every
 * connection of every process follows the rule, whichever way it got the URL.
 */
export const SCRAM_ONLY_PREFIX = 'scram-only-'

/**
 * The client of every connection that Leasehold opens. It loses its connection where the server sends what cannot be
 * read; with `pg` alone that would end the process. With SCRAM a server that does not know the password learns
 * nothing about it, and cannot pretend that it does. So whoever has taken the address of an embedded server gets
 * neither the password nor the trust of the client.
 */
export class DatabaseClient extends Client {
  constructor(config?: string | ClientConfig) {
    super(config)
    endOnUnreadable(this.connection)
    const { password } = this
    if (typeof password === 'string' && password.startsWith(SCRAM_ONLY_PREFIX)) requireScram(this, password)
  }

  /**
   * `pg` calls it for the parameters of the session. Timestamps are read, and become cursors, as texts. A pooler that gives
   * each transaction another session keeps this parameter with the client, as it does the encoding, and no other of this
   * kind: statements must not depend on those. The value is written as the server reports it: PgBouncer 1.18 set `ISO` anew
   * before each transaction.
   */
  getStartupConf(): Record<string, string> {
    // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- @types/pg leaves getStartupConf() out
    const { getStartupConf } = Client.prototype as unknown as StartingClient
    return { ...getStartupConf.call(this), DateStyle: 'ISO, MDY' }
  }
}

/** The part of `pg.Client` that its types leave out. */
interface StartingClient {
  getStartupConf: (this: Client) => Record<string, string>
}

/** The part of `pg.Connection` that its types leave out. */
interface ReadingConnection {
  attachListeners: (stream: Duplex) => void
}

/**
 * Ends the connection at a message that cannot be read. `pg-protocol` throws inside the listener of the socket, where
 * nothing catches it, or searches for ever for the end of an error that has none.
 */
export function endOnUnreadable(connection: Connection): void {
  // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- @types/pg leaves attachListeners() out
  const reading = connection as unknown as ReadingConnection
  const attach = reading.attachListeners.bind(connection)
  reading.attachListeners = (stream) => {
    const before = stream.listeners('data')
    attach(stream)
    for (const listener of stream.listeners('data').filter((each) => !before.includes(each))) {
      // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- Node gives listeners as Function
      const read = listener as (chunk: Buffer) => void
      const assertEnded = endsOfReports()
      stream.off('data', read)
      stream.on('data', (chunk: Buffer) => {
        if (stream.destroyed) return
        try {
          assertEnded(chunk)
          read.call(stream, chunk)
        } catch (error) {
          stream.destroy(unreadable(error))
        }
      })
    }
  }
  // A message of an unknown type becomes an error without SQLSTATE, and `pg` would go on reading in the middle of nowhere.
  // Thrown, it does not reach the statement that runs, and ends the connection above.
  connection.on('errorMessage', (error: Error & { readonly code?: string }) => {
    if (error.code === undefined) throw error
  })
}

const HEADER_BYTES = 5
const REPORTS: ReadonlySet<number | undefined> = new Set(Buffer.from('EN'))

/**
 * Follows the messages through the chunks of a connection, and throws where an error or a notice (`E`, `N`) is over
 * before the zero byte that ends its fields.
 */
function endsOfReports(): (chunk: Buffer) => void {
  const header = Buffer.alloc(HEADER_BYTES)
  let headerBytes = 0
  let remaining = 0
  /** What the next byte of a report belongs to: a field begins with its type, and its text ends with a zero byte. */
  let expected: 'type' | 'text' | 'nothing' = 'nothing'
  return (chunk) => {
    let at = 0
    while (at < chunk.length) {
      if (headerBytes < HEADER_BYTES) {
        const copied = chunk.copy(header, headerBytes, at, at + HEADER_BYTES - headerBytes)
        headerBytes += copied
        at += copied
        if (headerBytes < HEADER_BYTES) return
        // The length counts itself, but not the type.
        remaining = header.readUInt32BE(1) + 1 - HEADER_BYTES
        if (remaining < 0) throw new Error('a message is shorter than its own length')
        expected = REPORTS.has(header[0]) ? 'type' : 'nothing'
      }
      const end = Math.min(chunk.length, at + remaining)
      for (let i = at; i < end && expected !== 'nothing'; i += 1) {
        if (chunk[i] !== 0) expected = 'text'
        else expected = expected === 'type' ? 'nothing' : 'type'
      }
      remaining -= end - at
      at = end
      if (remaining > 0) return
      if (expected !== 'nothing') throw new Error('an error or a notice has no end')
      headerBytes = 0
    }
  }
}

/** The methods for which `pg` has no code, by the number in the server's request. */
const UNSUPPORTED_METHODS: Readonly<Record<string, string>> = {
  2: 'Kerberos V5',
  6: 'SCM credentials',
  7: 'GSSAPI',
  8: 'GSSAPI',
  9: 'SSPI',
}

/** The error of a connection that is closed because of what the server sent. */
export function unreadable(cause: unknown): LeaseholdError {
  const [, number] = /^Unknown authenticationOk message type (\d+)$/.exec(messageOf(cause)) ?? []
  const method = number === undefined ? undefined : (UNSUPPORTED_METHODS[number] ?? `number ${number}`)
  if (method === undefined) {
    return new LeaseholdError(
      'DATABASE_UNAVAILABLE',
      `The server sent a message that cannot be read, and the connection was closed: ${messageOf(cause)}.`,
      { remedy: 'Check that the host and port of the database URL lead to PostgreSQL.', cause },
    )
  }
  return new LeaseholdError(
    'DATABASE_UNAVAILABLE',
    `The server asks for the authentication method ${method}, which Leasehold does not support.`,
    {
      remedy:
        'Let pg_hba.conf ask for scram-sha-256 (or a client certificate) from this role and address, and give the role a password.',
      cause,
    },
  )
}

/** How far the server has come with its proof. `refused` is final. */
type Progress = 'none' | 'scram' | 'proved' | 'refused'

/** Hands the password out only while the last request of the server belongs to SCRAM, and insists on the server's proof. */
function requireScram(client: Client, password: string): void {
  const { connection } = client
  let progress: Progress = 'none'

  /** Messages that have already arrived are still read, so nothing may take the client for connected any more. */
  function end(error?: Error): void {
    progress = 'refused'
    connection.removeAllListeners('readyForQuery')
    connection.stream.destroy(error)
  }

  function refuse(what: string): LeaseholdError {
    const error = new LeaseholdError(
      'EMBEDDED_FAILED',
      `Something else answers at the address of the embedded PostgreSQL (${addressOf(client)}): it ${what}. The password was not sent.`,
      { remedy: 'Find out which process listens there, and start the embedded PostgreSQL again.' },
    )
    end(error)
    return error
  }

  Object.defineProperty(client, 'password', {
    configurable: true,
    enumerable: false,
    // `pg` calls a function to get the password, and reports its error as the reason why it could not connect.
    get: () =>
      progress === 'scram'
        ? password
        : (): never => {
            throw refuse('asks for the password in clear text or as MD5')
          },
    set: () => {},
  })

  connection.on('authenticationSASL', () => {
    if (progress === 'none') progress = 'scram'
  })
  connection.on('authenticationCleartextPassword', () => void refuse('asks for the password in clear text'))
  connection.on('authenticationMD5Password', () => void refuse('asks for the password as MD5'))
  // `pg` compares the signature in it, and reports an error on the connection if it is wrong.
  connection.on('authenticationSASLFinal', () => {
    if (progress === 'scram') progress = 'proved'
  })
  connection.on('authenticationOk', () => {
    if (progress !== 'proved') refuse('does not prove that it knows the password')
  })
  // `pg` takes a server that is ready for one that has authenticated us. `message` comes before the event of that name,
  // so that its listener can still be removed.
  function onMessage({ name }: { readonly name: string }): void {
    if (name !== 'readyForQuery') return
    connection.removeListener('message', onMessage)
    if (progress !== 'proved') refuse('does not prove that it knows the password')
  }
  connection.on('message', onMessage)
  connection.on('error', () => end())
}

/** Where a client connects to, for messages. */
export function addressOf({ host, port }: Client): string {
  return host.startsWith('/') ? `${host}/.s.PGSQL.${port}` : `${host}:${port}`
}
