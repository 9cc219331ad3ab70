/**
 * Named statements on a connection of the user's. PostgreSQL parses and plans a named statement once in a session, but a
 * name that the session does not know is an error, and an error ends the user's transaction. So a statement is named only
 * where nothing can be between the client and its session that forgets or mixes up names:
 *
 * - A pooler hands one session to many clients. It gives each client a process id of its own, so a client whose process id
 *   is that of the session that answered has no pooler before it.
 * - The application may forget all names (`DISCARD ALL`, `DEALLOCATE`). The connection reports the end of every command,
 *   whoever sent it; after such a one another name is used.
 * - Two versions of this library may share a connection. A name contains the hash of its statement.
 */
import { createHash } from 'node:crypto'
import type { WriterRow } from './writer.ts'

/** How a statement that is sent often may be prepared. */
export interface Often {
  /** Unique to its text. */
  readonly name: string
  /** `true`: wherever the driver can. `false`: nowhere. `undefined`: where it is safe. */
  readonly prepare: boolean | undefined
  /** The process id of the session that answered, as the rows have it. */
  readonly processIdIn: (rows: readonly WriterRow[]) => number
}

/** A name that no other text has. */
export function nameOf(purpose: string, text: string): string {
  return `leasehold_${purpose}_${createHash('sha256').update(text).digest('hex').slice(0, 12)}`
}

/** The parts of a `pg` Client that are used here. Its types leave them out. */
interface DirectClient {
  readonly processID: number
  readonly connection: {
    on(event: 'commandComplete', listener: (message: { readonly text?: unknown }) => void): unknown
  }
}

/** For each client without a pooler before it, how often its session has forgotten its names. */
const forgotten = new WeakMap<object, { times: number }>()

/** The name for a statement on this client; `undefined` unless it is certain that the session knows names. */
export function nameOn(client: object, name: string): string | undefined {
  const times = forgotten.get(client)?.times
  if (times === undefined) return undefined
  return times === 0 ? name : `${name}_${times}`
}

/** Tells which session has answered this client. */
export function answeredBy(client: object, processId: number): void {
  if (forgotten.has(client) || !isDirect(client) || client.processID !== processId) return
  const names = { times: 0 }
  client.connection.on('commandComplete', ({ text }) => {
    if (typeof text === 'string' && FORGETS.test(text)) names.times += 1
  })
  forgotten.set(client, names)
}

const FORGETS = /^(?:DISCARD ALL|DEALLOCATE)/

function isDirect(client: object): client is DirectClient {
  if (!('processID' in client) || !('connection' in client)) return false
  const { processID, connection } = client
  return (
    typeof processID === 'number' &&
    typeof connection === 'object' &&
    connection !== null &&
    'on' in connection &&
    typeof connection.on === 'function'
  )
}
