import { describe, expect, it, vi } from 'vitest'
import { emitOneOfEach } from '../../test/support/sample-events.ts'
import { LeaseholdError } from '../errors.ts'
import { SaturatedError } from '../worker/completion/outcome.ts'
import { Events, reportError } from '../worker/events.ts'
import { createLog, logEvents } from './log.ts'

function capture(format: 'json' | 'pretty') {
  const lines: string[] = []
  return { lines, log: createLog({ level: 'info', format, write: (text) => void lines.push(text) }) }
}

it('in the format json an entry is one line of JSON', () => {
  const { lines, log } = capture('json')
  log.info({ part: 'HTTP' }, 'stopped')
  log.debug('not at this level')
  expect(lines).toHaveLength(1)
  expect(lines[0]).toMatch(/\n$/)
  expect(JSON.parse(lines[0] ?? '')).toEqual({
    level: 'info',
    time: expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
    part: 'HTTP',
    msg: 'stopped',
  })
})

it('in the format pretty an entry is one short line', () => {
  const { lines, log } = capture('pretty')
  log.warn({ part: 'HTTP', attempts: 2, list: [1, 2] }, 'slow')
  expect(lines).toEqual([
    expect.stringMatching(/^\d\d:\d\d:\d\d warn {2}slow \(part=HTTP, attempts=2, list=\[ 1, 2 \]\)\n$/),
  ])
})

it('a LeaseholdError is logged by its message, any other error with its stack', () => {
  const { lines, log } = capture('pretty')
  log.error({ err: new LeaseholdError('DATABASE_CLOSED', 'It is closed.') }, 'failed')
  log.error({ err: new Error('surprise') }, 'failed')
  expect(lines[0]).toMatch(/failed: It is closed\. \(code=DATABASE_CLOSED\)\n$/)
  expect(lines[1]).toMatch(/failed: surprise\n\s+at /)
})

it('in the format pretty the error follows the message, then the fields, with rounded durations', () => {
  const { lines, log } = capture('pretty')
  const events = new Events()
  const off = logEvents(events, log)
  const of = { worker: 'w1', table: 'public.emails' }
  const details = { eventType: 'order.paid' }
  const failed = { ...of, id: '7', token: 1n, attempt: 5, outcome: 'dead', details }
  events.emit('failed', { ...failed, error: new LeaseholdError('EVENT_INVALID', 'no such address') })
  events.emit('reaperRan', { worker: 'w1', reaped: 1, durationMs: 12.345_678_9 })
  off()
  expect(lines.map((line) => line.slice(9))).toEqual([
    'error the handler failed: no such address (eventType=order.paid, worker=w1, table=public.emails, id=7, token=1, attempt=5, outcome=dead, code=EVENT_INVALID)\n',
    'info  the reaper ran (worker=w1, reaped=1, durationMs=12.3)\n',
  ])
})

it.each(['json', 'pretty'] as const)(
  'a target that is unavailable is one line without a stack (%s)',
  (format) => {
    const { lines, log } = capture(format)
    const events = new Events()
    const off = logEvents(events, log)
    const of = { worker: 'w1', table: 'leasehold.outbox', forMs: undefined }
    const refused = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' })
    const saturated = new SaturatedError(1_000, 'The nats publisher cannot connect')
    events.emit('paused', { ...of, reason: 'saturated', error: saturated })
    events.emit('paused', { ...of, reason: 'unhealthy', error: refused })
    log.error({ err: saturated }, 'cannot publish')
    off()
    expect(lines).toHaveLength(3)
    expect(lines[1]).toContain('connect ECONNREFUSED')
    for (const line of lines) expect(line).toMatch(/^[^\n]+\n$/)
    expect(lines.join('')).not.toMatch(/stack|\bat .*log\.test/)
  },
)

it.each(['json', 'pretty'] as const)('no entry contains a secret (%s)', (format) => {
  const { lines, log } = capture(format)
  const url = 'postgresql://user:s3cret@host/db'
  log.info(
    { password: 's3cret', endpoint: { secret: 's3cret', signature: 's3cret' }, url },
    `dialling ${url}`,
  )
  const row = Object.assign(new Error(`refused by ${url}`), {
    detail: 'Key (token)=(s3cret) exists.',
    code: '23505',
  })
  log.error({ err: row }, 'failed')
  expect(lines).toHaveLength(2)
  expect(lines.join('')).not.toContain('s3cret')
  expect(lines.join('')).toContain('user:***@host/db')
})

function follow(level: string) {
  const events = new Events()
  const entries: Record<string, unknown>[] = []
  const write = (line: string): void => void entries.push(JSON.parse(line) as Record<string, unknown>)
  const off = logEvents(events, createLog({ level, format: 'json', write }))
  return { events, entries, off }
}

const row = { worker: 'w1', table: 'public.emails', id: '7', token: 12_345_678_901_234_567_890n }

describe('events in the log', () => {
  it('WH-FR-005-AC1: a renewal failure is logged with row id, worker id, error code and message', () => {
    const { events, entries } = follow('warn')
    const error = Object.assign(new Error('Connection terminated'), { code: 'ECONNRESET' })
    events.emit('renewalFailed', { worker: 'w1', table: 'public.emails', ids: ['7', '8'], error })
    expect(entries).toEqual([
      expect.objectContaining({
        level: 'warn',
        event: 'renewalFailed',
        worker: 'w1',
        table: 'public.emails',
        ids: ['7', '8'],
        err: expect.objectContaining({ code: 'ECONNRESET', message: 'Connection terminated' }),
      }),
    ])
  })

  it.each(['json', 'pretty'] as const)(
    'WH-FR-005-AC1, WH-NFR-005: every row whose renewal failed, and every lost lease, is in the log with the error, also when hundreds fail within a minute (%s)',
    (format) => {
      const { lines, log } = capture(format)
      const events = new Events()
      const off = logEvents(events, log)
      const error = Object.assign(new Error('Connection terminated'), { code: 'ECONNRESET' })
      const idsOf = (first: string): string[] => Array.from({ length: 300 }, (_, i) => `${first}${100 + i}`)
      // One statement for each bucket, and one loss for each row.
      for (const first of ['b', 'c']) {
        const ids = idsOf(first)
        events.emit('renewalFailed', { worker: 'w1', table: 'public.emails', ids, error })
        for (const id of ids) events.emit('lost', { ...row, id, reason: 'heartbeatFailed' })
      }
      for (const id of idsOf('t').concat(idsOf('u'))) events.emit('lost', { ...row, id, reason: 'taken' })
      off()
      const linesOf = (text: RegExp): string[] => lines.filter((line) => text.test(line))
      const unnamed = (some: readonly string[], ids: readonly string[]): string[] =>
        ids.filter((id) => !some.some((line) => line.includes(id)))
      const failures = linesOf(/a renewal failed/)
      expect(unnamed(failures, [...idsOf('b'), ...idsOf('c')])).toEqual([])
      for (const line of failures)
        expect(line).toMatch(/Connection terminated.*ECONNRESET|ECONNRESET.*Connection/)
      const losses = linesOf(/lost a lease.*taken|taken.*lost a lease/)
      expect(unnamed(losses, [...idsOf('t'), ...idsOf('u')])).toEqual([])
      expect(lines.length).toBeLessThan(10)
    },
  )

  it('RULE-020-052: a worker process that died is logged once, as an error, with its id', () => {
    const { events, entries } = follow('info')
    events.emit('workerDied', {
      worker: 'w1',
      died: 'w2',
      host: 'host-2',
      pid: 42,
      lastSeenAt: new Date('2025-01-02T03:04:05Z'),
    })
    expect(entries).toEqual([
      expect.objectContaining({
        level: 'error',
        msg: 'a worker process has died',
        worker: 'w1',
        died: 'w2',
        host: 'host-2',
        pid: 42,
        lastSeenAt: '2025-01-02T03:04:05.000Z',
      }),
    ])
  })

  it('RULE-020-032: every entry has the worker id, and an entry about a row has its id and token', () => {
    const { events, entries } = follow('trace')
    emitOneOfEach(events, { worker: 'host-1.abc' })
    expect(entries.length).toBeGreaterThan(20)
    expect(entries.map(({ worker }) => worker)).toEqual(entries.map(() => 'host-1.abc'))
    events.emit('lost', { ...row, reason: 'tooLong' })
    expect(entries.at(-1)).toMatchObject({ id: '7', token: '12345678901234567890', reason: 'tooLong' })
  })

  it('at info, single rows in the normal course of work are not logged, and no events are built for them', () => {
    const { events, entries } = follow('info')
    for (const type of ['started', 'settled', 'renewed', 'released'] as const) {
      expect(events.wanted(type)).toBe(false)
    }
    events.emit('claimed', { worker: 'w1', table: 'public.emails', count: 1, full: false, durationMs: 1 })
    events.emit('reaperRan', { worker: 'w1', reaped: 0, durationMs: 1 })
    expect(entries).toEqual([])
  })

  it('an event that an operator may have to act upon is a warning or an error', () => {
    const { events, entries } = follow('warn')
    emitOneOfEach(events)
    expect(entries.map(({ level, event }) => `${String(level)} ${String(event)}`)).toEqual([
      'warn failed',
      'warn renewalFailed',
      'warn lost',
      'warn aborted',
      'warn fencedOff',
      'warn paused',
      'warn reaped',
      'error dataError',
      'error reaperFailed',
      'error reaperMissing',
      'warn waitingForWorkerId',
      'error workerDied',
      'warn workerReturned',
      'error settingsRefused',
      'warn tableSlow',
      'warn databaseLost',
      'warn databaseBack',
      'warn notListening',
      'error trouble',
    ])
    events.emit('failed', { ...row, attempt: 5, outcome: 'dead', error: new Error('bad address') })
    events.emit('workerStopped', { worker: 'w1', clean: false })
    expect(entries.slice(-2)).toMatchObject([
      { level: 'error', event: 'failed', attempt: 5, outcome: 'dead' },
      { level: 'warn', event: 'workerStopped' },
    ])
  })

  it('a dead row is an error, whoever made it dead, and rows that maintenance gave up are a warning', () => {
    const { events, entries } = follow('warn')
    const of = { worker: 'w1', table: 'public.emails' }
    events.emit('failed', { ...row, attempt: 5, outcome: 'exhausted', error: new Error('given up') })
    events.emit('reaped', { ...row, owner: 'w2', staleMs: 1, evicted: false, outcome: 'dead' })
    events.emit('maintenanceRan', { ...of, done: { overdue: 3 }, dead: 3, durationMs: 1 })
    expect(entries).toMatchObject([
      { level: 'error', event: 'failed' },
      { level: 'error', event: 'reaped', outcome: 'dead' },
      { level: 'warn', event: 'maintenanceRan', dead: 3, done: { overdue: 3 } },
    ])
  })

  it('WH-NFR-003: no entry contains the values of a row that a database error quotes', () => {
    const { events, entries } = follow('trace')
    const error = Object.assign(new Error('duplicate key'), {
      code: '23505',
      detail: 'Key (token)=(s3cret) exists.',
    })
    emitOneOfEach(events, { error })
    expect(JSON.stringify(entries)).toContain('duplicate key')
    expect(JSON.stringify(entries)).not.toContain('s3cret')
  })

  it('during an outage each kind of event is logged once a minute with a count, and so are its start, its end and its duration', () => {
    vi.useFakeTimers()
    try {
      const { events, entries } = follow('warn')
      const of = { worker: 'w1', table: 'public.emails' }
      const error = new LeaseholdError('DATABASE_UNAVAILABLE', 'It is away.')
      for (let second = 0; second < 90; second += 1) {
        events.emit('databaseLost', { worker: 'w1', what: 'claiming', error })
        reportError(events, 'w1', 'reading the settings', error)
        events.emit('reaperFailed', { ...of, error })
        for (const id of ['7', '8'])
          events.emit('fencedOff', { ...row, id, outcome: 'done', isUncertain: false })
        vi.advanceTimersByTime(1_000)
      }
      // Each of two workers says so.
      for (let i = 0; i < 2; i += 1) events.emit('databaseBack', { worker: 'w1' })
      vi.advanceTimersByTime(600_000)
      expect(entries).toMatchObject([
        { level: 'warn', event: 'databaseLost', what: 'claiming' },
        { level: 'error', event: 'reaperFailed' },
        { level: 'warn', event: 'fencedOff', id: '7' },
        { event: 'databaseLost', what: 'reading the settings', since: expect.any(String), repeated: 119 },
        { event: 'reaperFailed', repeated: 59 },
        { event: 'fencedOff', id: '8', repeated: 119 },
        { level: 'warn', event: 'databaseBack', afterMs: 90_000 },
        { event: 'reaperFailed', repeated: 30 },
        { event: 'fencedOff', repeated: 60 },
      ])
      expect(entries[0]).not.toHaveProperty('repeated')
    } finally {
      vi.useRealTimers()
    }
  })

  it('a count of pauses, or of their ends, is never logged once that is no longer so', () => {
    vi.useFakeTimers()
    try {
      const { events, entries } = follow('info')
      const of = { worker: 'w1', table: 'public.emails', reason: 'saturated' } as const
      const later = (): unknown => vi.advanceTimersByTime(600_000)
      const flap = (): void => {
        events.emit('paused', { ...of, forMs: 1_000 })
        events.emit('resumed', of)
      }
      for (let i = 0; i < 3; i += 1) flap()
      events.emit('paused', { ...of, reason: 'operator', forMs: undefined })
      later()
      expect(entries.map(({ event, reason, repeated }) => [event, reason, repeated])).toEqual([
        ['paused', 'saturated', undefined],
        ['resumed', 'saturated', undefined],
        ['paused', 'operator', undefined],
      ])
      entries.length = 0
      events.emit('resumed', { ...of, reason: 'operator' })
      for (let i = 0; i < 3; i += 1) flap()
      later()
      expect(entries.map(({ event, reason, repeated }) => [event, reason, repeated])).toEqual([
        ['resumed', 'operator', undefined],
        ['paused', 'saturated', undefined],
        ['resumed', 'saturated', undefined],
        ['resumed', 'saturated', 2],
      ])
    } finally {
      vi.useRealTimers()
    }
  })

  it('what was counted and not logged yet is logged at the end of the listening', () => {
    const { events, entries, off } = follow('warn')
    for (let i = 0; i < 5; i += 1) events.emit('lost', { ...row, reason: 'untrusted' })
    events.emit('lost', { ...row, reason: 'tooLong' })
    off()
    expect(entries).toMatchObject([
      { reason: 'untrusted' },
      { reason: 'tooLong' },
      { reason: 'untrusted', repeated: 4 },
    ])
  })

  it('dead rows are logged each; of a target that is down there is one line, and a count', () => {
    const { events, entries, off } = follow('warn')
    const error = new Error('connect ECONNREFUSED')
    for (const id of ['1', '2', '3']) {
      events.emit('failed', { ...row, id, attempt: 1, outcome: 'retry', error })
      events.emit('failed', { ...row, id, attempt: 5, outcome: 'dead', error })
      events.emit('paused', { worker: 'w1', table: row.table, reason: 'saturated', forMs: 1_000, error })
    }
    off()
    expect(entries.map(({ event, outcome, id, repeated }) => [event, outcome, id, repeated])).toEqual([
      ['failed', 'retry', '1', undefined],
      ['failed', 'dead', '1', undefined],
      ['paused', undefined, undefined, undefined],
      ['failed', 'dead', '2', undefined],
      ['failed', 'dead', '3', undefined],
      ['failed', 'retry', '3', 2],
      ['paused', undefined, undefined, 2],
    ])
  })

  it('after the end of the listening nothing is logged', () => {
    const { events, entries, off } = follow('trace')
    off()
    emitOneOfEach(events)
    expect(entries).toEqual([])
  })
})
