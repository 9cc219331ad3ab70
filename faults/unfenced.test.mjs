import { rm } from 'node:fs/promises'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { faultsNamed } from './faults.mjs'
import { openRun, runFault } from './harness.mjs'
import { createUnfencedBuild } from './unfenced-build.mjs'

let run
beforeAll(async () => {
  run = await openRun()
})
afterAll(async () => run?.close())

it.each([
  ['late-writes', { trusting: false }],
  ['sigstop', { trusting: true }],
])(
  'in a build without the fencing guard, the checker objects to the writes of zombies (%s)',
  async (name, how) => {
    const build = await createUnfencedBuild(how)
    try {
      const [fault] = faultsNamed(name)
      const { objections, fired, history } = await runFault(fault, {
        run,
        seed: '20',
        short: true,
        build: build.url,
      })
      // Objections are expected here, so nobody needs the history.
      if (history !== undefined) await rm(history)
      expect(fired).toBeGreaterThan(0)
      expect(objections.map(({ rule }) => rule)).toContain('stale token')
    } finally {
      await build.remove()
    }
  },
)
