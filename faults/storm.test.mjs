import { rm } from 'node:fs/promises'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { stormFor } from './faults.mjs'
import { openRun, runFault } from './harness.mjs'

const EVENTS = 1_500
/** Enough for each key to have several events. */
const FEW_EVENTS = 300
const SEED = '20'

let run
beforeAll(async () => {
  run = await openRun()
})
afterAll(async () => run?.close())

it('nothing is lost and keys are in order while six relays are killed, transactions commit late and events are replayed', async () => {
  const { objections, notes, history } = await runFault(stormFor(EVENTS), { run, seed: SEED })
  expect(objections, `the history is ${history}`).toEqual([])
  expect(notes).toContain('no errors in any process')
})

const remove = 'delete from leasehold.outbox where id = (select min(id) from leasehold.outbox)'
it.each([
  ['a sink that takes events of a key in another order', 'order', { worker: { swaps: true } }],
  [
    'an event that is deleted',
    'lost',
    { drained: async ({ withClient }) => withClient(async (client) => client.query(remove)) },
  ],
])('in a storm the checker objects to %s', async (_, rule, planted) => {
  const { objections, history } = await runFault({ ...stormFor(FEW_EVENTS), ...planted }, { run, seed: SEED })
  // Objections are expected here, so nobody needs the history.
  if (history !== undefined) await rm(history)
  expect(objections.map((objection) => objection.rule)).toContain(rule)
})
