import { describe, expect, it } from 'vitest'
import { createLoop, pause } from './loop.ts'

/** Resolves after so many runs. */
function counted(times: number, work: () => void = () => undefined) {
  let runs = 0
  let reached: () => void = () => undefined
  const enough = new Promise<void>((resolve) => {
    reached = resolve
  })
  const errors: unknown[] = []
  const loop = createLoop({
    name: 'counted',
    work: async () => {
      runs += 1
      if (runs === times) reached()
      work()
      return Promise.resolve()
    },
    pauseMs: () => (runs < times ? 0 : 1_000_000),
    onError: (error) => errors.push(error),
  })
  return { loop, enough, errors, runs: () => runs }
}

describe('a loop', () => {
  it('works again and again, and stops in the middle of a pause', async () => {
    const { loop, enough, runs } = counted(3)
    loop.start()
    await enough
    await loop.stop()
    expect(runs()).toBe(3)
  })

  it('goes on after an error, which is handed on', async () => {
    const { loop, enough, errors } = counted(3, () => {
      throw new Error('no')
    })
    loop.start()
    await enough
    await loop.stop()
    // The last one was thrown in the very moment in which it was stopped.
    expect(errors.length).toBeGreaterThanOrEqual(2)
  })

  it('started twice it runs once; stopped twice, or never started, is fine; it can be started again', async () => {
    const { loop, enough, runs } = counted(1)
    await loop.stop()
    loop.start()
    loop.start()
    await enough
    await Promise.all([loop.stop(), loop.stop()])
    expect(runs()).toBe(1)
    loop.start()
    await loop.stop()
    expect(runs()).toBe(2)
  })

  it('tells its work to stop, and stops only when the work has ended', async () => {
    const order: string[] = []
    const loop = createLoop({
      name: 'patient',
      work: async (stop) => {
        await pause(1_000_000, stop)
        order.push('work ended')
        throw new Error('told to stop')
      },
      pauseMs: () => 1_000_000,
      onError: () => order.push('error'),
    })
    loop.start()
    await loop.stop()
    order.push('stopped')
    expect(order).toEqual(['work ended', 'stopped'])
  })
})
