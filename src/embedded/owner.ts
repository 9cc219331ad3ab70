import { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'

import type { Client } from 'pg'

import { identifyProcess, isRunning } from './process-identity.ts'
import { openSession } from './session.ts'

/** 'leaseown' in ASCII. Only the embedded server's life cycle uses an advisory lock, never a lease (SYNC-12). */
export const OWNER_LOCK = '7810756276994930542'
const NAME = /^leasehold-owner:(\d+):(\S+)$/

/** The backend of a killed owner lets go as soon as it reads the closed socket. */
const DEAD_OWNER_MS = 10_000
const POLL_MS = 25

/** A database session that holds the lock: who has it owns the server, and stops it. */
export interface OwnerSession {
  readonly isOpen: () => boolean
  close(): Promise<void>
}

export type Ownership =
  | { readonly outcome: 'taken'; readonly session: OwnerSession }
  | { readonly outcome: 'held' }

/** Takes the ownership of a running server, unless a live process has it. */
export async function takeOwnership(port: number, password: string): Promise<Ownership> {
  const self = await identifyProcess(process.pid)
  const socket = new Socket()
  const client = await openSession(
    port,
    password,
    `leasehold-owner:${process.pid}:${self?.startedAt}`,
    socket,
  )
  let open = true
  client.once('end', () => (open = false))
  try {
    await client.query('set idle_session_timeout = 0')
    if (!(await tryLock(client))) {
      await client.end()
      return { outcome: 'held' }
    }
  } catch (error) {
    await client.end()
    throw error
  }
  // Holding the server must not keep a process alive that has nothing left to do.
  socket.unref()
  return { outcome: 'taken', session: { isOpen: () => open, close: () => client.end() } }
}

async function tryLock(client: Client): Promise<boolean> {
  const deadline = performance.now() + DEAD_OWNER_MS
  for (;;) {
    const { rows } = await client.query<{ taken: boolean }>('select pg_try_advisory_lock($1) as taken', [
      OWNER_LOCK,
    ])
    if (rows[0]?.taken === true) return true
    if ((await ownerIsAlive(client)) || performance.now() > deadline) return false
    await delay(POLL_MS)
  }
}

async function ownerIsAlive(client: Client): Promise<boolean> {
  const { rows } = await client.query<{ name: string }>(
    `select a.application_name as name
     from pg_locks l join pg_stat_activity a using (pid)
     where l.locktype = 'advisory' and l.granted and l.objsubid = 1
       and (l.classid::bigint << 32 | l.objid::bigint) = $1`,
    [OWNER_LOCK],
  )
  const [, pid, startedAt] = NAME.exec(rows[0]?.name ?? '') ?? []
  return pid !== undefined && startedAt !== undefined && (await isRunning({ pid: Number(pid), startedAt }))
}
