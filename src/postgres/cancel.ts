import type { EventEmitter } from 'node:events'
import type { Duplex } from 'node:stream'
import { Connection, type Client } from 'pg'

/** The part of `pg.Connection` and `pg.Client` that their types leave out. */
interface CancelConnection extends EventEmitter {
  readonly stream: Duplex & { setTimeout(ms: number, listener: () => void): void; unref(): void }
  connect(portOrPath: number | string, host?: string): void
  requestSsl(): void
  cancel(processId: number, secretKey: number): void
}

interface BackendKey {
  readonly processID: number | null
  readonly secretKey: number | null
}

const GIVE_UP_AFTER_MS = 5_000

/**
 * Asks the server to stop what runs on this client's connection, over a connection of its own as the protocol
 * wants it, encrypted when the client is. At best an effort: nobody waits for it, and its failure is no news,
 * because the statement it is for has been given up already.
 */
export function cancelStatement(client: Client): void {
  // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- `pg` keeps the backend's key here; its types do not say so
  const { processID, secretKey } = client as unknown as BackendKey
  if (processID === null || secretKey === null) return
  // oxlint-disable-next-line typescript/no-unsafe-type-assertion -- @types/pg leaves connect() and cancel() out
  const connection = new Connection({ ssl: client.ssl }) as unknown as CancelConnection
  const { stream } = connection
  const send = (): void => connection.cancel(processID, secretKey)
  connection.on('error', () => stream.destroy())
  connection.once('connect', () => (client.ssl ? connection.requestSsl() : send()))
  connection.once('sslconnect', send)
  stream.setTimeout(GIVE_UP_AFTER_MS, () => stream.destroy())
  if (client.host.startsWith('/')) connection.connect(`${client.host}/.s.PGSQL.${client.port}`)
  else connection.connect(client.port, client.host)
  stream.unref()
}
