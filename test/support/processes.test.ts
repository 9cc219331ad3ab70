import { expect, it } from 'vitest'

import { useProcesses } from './processes.ts'

const { spawnNode } = useProcesses()
const ECHO = 'test/fixtures/echo.mjs'

it('line() finds a line that was written before or after the call', async () => {
  const echo = spawnNode(ECHO, ['hello'])
  expect(await echo.line((line) => line === 'hello')).toBe('hello')
  expect(await echo.line((line) => line === 'hello')).toBe('hello')
  echo.send('later')
  expect(await echo.line((line) => line.startsWith('lat'))).toBe('later')
  expect(await echo.kill('SIGKILL')).toEqual({ code: null, signal: 'SIGKILL' })
})

it('line() rejects with the output of the process if the process ends without the line', async () => {
  const echo = spawnNode(ECHO, ['only this'])
  const waiting = echo.line((line) => line === 'never')
  await echo.line((line) => line === 'only this')
  const exit = echo.kill()
  await expect(waiting).rejects.toThrow(/only this/)
  await exit
})
