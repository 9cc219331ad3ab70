import { execFile } from 'node:child_process'
import { mkdtemp, open, rm, rmdir } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)
const SIZE = '200m'
let place

async function mount() {
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-disk-'))
  try {
    await run('mount', ['-t', 'tmpfs', '-o', `size=${SIZE},mode=755`, 'tmpfs', directory])
    return directory
  } catch {
    await rmdir(directory)
    return undefined
  }
}

async function unmount(directory) {
  await run('umount', ['--lazy', directory])
  await rmdir(directory)
}

export default {
  name: 'disk-full',
  title: 'the disk of the database is full, and has room again',
  async skip() {
    const directory = await mount()
    if (directory === undefined) return 'a small tmpfs cannot be mounted, which needs root'
    await unmount(directory)
    return undefined
  },
  async server() {
    place = await mount()
    return { place, settings: { max_wal_size: '64MB', min_wal_size: '32MB' } }
  },
  times: 2,
  async step(context) {
    const ballast = join(place, 'ballast')
    const failed = (type) => context.watch(type, ({ error }) => /53100|No space left/.test(String(error)))
    const watched = [
      ...['databaseLost', 'trouble', 'reaperFailed', 'rolledBack'].map(failed),
      context.watch('unknown'),
    ]
    await fill(ballast)
    const deadline = performance.now() + 20_000
    const count = () => watched.reduce((sum, each) => sum + each.count(), 0)
    while (count() < 5 && !context.server.hasEnded && performance.now() < deadline) await context.delay(100)
    await context.delay(1_000)
    for (let left = count(); left > 0; left -= 1) context.fire('no space left')
    if (context.server.hasEnded) context.fire('PostgreSQL ended')
    await rm(ballast)
    if (context.server.hasEnded) await context.server.start()
    await context.accepted(20)
  },
  async cleanUp() {
    await unmount(place)
  },
}

/** Until there is no room for another byte. */
async function fill(path) {
  const file = await open(path, 'w')
  const block = Buffer.alloc(1 << 20)
  try {
    for (let size = block.length; size > 0;) {
      try {
        await file.write(block.subarray(0, size))
      } catch (error) {
        if (error.code !== 'ENOSPC') throw error
        size >>= 1
      }
    }
  } finally {
    await file.close()
  }
}
