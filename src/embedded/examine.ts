import { setTimeout as delay } from 'node:timers/promises'

import { LeaseholdError } from '../errors.ts'
import { proveIdentity, type Identity } from './identity.ts'
import { pidFilePath, readPidFile, type PidFile } from './pid-file.ts'
import { examineProcess, identifyProcess, isZombie, type ProcessIdentity } from './process-identity.ts'

/** Crash recovery may take its time. */
const SETTLE_MS = 300_000
const SETTLE_POLL_MS = 50
const NO_PORT_YET: Identity = { outcome: 'silent', reason: 'it has not opened one yet' }

/** What is known, not guessed, about the server of a data directory. */
export type Found =
  | { readonly state: 'absent' }
  | { readonly state: 'running'; readonly port: number; readonly process: ProcessIdentity }
  /** The pid file is stale: its process id belongs to a dead process or to one that is no postmaster of this directory. */
  | { readonly state: 'stale'; readonly pidFile: PidFile; readonly reason: string }
  /** Its process lives and does not answer: starting, in crash recovery, or shutting down. */
  | { readonly state: 'silent'; readonly reason: string }
  | { readonly state: 'unproved'; readonly reason: string }

export async function examine(data: string, password: string): Promise<Found> {
  const pidFile = await readPidFile(data)
  if (pidFile === undefined) return { state: 'absent' }
  // A standalone backend (`postgres --single`) writes its id negative.
  const pid = Math.abs(pidFile.pid)
  if (Number.isNaN(pid)) return { state: 'silent', reason: `${pidFilePath(data)} is empty` }
  const process = await identifyProcess(pid)
  if (process === undefined) {
    // A zombie takes signals, so PostgreSQL would take it for a live postmaster.
    const reason = `process ${pid} has ended`
    return (await isZombie(pid)) ? { state: 'stale', pidFile, reason } : { state: 'absent' }
  }

  const { port } = pidFile
  const identity = port === undefined ? NO_PORT_YET : await proveIdentity(data, port, password)
  if (port !== undefined && identity.outcome === 'ours') return { state: 'running', port, process }
  const evidence = await examineProcess(pid, data)
  if (evidence.verdict === 'unrelated') {
    return { state: 'stale', pidFile, reason: `it names ${evidence.description}` }
  }
  const reason = `${pidFilePath(data)} names ${evidence.description}, and on port ${port}: ${
    identity.outcome === 'ours' ? 'it answers' : identity.reason
  }`
  return { state: identity.outcome === 'silent' ? 'silent' : 'unproved', reason }
}

export type Settled = Exclude<Found, { state: 'silent' | 'unproved' }>

/** Waits, within bounds, until a silent server answers or is gone; what stays unproved is an error. */
export async function examineUntilSettled(
  data: string,
  password: string,
  onWait: (reason: string) => void,
  waitMs = SETTLE_MS,
): Promise<Settled> {
  const deadline = performance.now() + waitMs
  let told = false
  for (;;) {
    const found = await examine(data, password)
    if (found.state !== 'silent' && found.state !== 'unproved') return found
    if (found.state === 'unproved' || performance.now() > deadline) throw unproved(data, found.reason)
    if (!told) onWait(found.reason)
    told = true
    await delay(SETTLE_POLL_MS)
  }
}

function unproved(data: string, reason: string): LeaseholdError {
  return new LeaseholdError(
    'EMBEDDED_FAILED',
    `Whether a server is running on ${data} could not be established: ${reason}.`,
    {
      remedy:
        'Nothing was changed, because a second server on the same data would destroy it. ' +
        `If that process is PostgreSQL, stop it; if you are sure that it is not, remove ${pidFilePath(data)}.`,
    },
  )
}
