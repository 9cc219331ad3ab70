/**
 * The process that runs the embedded server of the test processes. Usage: node server-process.js <directory>
 *
 * It closes its stdout when test processes can connect; before that it prints why it could not start. Whoever connects to
 * the socket in the directory gets the URL of the server, and holds the server until the connection ends. Without a
 * connection the process waits for a moment, because the next test file may be about to start, and then stops the server
 * and deletes the directory.
 */
import { rm } from 'node:fs/promises'
import { createServer, type AddressInfo, type Server, type Socket } from 'node:net'

import { startEmbedded, type EmbeddedServer } from '../embedded/index.ts'
import { isLeaseholdError, messageOf } from '../errors.ts'
import { discardDirectory, type Failure, FAST_SETTINGS, lockDirectory, socketPath } from './test-server.ts'

/** How long the server waits for the next test process. */
const LINGER_MS = 3_000
/** Another program may take the port between the moment when it was found free and the start of the server. */
const START_ATTEMPTS = 3

const [, , directory = ''] = process.argv

async function main(): Promise<void> {
  let server: EmbeddedServer
  let url: string
  try {
    ;({ server, url } = await startServer())
  } catch (error) {
    const code = isLeaseholdError(error) ? error.code : 'EMBEDDED_FAILED'
    const failure: Failure = { code, message: messageOf(error) }
    process.stdout.end(JSON.stringify(failure))
    return
  }
  const holds = createServer()
  const held = new Set<Socket>()
  let timer: NodeJS.Timeout | undefined
  const stopLater = (ms: number): void => {
    clearTimeout(timer)
    timer = setTimeout(() => {
      if (held.size === 0) stopping ??= stopUnlessHeld()
    }, ms)
  }
  // Stopping twice could take the lock of the next server's directory, and delete it.
  let stopping: Promise<void> | undefined
  const stopUnlessHeld = async (): Promise<void> => {
    // A test process that starts meanwhile waits for the lock, and then starts another server.
    const release = await lockDirectory(directory)
    if (held.size > 0) {
      stopping = undefined
      return release?.()
    }
    await close(holds)
    await server.stop()
    await removeSocketDirectory(server)
    if (release !== undefined) await discardDirectory(directory)
  }
  holds.on('connection', (socket) => {
    held.add(socket)
    clearTimeout(timer)
    socket.on('error', () => {})
    socket.on('close', () => {
      if (held.delete(socket) && held.size === 0) stopLater(LINGER_MS)
    })
    socket.resume()
    socket.write(`${url}\n`)
  })
  // The URL contains the password: nobody else may connect.
  process.umask(0o077)
  await new Promise<void>((resolve) => holds.listen(socketPath(directory), resolve))
  // The one that started this process may have been killed.
  stopLater(LINGER_MS)
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) {
    process.on(signal, () => {
      for (const socket of held) socket.destroy()
      held.clear()
      stopLater(0)
    })
  }
  process.stdout.end()
}

/** On TCP as well, because some drivers do not use Unix sockets. */
async function startServer(): Promise<{ readonly server: EmbeddedServer; readonly url: string }> {
  for (let attempt = 1; ; attempt += 1) {
    const port = String(await freePort())
    try {
      const settings = { ...FAST_SETTINGS, listen_addresses: '127.0.0.1', port }
      const server = await startEmbedded({ directory, settings })
      const { username, password, port: actual, pathname } = new URL(server.url)
      // The server of a process that was killed is adopted with the port that it has.
      return { server, url: `postgresql://${username}:${password}@127.0.0.1:${actual}${pathname}` }
    } catch (error) {
      if (attempt === START_ATTEMPTS || !/could not create any TCP\/IP sockets/.test(messageOf(error)))
        throw error
    }
  }
}

async function freePort(): Promise<number> {
  const probe = createServer()
  await new Promise<void>((resolve) => probe.listen(0, '127.0.0.1', resolve))
  // A server that listens on TCP has such an address.
  const { port } = probe.address() as AddressInfo
  await close(probe)
  return port
}

async function close(server: Server): Promise<void> {
  await new Promise((resolve) => server.close(resolve))
}

/** Where the path of the data directory is too long, the socket of PostgreSQL is in a directory of its own. */
async function removeSocketDirectory({ url }: EmbeddedServer): Promise<void> {
  const path = new URL(url).searchParams.get('host')
  if (path !== null && !path.startsWith(directory)) await rm(path, { recursive: true, force: true })
}

await main()
