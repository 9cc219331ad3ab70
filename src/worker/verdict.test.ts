import { expect, it } from 'vitest'
import { leaseTable } from '../lease/index.ts'
import { DEFAULT_RETRY } from '../lease/retry-policy.ts'
import { dead, done, PermanentError, retry, SaturatedError, settleAs } from './outcome.ts'
import { type Circumstances, complete, problemWith, verdictOn } from './verdict.ts'

const CIRCUMSTANCES: Circumstances = {
  attempt: 1,
  maxAttempts: 3,
  policy: DEFAULT_RETRY,
  random: () => 0,
  cutShort: false,
}

function returned(outcome: ReturnType<typeof done> | undefined, circumstances: Partial<Circumstances> = {}) {
  return verdictOn({ ended: 'returned', outcome }, { ...CIRCUMSTANCES, ...circumstances })
}

function threw(error: unknown, circumstances: Partial<Circumstances> = {}) {
  return verdictOn({ ended: 'threw', error }, { ...CIRCUMSTANCES, ...circumstances })
}

it('nothing returned is done, and an outcome of the table’s own is passed on', () => {
  expect(returned(undefined)).toEqual({ verdict: 'settle', outcome: done(), failure: undefined })
  const own = settleAs('confirmed', { note: 'paid' })
  expect(returned(own)).toEqual({ verdict: 'settle', outcome: own, failure: undefined })
})

it('a retry has the delay it names, or the policy’s', () => {
  expect(returned(retry({ delayMs: 7, error: 'busy' }))).toMatchObject({
    outcome: { outcome: 'retry', args: { delay_ms: 7, error: 'busy' } },
    failure: 'busy',
  })
  expect(returned(retry(), { attempt: 2 })).toMatchObject({ outcome: { args: { delay_ms: 2_000 } } })
})

it('a schedule of delays gives each attempt its own, and later ones the last', () => {
  const delays = [1, 2, 3, 4].map((attempt) =>
    returned(retry(), { attempt, maxAttempts: undefined, policy: [10, 20, 30] }),
  )
  expect(delays).toMatchObject([10, 20, 30, 30].map((ms) => ({ outcome: { args: { delay_ms: ms } } })))
})

it('a thrown error is a retry by policy, whatever was thrown', () => {
  const error = new TypeError('no such field')
  expect(threw(error)).toEqual({
    verdict: 'settle',
    outcome: { outcome: 'retry', args: { delay_ms: 1_000, error: 'TypeError: no such field' } },
    failure: error,
  })
  expect(threw('text')).toMatchObject({ outcome: { outcome: 'retry', args: { error: 'text' } } })
  expect(threw(undefined)).toMatchObject({ outcome: { outcome: 'retry', args: { error: null } } })
})

it('LIFE-08: the last attempt that fails is dead, a delay or not; one before it is not', () => {
  expect(threw(new Error('no'), { attempt: 2 })).toMatchObject({ outcome: { outcome: 'retry' } })
  const last = { outcome: { outcome: 'dead', args: { error: 'Error: no' } } }
  expect(threw(new Error('no'), { attempt: 3 })).toMatchObject(last)
  expect(returned(retry({ delayMs: 5, error: new Error('no') }), { attempt: 3 })).toMatchObject(last)
  expect(threw(new Error('no'), { attempt: 99, maxAttempts: undefined })).toMatchObject({
    outcome: { outcome: 'retry' },
  })
  expect(returned(done(), { attempt: 99 })).toMatchObject({ outcome: done() })
})

it('LIFE-08: a PermanentError is dead at once, as is what the handler calls dead', () => {
  expect(threw(new PermanentError('gone'))).toMatchObject({
    outcome: { outcome: 'dead', args: { error: 'PermanentError: gone' } },
  })
  expect(returned(dead('gone'))).toMatchObject({ outcome: dead('gone'), failure: 'gone' })
})

it('RULE-020-042: saturation gives the row back and says for how long, even at the last attempt', () => {
  expect(threw(new SaturatedError(500), { attempt: 3 })).toEqual({ verdict: 'release', saturatedForMs: 500 })
})

it('RULE-020-030, D9: what a handler throws because it was told to stop is an attempt, and the row can be claimed at once', () => {
  expect(threw(new Error('aborted'), { cutShort: true })).toMatchObject({
    verdict: 'settle',
    outcome: { outcome: 'retry', args: { delay_ms: 0, error: 'Error: aborted' } },
  })
  expect(returned(done(), { cutShort: true })).toMatchObject({ verdict: 'settle', outcome: done() })
})

it('an outcome that the table does not declare, or without an argument that it has, is named as a problem', () => {
  const { outcomes } = leaseTable({
    table: 'jobs',
    id: 'id',
    lease: { owner: 'owner', until: 'until' },
    claimable: 'true',
    order: ['id'],
    onExpiry: 'claimable',
    outcomes: {
      done: { set: {} },
      paid: { set: { amount: '$amount' }, args: { amount: 'int' } },
      retry: { set: { reason: '$error', code: '$code' }, args: { error: 'text', code: 'int' } },
    },
  })
  const table = { outcomes }
  expect(problemWith(done(), table)).toBeUndefined()
  expect(problemWith(settleAs('lost'), table)).toContain(
    'which the table does not declare: it has done, paid, retry',
  )
  expect(problemWith(settleAs('paid'), table)).toContain('without its argument amount')
  expect(problemWith(settleAs('paid', { amount: null }), table)).toBeUndefined()
  // The worker gives these by itself, and what it cannot know is null.
  expect(problemWith(retry({ error: 'no' }), table)).toBeUndefined()
  expect(complete(retry({ error: 'no' }), table).args).toEqual({ error: 'no', code: null })
})
