import { expect, it } from 'vitest'

import { useProcesses } from './processes.ts'

const { spawnNode } = useProcesses()
const ECHO = 'test/fixtures/echo.mjs'

it('a line is found whether it was written before or after it is asked for', async () => {
  const echo = spawnNode(ECHO, ['hello'])
  expect(await echo.line((line) => line === 'hello')).toBe('hello')
  expect(await echo.line((line) => line === 'hello')).toBe('hello')
  echo.send('later')
  expect(await echo.line((line) => line.startsWith('lat'))).toBe('later')
  expect(await echo.kill('SIGKILL')).toEqual({ code: null, signal: 'SIGKILL' })
})

it('waiting for a line of a process that ends instead shows what it wrote', async () => {
  const echo = spawnNode(ECHO, ['only this'])
  const waiting = echo.line((line) => line === 'never')
  await echo.line((line) => line === 'only this')
  const exit = echo.kill()
  await expect(waiting).rejects.toThrow(/only this/)
  await exit
})
