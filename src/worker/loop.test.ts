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
  it('repeats its work, and stops in the middle of a pause', async () => {
    const { loop, enough, runs } = counted(3)
    loop.start()
    await enough
    await loop.stop()
    expect(runs()).toBe(3)
  })

  it('RULE-020-002: can end its current pause early, and stays stopped once it is stopped', async () => {
    const { loop, enough, runs } = counted(2)
    let pauseMs = 1_000_000
    const again = new Promise<void>((resolve) => {
      const hastened = createLoop({
        name: 'hastened',
        work: async () => {
          if (pauseMs === 0) {
            pauseMs = 1_000_000
            resolve(hastened.stop())
          }
          return Promise.resolve()
        },
        pauseMs: () => pauseMs,
        onError: () => undefined,
      })
      hastened.start()
      setImmediate(() => {
        pauseMs = 0
        hastened.hasten()
      })
    })
    await again
    loop.start()
    await enough
    await loop.stop()
    loop.hasten()
    expect(runs()).toBe(2)
  })

  it('continues after an error, which it passes on', async () => {
    const { loop, enough, errors } = counted(3, () => {
      throw new Error('no')
    })
    loop.start()
    await enough
    await loop.stop()
    // The last one was thrown in the very moment in which it was stopped.
    expect(errors.length).toBeGreaterThanOrEqual(2)
  })

  it('runs once if it is started twice, and may be stopped twice or without having been started', async () => {
    const { loop, enough, runs } = counted(1)
    await loop.stop()
    loop.start()
    loop.start()
    await enough
    await Promise.all([loop.stop(), loop.stop()])
    expect(runs()).toBe(1)
  })

  it('continues if it is started while it is still stopping, and never runs its work twice at once', async () => {
    const busy = { now: 0, most: 0 }
    const gates: (() => void)[] = []
    const begun = (): Promise<void> => new Promise((resolve) => (began = resolve))
    let began: () => void = () => undefined
    const loop = createLoop({
      name: 'busy',
      work: async () => {
        busy.now += 1
        busy.most = Math.max(busy.most, busy.now)
        began()
        await new Promise<void>((resolve) => gates.push(resolve))
        busy.now -= 1
      },
      pauseMs: () => 1_000_000,
      onError: () => undefined,
    })
    const first = begun()
    loop.start()
    await first
    const stopped = loop.stop()
    const second = begun()
    loop.start()
    gates[0]?.()
    await stopped
    await second
    gates[1]?.()
    await loop.stop()
    expect(busy).toEqual({ now: 0, most: 1 })
    expect(gates).toHaveLength(2)
  })

  it('signals its work to stop, and has stopped only when the work has ended', async () => {
    const order: string[] = []
    let began: () => void = () => undefined
    const begun = new Promise<void>((resolve) => {
      began = resolve
    })
    const loop = createLoop({
      name: 'patient',
      work: async (stop) => {
        began()
        await pause(1_000_000, stop)
        order.push('work ended')
        throw new Error('told to stop')
      },
      pauseMs: () => 1_000_000,
      onError: () => order.push('error'),
    })
    loop.start()
    await begun
    await loop.stop()
    order.push('stopped')
    expect(order).toEqual(['work ended', 'stopped'])
  })
})
