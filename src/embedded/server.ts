import { examineUntilSettled } from './examine.ts'
import { takeOwnership, type Ownership, type OwnerSession } from './owner.ts'
import type { Place } from './place.ts'
import { urlOf } from './session.ts'
import { terminate, type ServerProcess } from './terminate.ts'

export const DATABASE = 'leasehold'

/** A server that lost a backend ends all the others and recovers before it answers again. */
const RETAKE_MS = 60_000

export interface EmbeddedServer {
  /** A superuser's URL: `postgresql://leasehold:<password>@127.0.0.1:<port>/leasehold`. */
  readonly url: string
  readonly directory: string
  readonly port: number
  /**
   * `initialised`: the data is new. `started`: the data was there. `adopted`: a server whose owner had
   * died was still running. `shared`: a live process owns it.
   */
  readonly origin: 'initialised' | 'started' | 'adopted' | 'shared'
  /** Stops the server and returns when its process is gone; a shared one is left to its owner. May be called again. */
  stop(): Promise<void>
}

interface Running {
  readonly place: Place
  readonly data: string
  readonly password: string
  readonly port: number
}

export function sharedServer(running: Running): EmbeddedServer {
  return { ...face(running), origin: 'shared', stop: async () => {} }
}

export function ownedServer(
  running: Running,
  origin: 'initialised' | 'started' | 'adopted',
  server: ServerProcess,
  session: OwnerSession,
): EmbeddedServer {
  let stopped: Promise<void> | undefined
  return {
    ...face(running),
    origin,
    async stop() {
      stopped ??= stopOwned(running, server, session)
      await stopped
    },
  }
}

function face({ place, port, password }: Running) {
  return { url: urlOf(port, password, DATABASE), directory: place.directory, port }
}

/**
 * The session stays open until the server ends it: closed before, a newcomer could adopt a server that
 * is about to stop. A session that was lost earlier (a backend crashed, the server died) is taken again;
 * when another process has it by now, the server is that one's.
 */
async function stopOwned(running: Running, server: ServerProcess, session: OwnerSession): Promise<void> {
  if (session.isOpen()) {
    await terminate(server)
    await session.close()
    return
  }
  const ownership = await retakeOwnership(running, server)
  if (ownership === undefined || ownership.outcome === 'held') return
  await terminate(server)
  await ownership.session.close()
}

async function retakeOwnership(running: Running, server: ServerProcess): Promise<Ownership | undefined> {
  const found = await examineUntilSettled(running.data, running.password, () => {}, RETAKE_MS)
  const isTheSame = found.state === 'running' && found.process.startedAt === server.startedAt
  return isTheSame ? takeOwnership(found.port, running.password) : undefined
}
