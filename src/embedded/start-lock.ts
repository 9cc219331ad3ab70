import { randomUUID } from 'node:crypto'
import { link, readFile, readdir, unlink, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

import { LeaseholdError } from '../errors.ts'
import { identifyProcess, isRunning, type ProcessIdentity } from './process-identity.ts'
import { hasCode } from './system-errors.ts'

/** A holder may be initialising, or waiting for a crash recovery to end. */
const WAIT_MS = 600_000
const POLL_MS = 50

interface Holder extends ProcessIdentity {
  /** Of this one holding; never used again. */
  readonly id: string
}

export type ReleaseStartLock = () => Promise<void>

/**
 * One starter at a time in a directory. The lock names its holder by identity, so the lock of a killed
 * starter is broken. Breaking needs a lock of its own, named by the holding to be broken: between
 * reading a dead holder and removing its file, nobody else can have put a live one in its place.
 */
export async function acquireStartLock(path: string, waitMs = WAIT_MS): Promise<ReleaseStartLock> {
  const release = await acquire(path, waitMs)
  await sweep(path)
  return release
}

async function acquire(path: string, waitMs: number): Promise<ReleaseStartLock> {
  const self = await identifyProcess(process.pid)
  if (self === undefined) throw new Error(`process ${process.pid} cannot see itself`)
  const holder: Holder = { ...self, id: randomUUID() }
  const deadline = performance.now() + waitMs
  while (!(await tryCreate(path, holder))) {
    const current = await readHolder(path)
    if (current === undefined) continue
    if (!(await isRunning(current))) {
      await breakLock(path, current, waitMs)
      continue
    }
    if (performance.now() > deadline) {
      throw new LeaseholdError(
        'EMBEDDED_FAILED',
        `Process ${current.pid} has held ${path} for more than ${waitMs / 1000} s.`,
        {
          remedy: `It is starting the server in this directory; see what keeps it, or end it and start again.`,
        },
      )
    }
    await delay(POLL_MS)
  }
  return async () => {
    await removeIfPresent(path)
  }
}

/**
 * Clears what killed starters left: drafts, and locks for breaking a holding that is over. A live one's
 * draft may be among them; it finds that out and writes another.
 */
async function sweep(path: string): Promise<void> {
  const prefix = `${basename(path)}.`
  for (const name of await readdir(dirname(path))) {
    if (name.startsWith(prefix)) await removeIfPresent(join(dirname(path), name))
  }
}

/** A link appears whole and fails when the name is taken; a reader never sees half a holder. */
async function tryCreate(path: string, holder: Holder): Promise<boolean> {
  const draft = `${path}.${holder.id}.draft`
  await writeFile(draft, JSON.stringify(holder), { flag: 'w' })
  try {
    await link(draft, path)
    return true
  } catch (error) {
    // ENOENT: the draft was swept away.
    if (hasCode(error, 'EEXIST', 'ENOENT')) return false
    throw error
  } finally {
    await removeIfPresent(draft)
  }
}

async function breakLock(path: string, dead: Holder, waitMs: number): Promise<void> {
  const release = await acquire(`${path}.${dead.id}`, waitMs)
  try {
    if ((await readHolder(path))?.id === dead.id) await removeIfPresent(path)
  } finally {
    await release()
  }
}

/** A file that names nobody is what a power cut leaves behind: its holder (process 0) is not running. */
async function readHolder(path: string): Promise<Holder | undefined> {
  let text: string
  try {
    text = await readFile(path, 'utf8')
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined
    throw error
  }
  const [, pid, startedAt, id] =
    /^\{"pid":(\d+),"startedAt":"([^"]*)","id":"([0-9a-f-]+)"\}$/.exec(text) ?? []
  if (pid === undefined || startedAt === undefined || id === undefined) {
    return { pid: 0, startedAt: '', id: 'unreadable' }
  }
  return { pid: Number(pid), startedAt, id }
}

async function removeIfPresent(path: string): Promise<void> {
  try {
    await unlink(path)
  } catch (error) {
    if (!hasCode(error, 'ENOENT')) throw error
  }
}
