import { randomUUID } from 'node:crypto'
import { link, readFile, readdir, unlink, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

import { hasCode, LeaseholdError } from '../errors.ts'
import { identifyProcess, isRunning, type ProcessIdentity } from './processes.ts'

/** The holder may be running initdb, or waiting for the end of a crash recovery. */
const WAIT_MS = 600_000
const POLL_MS = 50

interface Holder extends ProcessIdentity {
  /** Identifies this one acquisition of the lock. It is never reused. */
  readonly id: string
}

export type ReleaseStartLock = () => Promise<void>

/**
 * Lets one process at a time start a server in a directory. The lock file identifies its holder, so that the lock of a
 * killed process can be broken. Breaking it needs another lock, whose name contains the id of the acquisition to be
 * broken. Otherwise a process that has read a dead holder could delete the file of a live one that came in between.
 */
export async function acquireStartLock(
  path: string,
  log: (line: string) => void = () => {},
  waitMs = WAIT_MS,
): Promise<ReleaseStartLock> {
  const release = await acquire(path, log, waitMs)
  await deleteLeftovers(path)
  return release
}

async function acquire(path: string, log: (line: string) => void, waitMs: number): Promise<ReleaseStartLock> {
  const self = await identifyProcess(process.pid)
  if (self === undefined) throw new Error(`process ${process.pid} cannot be identified`)
  const holder: Holder = { ...self, id: randomUUID() }
  const deadline = performance.now() + waitMs
  let isReported = false
  while (!(await tryCreate(path, holder))) {
    const current = await readHolder(path)
    if (current === undefined) continue
    if (!(await isRunning(current))) {
      await breakLock(path, current, log, waitMs)
      continue
    }
    if (performance.now() > deadline) {
      throw new LeaseholdError(
        'EMBEDDED_FAILED',
        `Process ${current.pid} has held ${path} for more than ${waitMs / 1000} s.`,
        {
          remedy: `It is starting the server in this directory; wait for it, or end it and start again.`,
        },
      )
    }
    if (!isReported) {
      log(`waiting up to ${waitMs / 1000} s for process ${current.pid}, which is starting the server here`)
    }
    isReported = true
    await delay(POLL_MS)
  }
  return async () => {
    await removeIfPresent(path)
  }
}

/**
 * Deletes the drafts and the breaking locks of killed processes. The draft of a live process may be among them; that
 * process notices and writes another one.
 */
async function deleteLeftovers(path: string): Promise<void> {
  const prefix = `${basename(path)}.`
  for (const name of await readdir(dirname(path))) {
    if (name.startsWith(prefix)) await removeIfPresent(join(dirname(path), name))
  }
}

/** A hard link is created atomically and fails if the name exists, so a reader never sees a partial file. */
async function tryCreate(path: string, holder: Holder): Promise<boolean> {
  const draft = `${path}.${holder.id}.draft`
  await writeFile(draft, JSON.stringify(holder), { flag: 'w' })
  try {
    await link(draft, path)
    return true
  } catch (error) {
    // ENOENT: another process has deleted the draft as a leftover.
    if (hasCode(error, 'EEXIST', 'ENOENT')) return false
    throw error
  } finally {
    await removeIfPresent(draft)
  }
}

async function breakLock(
  path: string,
  dead: Holder,
  log: (line: string) => void,
  waitMs: number,
): Promise<void> {
  const release = await acquire(`${path}.${dead.id}`, log, waitMs)
  try {
    if ((await readHolder(path))?.id === dead.id) await removeIfPresent(path)
  } finally {
    await release()
  }
}

/** A power failure can leave an unreadable file. It counts as held by process 0, which never runs. */
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
