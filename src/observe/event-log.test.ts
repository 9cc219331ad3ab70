import { expect, it } from 'vitest'
import { emitOneOfEach } from '../../test/support/specimen-events.ts'
import { Events } from '../worker/events.ts'
import { logEvents } from './event-log.ts'
import { createLog } from './log.ts'

function follow(level: string) {
  const events = new Events()
  const entries: Record<string, unknown>[] = []
  const write = (line: string): void => void entries.push(JSON.parse(line) as Record<string, unknown>)
  const off = logEvents(events, createLog({ level, format: 'json', write }))
  return { events, entries, off }
}

const row = { worker: 'w1', table: 'public.emails', id: '7', token: 12_345_678_901_234_567_890n }

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

it('RULE-020-052: a worker that died is logged as an error, once, with its id', () => {
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
      msg: 'a worker has died',
      worker: 'w1',
      died: 'w2',
      host: 'host-2',
      pid: 42,
      lastSeenAt: '2025-01-02T03:04:05.000Z',
    }),
  ])
})

it('RULE-020-032: every entry has the id of the worker, and what concerns a row its id and token', () => {
  const { events, entries } = follow('trace')
  emitOneOfEach(events, { worker: 'host-1.abc' })
  expect(entries.length).toBeGreaterThan(20)
  expect(entries.map(({ worker }) => worker)).toEqual(entries.map(() => 'host-1.abc'))
  events.emit('lost', { ...row, reason: 'tooLong' })
  expect(entries.at(-1)).toMatchObject({ id: '7', token: '12345678901234567890', reason: 'tooLong' })
})

it('at info, single rows in the normal course of work are not in the log, and nobody builds events for them', () => {
  const { events, entries } = follow('info')
  for (const type of ['started', 'settled', 'renewed', 'released'] as const) {
    expect(events.wanted(type)).toBe(false)
  }
  events.emit('claimed', { worker: 'w1', table: 'public.emails', count: 1, full: false, durationMs: 1 })
  events.emit('reaperRan', { worker: 'w1', recovered: 0, durationMs: 1 })
  expect(entries).toEqual([])
})

it('what an operator may have to act upon is a warning or an error', () => {
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
    'error workerDied',
    'warn workerReturned',
    'error settingsRefused',
    'warn databaseLost',
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

it('WH-NFR-003: the values of a row, which a database error quotes, are in no entry', () => {
  const { events, entries } = follow('trace')
  const error = Object.assign(new Error('duplicate key'), {
    code: '23505',
    detail: 'Key (token)=(s3cret) exists.',
  })
  emitOneOfEach(events, { error })
  expect(JSON.stringify(entries)).toContain('duplicate key')
  expect(JSON.stringify(entries)).not.toContain('s3cret')
})

it('ended, it logs nothing more', () => {
  const { events, entries, off } = follow('trace')
  off()
  emitOneOfEach(events)
  expect(entries).toEqual([])
})
