// One real Redis for one reading, in a directory of its own that is removed afterwards.
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { endWithRun } from './side-process.mjs'

const START_TIMEOUT_MS = 10_000

/** The version of the `redis-server` on the PATH; undefined where there is none. */
export function redisVersion() {
  try {
    return /v=(\S+)/.exec(execFileSync('redis-server', ['--version'], { encoding: 'utf8' }))?.[1]
  } catch {
    return undefined
  }
}

/** `appendfsync`: `everysec`, the setting that BullMQ recommends, or `always`, which is as durable as PostgreSQL here. */
export async function startRedis({ appendfsync }) {
  if (redisVersion() === undefined) throw new Error('redis-server is not installed')
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-bench-redis-'))
  const socket = join(directory, 'redis.sock')
  const settings = {
    port: 0,
    unixsocket: socket,
    dir: directory,
    appendonly: 'yes',
    appendfsync,
    save: '',
    'maxmemory-policy': 'noeviction',
  }
  const child = spawn(
    'redis-server',
    Object.entries(settings).flatMap(([name, value]) => [`--${name}`, String(value)]),
    { stdio: 'ignore' },
  )
  const release = endWithRun(child)
  const stop = async () => {
    if (child.exitCode === null && child.signalCode === null) {
      const ended = once(child, 'exit')
      child.kill('SIGTERM')
      await ended
    }
    release()
    await rm(directory, { recursive: true, force: true })
  }
  try {
    const deadline = performance.now() + START_TIMEOUT_MS
    while (!existsSync(socket)) {
      if (child.exitCode !== null) throw new Error(`redis-server ended with ${child.exitCode}`)
      if (performance.now() > deadline) throw new Error('redis-server did not start')
      await delay(10)
    }
    return { url: socket, pid: child.pid, stop }
  } catch (error) {
    await stop()
    throw error
  }
}
