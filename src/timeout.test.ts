import { expect, it } from 'vitest'
import { deadline, untilAborted, within } from './timeout.ts'

const never = new Promise<never>(() => undefined)

it('within() returns true if the promise resolves in time, and false if it does not', async () => {
  expect(await within(60_000, Promise.resolve('done'))).toBe(true)
  expect(await within(1, never)).toBe(false)
})

it('within() rejects with the error of the promise', async () => {
  await expect(within(60_000, Promise.reject(new Error('no')))).rejects.toThrow('no')
})

it('a deadline that was cancelled does not fire', async () => {
  let fired = false
  const cancelled = deadline(1, () => (fired = true))
  cancelled.cancel()
  await new Promise<void>((resolve) => {
    deadline(2, resolve)
  })
  expect(fired).toBe(false)
})

it('untilAborted() returns the result of the work, or rejects with the reason of the abort', async () => {
  const controller = new AbortController()
  expect(await untilAborted(controller.signal, async () => 'done')).toBe('done')
  const waiting = untilAborted(controller.signal, async () => never)
  controller.abort(new Error('stopped'))
  await expect(waiting).rejects.toThrow('stopped')
  let isCalled = false
  await expect(
    untilAborted(controller.signal, async () => {
      isCalled = true
    }),
  ).rejects.toThrow('stopped')
  expect(isCalled).toBe(false)
})
