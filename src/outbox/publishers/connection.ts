/** Connections to brokers: loading the client, connecting when needed, and closing within a bound. */
import { LeaseholdError } from '../../errors.ts'
import { within } from '../../timeout.ts'

/** One connection to a target, while it lasts. */
export interface Dialled<Client> {
  readonly client: Client
  /** Whether anything can be sent over it. */
  isOpen(): boolean
  /** Sends what is still to be sent, and closes. */
  close(): Promise<void>
  /** Ends it now, whether or not the other side answers. */
  destroy(): void
}

export interface Connection<Client> {
  /** The open connection, or a new one. Rejects with the reason it could not connect; the next call connects anew. */
  get(): Promise<Client>
  /** Ends the present connection, so that the next `get` connects anew. */
  drop(): void
  close(): Promise<void>
}

/** How long a publisher waits for its connections to close before it destroys them. */
export const CLOSE_TIMEOUT_MS = 5_000

/** Connects when a connection is first asked for, once for all who ask, and anew after a loss. */
export function dialledConnection<Client>(
  dial: () => Promise<Dialled<Client>>,
  connectTimeoutMs: number,
): Connection<Client> {
  let dialling: Promise<Dialled<Client>> | undefined
  let current: Dialled<Client> | undefined
  let closed = false

  async function open(): Promise<Dialled<Client>> {
    const connecting = dial()
    let dialled: Dialled<Client> | undefined
    const inTime = await within(
      connectTimeoutMs,
      connecting.then((open) => {
        dialled = open
        return open
      }),
    )
    if (!inTime || dialled === undefined || closed) {
      // If it still connects later, nobody waits for it.
      connecting.then(
        (unused) => unused.destroy(),
        () => {},
      )
      throw new Error(closed ? 'the publisher is closed' : `no connection within ${connectTimeoutMs} ms`)
    }
    current = dialled
    return dialled
  }

  function drop(): void {
    current?.destroy()
    current = undefined
  }

  return {
    async get() {
      if (closed) throw new Error('the publisher is closed')
      if (current?.isOpen() === true) return current.client
      // A channel can be lost while its connection stays open.
      drop()
      dialling ??= open().finally(() => (dialling = undefined))
      return (await dialling).client
    },
    drop,
    async close() {
      closed = true
      const last = current
      current = undefined
      if (last === undefined) return
      const closedInTime =
        last.isOpen() &&
        (await within(
          CLOSE_TIMEOUT_MS,
          last.close().catch(() => {}),
        ))
      if (!closedInTime) last.destroy()
    },
  }
}

/** A connection that the user owns: reconnecting and closing it is up to them. */
export function givenConnection<Client>(dial: () => Promise<Client>): Connection<Client> {
  let client: Promise<Client> | undefined
  return {
    async get() {
      client ??= dial().catch((error: unknown) => {
        client = undefined
        throw error
      })
      return client
    },
    drop() {
      client = undefined
    },
    async close() {
      client = undefined
    },
  }
}

const MODULE_NOT_FOUND = new Set(['ERR_MODULE_NOT_FOUND', 'MODULE_NOT_FOUND'])

/** Loads the client of a broker. It is an optional peer: whoever does not publish to the broker does not install it. */
export async function loadClient<Client>(
  publisher: string,
  packages: string,
  load: () => Promise<Client>,
): Promise<Client> {
  try {
    return await load()
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : ''
    if (!MODULE_NOT_FOUND.has(code)) throw error
    throw new LeaseholdError(
      'PUBLISHER_MISSING',
      `The ${publisher} publisher needs ${packages}, which is not installed.`,
      { remedy: `Run: npm install ${packages}`, cause: error },
    )
  }
}
