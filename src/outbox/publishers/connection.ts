import { within } from '../../postgres/deadline.ts'

/** One connection to a target, while it lasts. */
export interface Dialled<Client> {
  readonly client: Client
  /** Whether it is worth sending anything over it. */
  isOpen(): boolean
  /** Sends what is still to be sent, and says goodbye. */
  close(): Promise<void>
  /** Ends it now, however the other side is. */
  destroy(): void
}

export interface Connection<Client> {
  /** The connection that is open, or a new one. Rejects with what stood in the way; the next call dials again. */
  get(): Promise<Client>
  /** Ends the present connection, so that the next `get` dials. */
  drop(): void
  close(): Promise<void>
}

const LONGEST_GOODBYE_MS = 5_000

/** Dials when somebody asks, once for all who ask, and again when the connection was lost. */
export function dialledConnection<Client>(
  dial: () => Promise<Dialled<Client>>,
  connectTimeoutMs: number,
): Connection<Client> {
  let dialling: Promise<Dialled<Client>> | undefined
  let current: Dialled<Client> | undefined
  let closed = false

  async function open(): Promise<Dialled<Client>> {
    const late = dial()
    let dialled: Dialled<Client> | undefined
    const inTime = await within(
      connectTimeoutMs,
      late.then((open) => {
        dialled = open
        return open
      }),
    )
    if (!inTime || dialled === undefined || closed) {
      // Should it come after all, nobody waits for it.
      late.then(
        (unwanted) => unwanted.destroy(),
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
      // A channel can be lost and leave its connection behind.
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
      const gone =
        last.isOpen() &&
        (await within(
          LONGEST_GOODBYE_MS,
          last.close().catch(() => {}),
        ))
      if (!gone) last.destroy()
    },
  }
}

/** The user's own: it is theirs to reconnect and to close. */
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
