import { once } from 'node:events'
import { watch } from 'node:fs'
import { chmod, mkdir, readdir, symlink, writeFile } from 'node:fs/promises'
import { createConnection, createServer } from 'node:net'
import { join } from 'node:path'
import { rolldown } from 'rolldown'
import { beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { holdTestServer, lockDirectory, serverDirectory, socketPath } from './test-server.ts'

const { spawnNode } = useProcesses()

let temporary: string
beforeEach(async () => {
  temporary = await temporaryDirectory()
  vi.stubEnv('TMPDIR', temporary)
  onTestFinished(async () => {
    vi.unstubAllEnvs()
    await removeDirectory(temporary)
  })
})

/** Listens where the process of a server would. Returns how many connections it got. */
async function listenIn(directory: string, answer: string): Promise<() => number> {
  let connections = 0
  const server = createServer((socket) => {
    connections += 1
    socket.on('error', () => {})
    socket.write(answer)
  })
  await new Promise<void>((resolve) => server.listen(socketPath(directory), resolve))
  onTestFinished(() => void server.close())
  return () => connections
}

describe('the directory of the shared server', () => {
  const NOT_TRUSTED = 'postgresql://somebody:else@127.0.0.1:1/postgres\n'

  it('is refused where others can write it, before its socket is used', async () => {
    const directory = await serverDirectory()
    await mkdir(directory)
    await chmod(directory, 0o777)
    const connections = await listenIn(directory, NOT_TRUSTED)
    await expect(holdTestServer()).rejects.toMatchObject({
      code: 'EMBEDDED_FAILED',
      message: expect.stringContaining('can be written by everybody'),
    })
    expect(connections()).toBe(0)
  })

  it('is refused where it is a symbolic link', async () => {
    const directory = await serverDirectory()
    const target = join(temporary, 'target')
    await mkdir(target)
    await symlink(target, directory)
    const connections = await listenIn(directory, NOT_TRUSTED)
    await expect(holdTestServer()).rejects.toMatchObject({
      code: 'EMBEDDED_FAILED',
      message: expect.stringContaining('is a symbolic link'),
    })
    expect(connections()).toBe(0)
    expect(await readdir(target)).toEqual(['hold.sock'])
  })

  it('is left alone where the process of the server does not answer', async () => {
    const directory = await serverDirectory()
    await mkdir(directory)
    await listenIn(directory, '')
    await expect(holdTestServer(50)).rejects.toMatchObject({
      code: 'EMBEDDED_FAILED',
      message: expect.stringContaining(`in ${directory} has not answered for 0.05 s.`),
    })
    expect(await readdir(directory)).toContain('hold.sock')
  })
})

describe('the process of the shared server', () => {
  /** What is run in the place of Node.js. */
  function replaceNode(path: string): void {
    const { execPath } = process
    process.execPath = path
    onTestFinished(() => void (process.execPath = execPath))
  }

  it('is reported with the last lines of its stderr if it ends at once', async () => {
    const program = join(temporary, 'node')
    await writeFile(program, '#!/bin/sh\necho "Cannot find package pg" >&2\nexit 1\n', { mode: 0o755 })
    replaceNode(program)
    await expect(holdTestServer()).rejects.toMatchObject({
      code: 'EMBEDDED_FAILED',
      message: expect.stringContaining('10 times. It reported:\nCannot find package pg\n'),
    })
  })

  it('is reported with the reason if it cannot be started', async () => {
    replaceNode(join(temporary, 'missing'))
    await expect(holdTestServer()).rejects.toMatchObject({
      code: 'EMBEDDED_FAILED',
      message: expect.stringContaining('could not be started: spawn'),
    })
    expect(await readdir(temporary)).toEqual([])
  })

  it('is not found from a bundle, and the error says what to do', async () => {
    const entry = join(temporary, 'entry.mjs')
    const testing = new URL('../../dist/testing/index.js', import.meta.url).pathname
    await writeFile(
      entry,
      `import { testDatabase } from ${JSON.stringify(testing)}
await testDatabase().catch(({ code, message }) => console.log(JSON.stringify({ code, message })))`,
    )
    const bundle = await rolldown({ input: entry, platform: 'node', logLevel: 'silent' })
    await bundle.write({ dir: join(temporary, 'bundle'), entryFileNames: 'bundle.mjs' })
    await bundle.close()
    const run = spawnNode(join(temporary, 'bundle/bundle.mjs'), [], { env: { TEST_DATABASE_URL: '' } })
    await run.exited
    const { stdout, stderr } = run.output()
    expect(stderr).toBe('')
    expect(JSON.parse(stdout)).toMatchObject({
      code: 'EMBEDDED_FAILED',
      message: expect.stringContaining(
        'If leasehold is part of a bundle, leave it out (declare it as external).',
      ),
    })
  })

  it('stops once, though it gets a second signal while it does', async () => {
    const directory = join(temporary, 'server')
    await mkdir(directory)
    const release = await lockDirectory(directory)
    const server = spawnNode('dist/testing/server-process.js', [directory])
    await expect.poll(async () => readdir(directory)).toContain('hold.sock')
    // Whoever waits for the lock tries again and again, each with a draft whose name contains its own id.
    const attempts: string[] = []
    const watcher = watch(directory, (_event, name) => {
      const id = /^hold\.lock\.(.+)\.draft$/.exec(name ?? '')?.[1]
      if (id !== undefined) attempts.push(id)
    })
    onTestFinished(() => watcher.close())

    process.kill(server.pid, 'SIGTERM')
    await expect.poll(() => attempts.length).toBeGreaterThan(0)
    // The connection shows when the second signal has arrived.
    const connection = createConnection(socketPath(directory))
    await once(connection, 'data')
    process.kill(server.pid, 'SIGTERM')
    await once(connection, 'close')
    const seen = attempts.length
    await expect.poll(() => attempts.length).toBeGreaterThan(seen + 10)
    await release?.()
    expect(await server.exited).toMatchObject({ code: 0 })
    expect(new Set(attempts).size).toBe(1)
    expect(await readdir(temporary)).toEqual([])
  })
})
