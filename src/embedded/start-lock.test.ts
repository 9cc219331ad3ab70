import { readFile, readdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'

import { afterEach, beforeEach, expect, it } from 'vitest'

import { removeDirectory, temporaryDirectory } from '../../test/support/directory.ts'
import { identifyProcess } from './processes.ts'
import { acquireStartLock } from './start-lock.ts'

let directory: string
let path: string

beforeEach(async () => {
  directory = await temporaryDirectory()
  path = join(directory, 'starting.lock')
})

afterEach(async () => {
  await removeDirectory(directory)
})

async function writeLock(holder: { pid: number; startedAt: string }): Promise<void> {
  await writeFile(path, JSON.stringify({ ...holder, id: '00000000-0000-4000-8000-000000000000' }))
}

/** Acquires the lock many times concurrently. Returns how many held it at the same time at most. */
async function contend(contenders: number): Promise<number> {
  let holding = 0
  let most = 0
  const work = async () => {
    const release = await acquireStartLock(path)
    holding += 1
    most = Math.max(most, holding)
    await readdir(directory)
    holding -= 1
    await release()
  }
  await Promise.all(Array.from({ length: contenders }, work))
  return most
}

it('the lock has one holder at a time, and no file remains afterwards', async () => {
  expect(await contend(8)).toBe(1)
  expect(await readdir(directory)).toEqual([])
})

it('the lock of a process that has ended is broken once, however many processes wait for it', async () => {
  await writeLock({ pid: 2 ** 22 + 1, startedAt: 'long ago' })
  expect(await contend(8)).toBe(1)
  expect(await readdir(directory)).toEqual([])
})

it('a process with the same id as the holder but another start time is not the holder', async () => {
  await writeLock({ pid: process.pid, startedAt: 'before this process' })
  const release = await acquireStartLock(path, () => {}, 0)
  expect(await readFile(path, 'utf8')).toContain(`"pid":${process.pid},`)
  await release()
  expect(await readdir(directory)).toEqual([])
})

it('the files that killed processes left next to the lock are deleted', async () => {
  await writeFile(`${path}.7d1e.draft`, '')
  await writeFile(`${path}.7d1e`, '')
  const release = await acquireStartLock(path)
  expect(await readdir(directory)).toEqual(['starting.lock'])
  await release()
})

it('a lock file without a readable holder is broken', async () => {
  await writeFile(path, '')
  const release = await acquireStartLock(path, () => {}, 0)
  expect(await readFile(path, 'utf8')).toContain(`"pid":${process.pid},`)
  await release()
  expect(await readdir(directory)).toEqual([])
})

it('the lock of a live process is respected, and the error names the process', async () => {
  const self = await identifyProcess(process.pid)
  await writeLock({ pid: process.pid, startedAt: self?.startedAt ?? '' })
  await expect(acquireStartLock(path, () => {}, 0)).rejects.toMatchObject({
    code: 'EMBEDDED_FAILED',
    message: expect.stringContaining(`Process ${process.pid} `),
  })
  expect(await readdir(directory)).toEqual(['starting.lock'])
})
