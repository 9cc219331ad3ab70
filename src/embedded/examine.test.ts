import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

import { afterEach, beforeEach, expect, it } from 'vitest'

import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { examine, examineUntilSettled } from './examine.ts'
import { pidFilePath } from './pid-file.ts'
import { choosePort } from './port.ts'
import { identifyProcess, isZombie } from './process-identity.ts'

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
  const text = `${[pid, data, 1, await choosePort('/nowhere'), '', '127.0.0.1', '', 'ready'].join('\n')}\n`
  await writeFile(pidFilePath(data), text)
  return text
}

it('no pid file: no server', async () => {
  expect(await examine(data, 'secret')).toEqual({ state: 'absent' })
})

it('a pid file whose process is gone: no server', async () => {
  const ended = spawnNode('test/fixtures/echo.mjs')
  await ended.kill('SIGKILL')
  await writePidFile(ended.pid)
  expect(await examine(data, 'secret')).toEqual({ state: 'absent' })
})

it('a pid file whose process works elsewhere is stale', async () => {
  await writePidFile(process.pid)
  expect(await examine(data, 'secret')).toMatchObject({ state: 'stale' })
})

it('a live process in the data directory that cannot be told from a server is left alone, and the error says what was found', async () => {
  const puzzle = spawnNode('test/fixtures/echo.mjs', ['here'], { cwd: data })
  await puzzle.line((line) => line === 'here')
  const text = await writePidFile(puzzle.pid)
  const waits: string[] = []
  await expect(
    examineUntilSettled(data, 'secret', (reason) => waits.push(reason), 100),
  ).rejects.toMatchObject({
    code: 'EMBEDDED_FAILED',
    message: expect.stringMatching(
      new RegExp(`process ${puzzle.pid} .*echo.mjs.*ECONNREFUSED.*Nothing was changed`),
    ),
  })
  expect(waits).toHaveLength(1)
  expect(await readFile(pidFilePath(data), 'utf8')).toBe(text)
  await puzzle.kill()
})

it.skipIf(process.platform !== 'linux')(
  'a pid file whose process is a zombie is stale (made with /bin/sh, Linux only)',
  async () => {
    const parent = spawn('/bin/sh', ['-c', 'sleep 0 & echo $!; exec sleep 600'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    })
    const [line] = await once(parent.stdout.setEncoding('utf8'), 'data')
    const pid = Number(line)
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

it('a silent server that ends while it is waited for is gone', async () => {
  const ending = spawnNode('test/fixtures/echo.mjs', ['here'], { cwd: data })
  await ending.line((line) => line === 'here')
  await writePidFile(ending.pid)
  const settled = examineUntilSettled(data, 'secret', () => void ending.kill('SIGKILL'))
  expect(await settled).toEqual({ state: 'absent' })
  await ending.exited
})

it('an id that was used again is another process', async () => {
  const self = await identifyProcess(process.pid)
  expect(self).toEqual(await identifyProcess(process.pid))
  expect(self?.startedAt).not.toBe((await identifyProcess(process.ppid))?.startedAt)
  expect(self?.startedAt).toMatch(/^\S+$/)
})
