import { afterAll, beforeAll, expect, it } from 'vitest'
import { faultsNamed } from './faults.mjs'
import { openRun, runFault } from './harness.mjs'

/** Those that are soonest over. The whole table is `npm run faults`; other tests concern each fault by itself. */
const SELECTION = 'sigkill,lost-commit,database-clock'
/** Always the same choices; their timing differs in every run. */
const SEED = '20'

let run
beforeAll(async () => {
  run = await openRun()
})
afterAll(async () => run?.close())

it.for(faultsNamed(SELECTION))('nothing is lost and no zombie wins while $title', async (fault, context) => {
  const { skipped, objections, history } = await runFault(fault, { run, seed: SEED, short: true })
  if (skipped !== undefined) {
    process.stderr.write(`skipped: ${skipped}\n`)
    context.skip(skipped)
  }
  expect(objections, `the history is ${history}`).toEqual([])
})
