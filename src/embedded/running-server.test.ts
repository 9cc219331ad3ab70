import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

import { afterEach, beforeEach, expect, it } from 'vitest'

import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { identifyProcess, isZombie } from './processes.ts'
import { examine, examineUntilSettled, pidFilePath } from './running-server.ts'

const { spawnNode } = useProcesses()
let data: string

beforeEach(async () => {
  data = join(await temporaryDirectory(), 'data')
  await mkdir(data)
})

afterEach(async () => {
  await removeDirectory(join(data, '..'))
})

async function writePidFile(pid: number): Promise<string> {
  const text = `${[pid, data, 1, 5432, data, '', '', 'ready'].join('\n')}\n`
  await writeFile(pidFilePath(data), text)
  return text
}

it('without a pid file there is no server', async () => {
  expect(await examine(data, 'secret')).toEqual({ state: 'absent' })
})

it('if the process of the pid file has ended, there is no server', async () => {
  const ended = spawnNode('test/fixtures/echo.mjs')
  await ended.kill('SIGKILL')
  await writePidFile(ended.pid)
  expect(await examine(data, 'secret')).toEqual({ state: 'absent' })
})

it('a pid file is stale if its process has another working directory', async () => {
  await writePidFile(process.pid)
  expect(await examine(data, 'secret')).toMatchObject({ state: 'stale' })
})

it('a live process in the data directory that may be a server is not touched, and the error describes it', async () => {
  const unclear = spawnNode('test/fixtures/echo.mjs', ['here'], { cwd: data })
  await unclear.line((line) => line === 'here')
  const text = await writePidFile(unclear.pid)
  const waits: string[] = []
  await expect(
    examineUntilSettled(data, 'secret', (reason) => waits.push(reason), 100),
  ).rejects.toMatchObject({
    code: 'EMBEDDED_FAILED',
    message: expect.stringMatching(
      new RegExp(`process ${unclear.pid} .*echo.mjs.*ENOENT.*Nothing was changed`),
    ),
  })
  expect(waits).toHaveLength(1)
  expect(await readFile(pidFilePath(data), 'utf8')).toBe(text)
  await unclear.kill()
})

it.skipIf(process.platform !== 'linux')(
  'a pid file is stale if its process is a zombie (made with /bin/sh, Linux only)',
  async () => {
    // The child ends when its input does, after the shell has become `sleep`, which does not wait for children.
    const parent = spawn('/bin/sh', ['-c', 'cat <&3 & echo $!; exec sleep 600'], {
      stdio: ['ignore', 'pipe', 'inherit', 'pipe'],
    })
    const [line] = await once(parent.stdout?.setEncoding('utf8') ?? parent, 'data')
    const pid = Number(line)
    await expect.poll(async () => readFile(`/proc/${parent.pid}/comm`, 'utf8')).toBe('sleep\n')
    parent.stdio[3]?.destroy()
    await expect.poll(() => isZombie(pid)).toBe(true)
    await writePidFile(pid)
    expect(await examine(data, 'secret')).toMatchObject({
      state: 'stale',
      reason: `process ${pid} has ended`,
    })
    parent.kill()
    await once(parent, 'close')
  },
)

it('a silent server that ends during the wait counts as absent', async () => {
  const ending = spawnNode('test/fixtures/echo.mjs', ['here'], { cwd: data })
  await ending.line((line) => line === 'here')
  await writePidFile(ending.pid)
  const settled = examineUntilSettled(data, 'secret', () => void ending.kill('SIGKILL'))
  expect(await settled).toEqual({ state: 'absent' })
  await ending.exited
})

it('a process is identified by its id and its start time', async () => {
  const self = await identifyProcess(process.pid)
  expect(self).toEqual(await identifyProcess(process.pid))
  expect(self?.startedAt).not.toBe((await identifyProcess(process.ppid))?.startedAt)
  expect(self?.startedAt).toMatch(/^\S+$/)
})
