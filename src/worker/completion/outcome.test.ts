import { expect, it } from 'vitest'
import { leaseTable } from '../../lease/index.ts'
import { DEFAULT_RETRY } from '../../lease/retry-policy.ts'
import {
  agrees,
  dead,
  done,
  errorText,
  type Outcome,
  PermanentError,
  problemWith,
  retry,
  retryRulesFor,
  type RetryRules,
  SaturatedError,
  settleAs,
  verdictOn,
  withAllArgs,
} from './outcome.ts'

const FIRST_OF_THREE: RetryRules = { attempt: 1, maxAttempts: 3, policy: DEFAULT_RETRY, random: () => 0 }

const TABLE = {
  table: 'jobs',
  id: 'id',
  lease: { owner: 'owner', until: 'until' },
  claimable: 'true',
  order: ['id'],
  onExpiry: 'claimable',
} as const

function returned(outcome: Outcome | undefined, rules: Partial<RetryRules> = {}, isStopping = false) {
  return verdictOn({ ended: 'returned', outcome }, { ...FIRST_OF_THREE, ...rules }, { isStopping })
}

function threw(error: unknown, rules: Partial<RetryRules> = {}, isStopping = false) {
  return verdictOn({ ended: 'threw', error }, { ...FIRST_OF_THREE, ...rules }, { isStopping })
}

it('a handler that returns nothing settles as done, and an outcome of the table’s own is passed on', () => {
  expect(returned(undefined)).toEqual({ verdict: 'settle', outcome: done(), failure: undefined })
  const own = settleAs('confirmed', { note: 'paid' })
  expect(returned(own)).toEqual({ verdict: 'settle', outcome: own, failure: undefined })
})

it('a retry waits for the delay it names, or for the one of the policy', () => {
  expect(returned(retry({ delayMs: 7, error: 'busy' }))).toMatchObject({
    outcome: { name: 'retry', args: { delay_ms: 7, error: 'busy' } },
    failure: 'busy',
  })
  expect(returned(retry(), { attempt: 2 })).toMatchObject({ outcome: { args: { delay_ms: 2_000 } } })
})

it('a schedule gives each attempt its own delay, and later attempts the last one', () => {
  const delays = [1, 2, 3, 4].map((attempt) =>
    returned(retry(), { attempt, maxAttempts: undefined, policy: [10, 20, 30] }),
  )
  expect(delays).toMatchObject([10, 20, 30, 30].map((ms) => ({ outcome: { args: { delay_ms: ms } } })))
})

it('a thrown value of any kind is a retry by the policy', () => {
  const error = new TypeError('no such field')
  expect(threw(error)).toEqual({
    verdict: 'settle',
    outcome: { name: 'retry', args: { delay_ms: 1_000, error: 'TypeError: no such field' } },
    failure: error,
  })
  expect(threw('text')).toMatchObject({ outcome: { name: 'retry', args: { error: 'text' } } })
  expect(threw(undefined)).toMatchObject({
    outcome: { name: 'retry', args: { error: 'Error: the handler threw undefined instead of an error' } },
    failure: { message: 'the handler threw undefined instead of an error' },
  })
})

it('LIFE-08: a row is dead when its last attempt fails, whether the retry names a delay or not, and not before', () => {
  expect(threw(new Error('no'), { attempt: 2 })).toMatchObject({ outcome: { name: 'retry' } })
  const last = { outcome: { name: 'dead', args: { error: 'Error: no' } } }
  expect(threw(new Error('no'), { attempt: 3 })).toMatchObject(last)
  expect(returned(retry({ delayMs: 5, error: new Error('no') }), { attempt: 3 })).toMatchObject(last)
  expect(threw(new Error('no'), { attempt: 99, maxAttempts: undefined })).toMatchObject({
    outcome: { name: 'retry' },
  })
  expect(returned(done(), { attempt: 99 })).toMatchObject({ outcome: done() })
})

it('LIFE-08: a PermanentError and a returned dead() make a row dead at once', () => {
  expect(threw(new PermanentError('gone'))).toMatchObject({
    outcome: { name: 'dead', args: { error: 'PermanentError: gone' } },
  })
  expect(returned(dead('gone'))).toMatchObject({ outcome: dead('gone'), failure: 'gone' })
  expect(returned(dead(undefined))).toMatchObject({ failure: { message: 'the handler gave no reason' } })
})

it('RULE-020-042: a SaturatedError releases the row and says for how long claiming pauses, even at the last attempt', () => {
  expect(threw(new SaturatedError(500), { attempt: 3 })).toEqual({ verdict: 'release', saturatedForMs: 500 })
})

it('RULE-020-030, D9: an error of a handler that was told to stop counts an attempt, does not make the row dead, and lets it be claimed at once', () => {
  expect(threw(new Error('aborted'), { attempt: 3 }, true)).toMatchObject({
    verdict: 'settle',
    outcome: { name: 'retry', args: { delay_ms: 0, error: 'Error: aborted' } },
  })
  expect(returned(done(), {}, true)).toMatchObject({ verdict: 'settle', outcome: done() })
})

it('an outcome that the table does not declare, or that lacks a declared argument, is a problem', () => {
  const { outcomes } = leaseTable({
    ...TABLE,
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
  expect(withAllArgs(retry({ error: 'no' }), table).args).toEqual({ error: 'no', code: null })
})

it('LIFE-08: the maximum of attempts is a number of the declaration or a column of the row, and may be absent', () => {
  const maxOf = (max: number | string | undefined, row: object = { max_attempts: 4 }) => {
    const attempts = { column: 'attempts', max, expiries: undefined, error: undefined }
    return retryRulesFor({ row, attempt: 2 }, { attempts, retry: DEFAULT_RETRY }, Math.random).maxAttempts
  }
  expect(maxOf(7)).toBe(7)
  expect(maxOf('max_attempts')).toBe(4)
  expect(maxOf('max_attempts', { max_attempts: null })).toBeUndefined()
  expect(maxOf(undefined)).toBeUndefined()
})

it.each([
  null,
  7,
  'done',
  {},
  { name: 'done' },
  { args: {} },
  { name: 7, args: {} },
  { name: 'done', args: null },
  { name: 'done', args: 'none' },
])('what a handler returns instead of an outcome is a failure of the row: %j', (value) => {
  // A handler written without types may return anything.
  expect(returned(value as never)).toMatchObject({
    outcome: { name: 'retry', args: { error: expect.stringContaining('which is no outcome') } },
    failure: expect.any(TypeError),
  })
  expect(returned(value as never, {}, true)).toMatchObject({ outcome: { args: { delay_ms: 0 } } })
})

it('D9: what a handler settled in its own transaction stands if it returns the same outcome, or nothing', () => {
  expect(agrees({ ended: 'returned', outcome: undefined }, done())).toBe(true)
  expect(agrees({ ended: 'returned', outcome: done() }, done({ note: 'paid' }))).toBe(true)
  expect(agrees({ ended: 'returned', outcome: retry() }, done())).toBe(false)
  expect(agrees({ ended: 'threw', error: new Error('late') }, done())).toBe(false)
})

it('of an error its first 4,000 characters are stored, and of anything else what can be shown', () => {
  expect(errorText('x'.repeat(4_000))).toBe('x'.repeat(4_000))
  expect(errorText('x'.repeat(4_001))).toBe(`${'x'.repeat(4_000)}…`)
  expect(errorText({ a: { b: { c: { d: 1 } } } })).toBe('{ a: { b: { c: [Object] } } }')
  const unreadable = Object.defineProperty(new Error('no'), 'message', {
    get() {
      throw new Error('unreadable')
    },
  })
  expect(errorText(unreadable)).toBe('a value of type object that cannot be shown')
})

it('an outcome carries the arguments that it was given, and no others', () => {
  expect(done({ note: 'paid' })).toEqual({ name: 'done', args: { note: 'paid' } })
  expect(retry().args).toEqual({ error: null })
  expect(dead(null).args).toEqual({ error: null })
  expect(Object.keys(retry({ delayMs: Number.NaN }).args)).toEqual(['error'])
  const { outcomes } = leaseTable({ ...TABLE, outcomes: { done: { set: {} } } })
  const given = settleAs('done', { note: 'paid' })
  expect(withAllArgs(given, { outcomes })).toBe(given)
  const noted = leaseTable({
    ...TABLE,
    outcomes: { done: { set: { note: '$note' }, args: { note: 'text' } } },
  })
  expect(withAllArgs(given, noted)).toBe(given)
  expect(withAllArgs(settleAs('unknown'), { outcomes })).toEqual(settleAs('unknown'))
})

it('LIFE-08: a table that counts no attempts has no maximum of them', () => {
  const rules = retryRulesFor(
    { row: {}, attempt: 2 },
    { attempts: undefined, retry: DEFAULT_RETRY },
    Math.random,
  )
  expect(rules).toMatchObject({ attempt: 2, maxAttempts: undefined })
})
