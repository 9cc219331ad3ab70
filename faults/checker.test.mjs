import { describe, expect, it } from 'vitest'
import { check, RULE_NAMES } from './checker.mjs'

/** A run in which w1 published the rows 1 and 2 of key a, which one transaction wrote, and row 3, of another transaction. */
function goodHistory() {
  return [
    { type: 'run', leaseMs: 2_000, reaperMs: 500, marginMs: 5_000 },
    { type: 'begun', tx: 1 },
    { type: 'written', tx: 1, row: '1', eventId: 'e1', key: 'a' },
    { type: 'written', tx: 1, row: '2', eventId: 'e2', key: 'a' },
    { type: 'committed', tx: 1 },
    { type: 'begun', tx: 2 },
    { type: 'written', tx: 2, row: '3', eventId: 'e3', key: 'a' },
    { type: 'committed', tx: 2 },
    { type: 'fired', what: 'something' },
    ...published('1', '1', 'w1'),
    ...published('2', '1', 'w1'),
    ...published('3', '1', 'w1'),
    { type: 'calm', at: 10_000 },
    { type: 'drained', at: 11_000 },
    ...['1', '2', '3'].map((row) => finalRow(row, '1', 'w1')),
  ]
}

const lease = (row, token, worker) => ({ row, token, worker, eventId: `e${row}`, key: 'a' })

function published(row, token, worker) {
  return [
    {
      type: 'change',
      row,
      from: 'PENDING',
      to: 'CLAIMED',
      fromToken: String(token - 1),
      toToken: token,
      session: worker,
    },
    { type: 'attempt', ...lease(row, token, worker) },
    { type: 'accepted', ...lease(row, token, worker) },
    {
      type: 'change',
      row,
      from: 'CLAIMED',
      to: 'PUBLISHED',
      fromToken: token,
      toToken: token,
      session: worker,
      owner: worker,
    },
    { type: 'settled', worker, row, tokens: [token], outcome: 'done' },
  ]
}

const finalRow = (row, token, worker, more = {}) => ({
  type: 'row',
  row,
  eventId: `e${row}`,
  key: 'a',
  status: 'PUBLISHED',
  token,
  publishedBy: worker,
  attempts: 0,
  ...more,
})

const without = (history, fits) => history.filter((line) => !fits(line))
const changed = (history, fits, change) => history.map((line) => (fits(line) ? { ...line, ...change } : line))
const is = (type, row) => (line) => line.type === type && line.row === row

/** Before w1 published row 1, w0 did so under token 1, and did not settle it: it died, or nothing is known of it. */
function withEarlierAttempt(...why) {
  const rest = without(goodHistory(), ({ row }) => row === '1')
  return [
    ...rest.slice(0, 2),
    { type: 'written', tx: 1, row: '1', eventId: 'e1', key: 'a' },
    { type: 'change', row: '1', from: 'PENDING', to: 'CLAIMED', fromToken: '0', toToken: '1', session: 'w0' },
    { type: 'attempt', ...lease('1', '1', 'w0') },
    { type: 'accepted', ...lease('1', '1', 'w0') },
    {
      type: 'change',
      row: '1',
      from: 'CLAIMED',
      to: 'PENDING',
      fromToken: '1',
      toToken: '1',
      session: 'w1',
      owner: 'w0',
      isExpiry: true,
    },
    ...why,
    ...published('1', '2', 'w1'),
    ...rest.slice(2),
    finalRow('1', '2', 'w1'),
  ]
}

/** After everything was published, row 1 is PENDING again and is published once more. */
function replayed(...why) {
  const isReplay = {
    type: 'change',
    row: '1',
    from: 'PUBLISHED',
    to: 'PENDING',
    fromToken: '1',
    toToken: '1',
  }
  const rest = without(goodHistory(), is('row', '1'))
  return [...rest, ...why, isReplay, ...published('1', '2', 'w1'), finalRow('1', '2', 'w1')]
}

describe('the checker has no objection', () => {
  it('to a number that a transaction had which died with the server, and that another one was given', () => {
    const [run, ...rest] = goodHistory()
    const crashed = [
      { type: 'begun', tx: 0 },
      { type: 'written', tx: 0, row: '1', eventId: 'e0', key: 'b' },
      { type: 'rolledBack', tx: 0 },
    ]
    expect(check([run, ...crashed, ...rest]).objections).toEqual([])
    const published = { type: 'attempt', ...lease('1', '1', 'w1'), eventId: 'e0' }
    expect(check([run, ...crashed, published, ...rest]).objections).toContainEqual({
      rule: 'rolled back',
      text: 'row 1 was rolled back and was published',
    })
  })

  it('to a run in which everything was published once, in order', () => {
    expect(check(goodHistory())).toEqual({
      objections: [],
      fired: 1,
      rows: 3,
      duplicates: 0,
      recoveryMs: 1_000,
    })
  })

  it.each([
    ['died', { type: 'ended', worker: 'w0', clean: false }],
    ['was fenced off', { type: 'fencedOff', row: '1', token: '1', worker: 'w0', isUncertain: false }],
    ['lost its lease', { type: 'lost', row: '1', token: '1', worker: 'w0', reason: 'untrusted' }],
    ['got an error', { type: 'failed', row: '1', token: '1', worker: 'w0' }],
  ])('to a duplicate of a worker that %s', (_, why) => {
    expect(check(withEarlierAttempt(why))).toMatchObject({ objections: [], duplicates: 1 })
  })

  it('to a duplicate of a row that was replayed', () => {
    expect(check(replayed({ type: 'replay', rows: ['1'] }))).toMatchObject({ objections: [], duplicates: 1 })
  })

  it('to the other order of two transactions that overlapped', () => {
    const history = goodHistory().map((line) => (line.type === 'begun' ? { ...line, tx: 3 - line.tx } : line))
    const begun = [
      { type: 'begun', tx: 1 },
      { type: 'begun', tx: 2 },
    ]
    const overlapping = [...begun, ...without(history, ({ type }) => type === 'begun')]
    const late = without(overlapping, ({ row, type }) => row === '1' && type !== 'written' && type !== 'row')
    const alone = without([...late, ...published('1', '1', 'w1')], ({ row }) => row === '2')
    expect(check(alone).objections).toEqual([])
  })

  it('to an unknown outcome, whether its rows exist or not', () => {
    const unknown = changed(goodHistory(), ({ type, tx }) => type === 'committed' && tx === 2, {
      type: 'unknown',
    })
    expect(check(unknown).objections).toEqual([])
    const never = without(unknown, ({ row, type }) => row === '3' && type !== 'written')
    expect(check(never).objections).toEqual([])
  })

  it('to a dead row that the sink rejected', () => {
    const dead = without(goodHistory(), ({ row, type }) => row === '3' && type !== 'written')
    const rejected = { type: 'rejected', row: '3', token: '1', worker: 'w1' }
    expect(check([...dead, rejected, finalRow('3', '1', null, { status: 'DEAD' })]).objections).toEqual([])
  })
})

const delivery = { type: 'delivery', id: '7', endpoint: 'good', eventId: 'd1', status: 'delivered' }
const received = { type: 'received', endpoint: 'good', eventId: 'd1' }
const chunk = { type: 'outcome', of: 'chunk 1', state: 'COMPLETED', effects: 1 }

it('the checker counts deliveries and outcomes, and has no objection to a delivery that arrived twice', () => {
  const history = [...goodHistory(), received, received, delivery, chunk]
  expect(check(history)).toMatchObject({ objections: [], rows: 5, duplicates: 1 })
})

/** By rule, histories that break it. Each must be objected to by that rule. */
const BROKEN = {
  fired: { 'a fault that did nothing': without(goodHistory(), ({ type }) => type === 'fired') },
  lost: {
    'a delivery that did not arrive': [...goodHistory(), delivery],
    'a chunk without an effect': [...goodHistory(), { ...chunk, effects: 0 }],
    'a committed row that is not in the table': without(
      goodHistory(),
      ({ row, type }) => row === '3' && type !== 'written',
    ),
    'a published row that the sink never accepted': without(goodHistory(), is('accepted', '2')),
    'a published row that the sink accepted only under another token': changed(
      goodHistory(),
      is('accepted', '2'),
      { token: '0' },
    ),
  },
  'rolled back': {
    'a row that was rolled back and is in the table': changed(
      goodHistory(),
      ({ type, tx }) => type === 'committed' && tx === 2,
      { type: 'rolledBack' },
    ),
    'a row that was rolled back and was published': without(
      changed(goodHistory(), ({ type, tx }) => type === 'committed' && tx === 2, { type: 'rolledBack' }),
      is('row', '3'),
    ),
    'a row that nobody wrote': [...goodHistory(), finalRow('9', '1', 'w1')],
    'an attempt at a row that nobody wrote': [
      ...goodHistory(),
      { type: 'attempt', ...lease('9', '1', 'w1') },
    ],
    'one of two rows of a transaction': without(
      changed(goodHistory(), ({ type, tx }) => type === 'committed' && tx === 1, { type: 'unknown' }),
      ({ row, type }) => row === '2' && type !== 'written',
    ),
  },
  'stale token': {
    'a settlement under an old token': [
      ...withEarlierAttempt(),
      { type: 'settled', worker: 'w0', row: '1', tokens: ['1'], outcome: 'done' },
    ],
    'a write of a worker that does not hold the row': changed(
      goodHistory(),
      (line) => is('change', '2')(line) && line.to === 'PUBLISHED',
      { session: 'w0' },
    ),
    'the current holder fenced off': [
      ...goodHistory(),
      { type: 'fencedOff', row: '1', token: '1', worker: 'w1', isUncertain: false },
    ],
  },
  dead: {
    'a delivery that failed': [...goodHistory(), received, { ...delivery, status: 'failed' }],
    'a chunk that failed': [...goodHistory(), { ...chunk, state: 'FAILED' }],
    'a dead row that never failed by itself': changed(goodHistory(), is('row', '3'), { status: 'DEAD' }),
  },
  tokens: {
    'a token that goes down': [
      ...goodHistory(),
      { type: 'change', row: '1', from: 'PUBLISHED', to: 'PENDING', fromToken: '1', toToken: '0' },
    ],
    'a token that changed unseen': [
      ...goodHistory(),
      { type: 'change', row: '1', from: 'PENDING', to: 'CLAIMED', fromToken: '4', toToken: '5' },
    ],
    'a claim that does not raise it': changed(
      goodHistory(),
      (line) => is('change', '1')(line) && line.to === 'CLAIMED',
      { toToken: '0' },
    ),
    'a token that two workers had': [...goodHistory(), { type: 'attempt', ...lease('1', '1', 'w2') }],
    'a token that the row never reached': [...goodHistory(), { type: 'attempt', ...lease('1', '7', 'w1') }],
  },
  order: {
    'two rows of a transaction': reordered('2', '1'),
    'rows of two transactions, one after the other': reordered('3', '1'),
  },
  terminal: {
    'a pending delivery': [...goodHistory(), { ...delivery, status: 'pending' }],
    'an open chunk': [...goodHistory(), { ...chunk, state: 'EXPIRED' }],
    'a row that is still pending': changed(goodHistory(), is('row', '3'), {
      status: 'PENDING',
      publishedBy: null,
    }),
    'a row that is finished too late': changed(goodHistory(), ({ type }) => type === 'drained', {
      at: 20_000,
    }),
    'a run that never ended': without(goodHistory(), ({ type }) => type === 'drained'),
  },
  duplicates: {
    'a chunk with two effects': [...goodHistory(), { ...chunk, effects: 2 }],
    'a delivery that nobody sent': [...goodHistory(), received],
    'a second attempt without a reason': withEarlierAttempt(),
    'a second attempt after the death of another worker': withEarlierAttempt({
      type: 'ended',
      worker: 'w7',
      clean: false,
    }),
    'a second attempt after a clean end': withEarlierAttempt({ type: 'ended', worker: 'w0', clean: true }),
    'a row that is published again, and that nobody replayed': replayed(),
    'two attempts under one token': [...goodHistory(), { type: 'accepted', ...lease('1', '1', 'w1') }],
  },
  'event id': {
    'a duplicate with another event id': changed(
      withEarlierAttempt({ type: 'ended', worker: 'w0', clean: false }),
      (line) => is('accepted', '1')(line) && line.worker === 'w0',
      { eventId: 'e9' },
    ),
    'another event id in the table': changed(goodHistory(), is('row', '1'), { eventId: 'e9' }),
  },
}

/** Row `first` is published before row `second`. */
function reordered(first, second) {
  const history = goodHistory()
  const of = (row) =>
    history.filter((line) => line.row === row && line.type !== 'written' && line.type !== 'row')
  const rest = without(history, (line) => [...of(first), ...of(second)].includes(line))
  return [...rest, ...of(first), ...of(second)]
}

describe('the checker objects', () => {
  it('by each of its rules', () => {
    expect(Object.keys(BROKEN)).toEqual(RULE_NAMES)
  })

  const cases = Object.entries(BROKEN).flatMap(([rule, histories]) =>
    Object.entries(histories).map(([what, history]) => ({ rule, what, history })),
  )
  it.each(cases)('by the rule "$rule" to $what', ({ rule, history }) => {
    expect(check(history).objections.map((objection) => objection.rule)).toContain(rule)
  })
})
