import { describe, expect, it } from 'vitest'
import { UsageError } from './command.ts'
import {
  beforeFlag,
  collect,
  headersOf,
  isSet,
  jsonArgument,
  limitFlag,
  momentFlag,
  pastFlag,
  positiveFlag,
  principalOf,
  reasonOf,
  textFlag,
  textsFlag,
} from './flags.ts'

const now = new Date('2026-03-01T12:00:00Z')

describe('a flag that is not given', () => {
  it('a flag that is not given has no value', () => {
    expect(textFlag({}, 'key')).toBeUndefined()
    expect(textsFlag({}, 'header')).toEqual([])
    expect(isSet({}, 'json')).toBe(false)
    expect(limitFlag({})).toBeUndefined()
    expect(positiveFlag({}, 'rate', 'give a number.')).toBeUndefined()
    expect(momentFlag({}, 'availableAt')).toBeUndefined()
    expect(pastFlag({}, 'since', now)).toBeUndefined()
  })
})

describe('a time', () => {
  it.each([
    ['90s', '2026-03-01T11:58:30.000Z'],
    ['15m', '2026-03-01T11:45:00.000Z'],
    ['2h', '2026-03-01T10:00:00.000Z'],
    ['7d', '2026-02-22T12:00:00.000Z'],
    ['2026-02-28T10:00:00Z', '2026-02-28T10:00:00.000Z'],
    ['2026-02-28 10:00:00+02:00', '2026-02-28T08:00:00.000Z'],
  ])('%s in the past is %s', (value, expected) => {
    expect(pastFlag({ since: value }, 'since', now)?.toISOString()).toBe(expected)
  })

  it('without an offset is local, also when it is a date alone', () => {
    expect(momentFlag({ at: '2026-02-28' }, 'at')).toEqual(new Date(2026, 1, 28))
    expect(momentFlag({ at: '2026-02-28 10:30' }, 'at')).toEqual(new Date(2026, 1, 28, 10, 30))
  })
})

it.each([
  [() => textFlag({ orderingKey: ' ' }, 'orderingKey'), '--ordering-key is " ": give it a value'],
  [() => limitFlag({ limit: '0' }), '--limit is "0": give a whole number from 1 to 1000.'],
  [() => limitFlag({ limit: '1001' }), '--limit is "1001": give a whole number from 1 to 1000.'],
  [() => positiveFlag({ rate: '-1' }, 'rate', 'give a number.'), '--rate is "-1": give a number.'],
  [
    () => momentFlag({ availableAt: 'soon' }, 'availableAt'),
    '--available-at is "soon": give a moment such as',
  ],
  [() => pastFlag({ since: '99999d' }, 'since', now), '--since is "99999d": give a moment such as'],
  [() => pastFlag({ since: `${'9'.repeat(400)}d` }, 'since', now), 'd": give a moment such as'],
  [
    () => textFlag({ type: 'a\0b' }, 'type'),
    String.raw`--type is "a\u0000b": give a text without the character \u0000, which PostgreSQL cannot store.`,
  ],
  [() => textFlag({ type: 'a\ud800' }, 'type'), 'give a text without half a surrogate pair'],
  [() => pastFlag({ since: '7w' }, 'since', now), '--since is "7w": give a moment such as'],
  [() => beforeFlag({ before: 'x' }, 'the id of an event'), '--before is "x": give the id of an event.'],
  [() => headersOf(['a=b', '=x']), '--header number 2 is not understood: give it as name=value.'],
  [() => jsonArgument('{'), 'the payload is not JSON: {'],
  [() => reasonOf({}), '--reason is missing: '],
])(
  'case %#: an invalid value is a usage error that names the flag, the value and the rule',
  (read, message) => {
    expect(read).toThrow(UsageError)
    expect(read).toThrow(message)
  },
)

it('the error about a header does not repeat it, because it may be a credential', () => {
  expect(() => headersOf(['Authorization: Bearer t0ken'])).toThrow('--header number 1')
  expect(() => headersOf(['Authorization: Bearer t0ken'])).not.toThrow('t0ken')
})

it('a flag that can be repeated collects its values, and headers keep everything after the first =', () => {
  const given = collect('b = 2=3', collect('a=1', undefined))
  expect(headersOf(textsFlag({ header: given }, 'header'))).toEqual({ a: '1', b: ' 2=3' })
})

it('the principal is the given name or the account, and an account without a name must give one', () => {
  const terminal = {
    environment: {},
    workingDirectory: '/',
    isTerminal: false,
    hasTerminal: false,
    out: () => {},
    err: () => {},
    width: undefined,
    input: async () => Promise.resolve(''),
    ask: undefined,
    account: () => 'ada',
  }
  expect(principalOf({ flags: { principal: 'grace' }, terminal })).toBe('grace')
  expect(principalOf({ flags: {}, terminal })).toBe('ada')
  const account = (): string => {
    throw new Error('no such user')
  }
  expect(() => principalOf({ flags: {}, terminal: { ...terminal, account } })).toThrow(
    '--principal is missing',
  )
})
