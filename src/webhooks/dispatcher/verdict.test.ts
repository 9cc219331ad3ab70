import { describe, expect, it } from 'vitest'
import type { Reply } from '../network/index.ts'
import { type Attempt, judge } from './verdict.ts'

const first: Attempt = {
  attempt: 1,
  schedule: [1_000],
  random: () => 0.5,
  now: Date.parse('2026-03-01T12:00:00Z'),
}

function answered(status: number, retryAfter?: string): Reply {
  const more = retryAfter === undefined ? {} : { retryAfter }
  return { kind: 'answered', status, excerpt: 'so', truncated: false, durationMs: 12.4, ...more }
}

describe('an answer', () => {
  it.each([200, 201, 204, 299])('%i is a success', (status) => {
    const { outcome, endpoint } = judge(answered(status), first)
    expect([outcome.outcome, endpoint]).toEqual(['done', 'well'])
    expect(outcome.args).toEqual({ duration_ms: 12, status, code: null, error: null, response: 'so' })
  })

  it.each([301, 302, 307, 308])('%i is a failure, and not followed', (status) => {
    const { outcome, endpoint } = judge(answered(status), first)
    expect([outcome.outcome, endpoint]).toEqual(['retry', 'failing'])
    expect(outcome.args['error']).toBe(`answered with HTTP ${status}; redirects are not followed`)
  })

  it.each([401, 403, 404, 408, 429, 500, 502, 503])(
    '%i is tried again, and a sign that the endpoint fails',
    (status) => {
      const { outcome, endpoint } = judge(answered(status), first)
      expect([outcome.outcome, outcome.args['delay_ms'], endpoint]).toEqual(['retry', 1_000, 'failing'])
    },
  )

  it.each([400, 409, 413, 415, 422])('%i is tried again, and speaks of the payload only', (status) => {
    const { outcome, endpoint } = judge(answered(status), first)
    expect([outcome.outcome, endpoint]).toEqual(['retry', 'well'])
  })

  it('410 is the end of the delivery and of the endpoint', () => {
    const { outcome, endpoint } = judge(answered(410), first)
    expect([outcome.outcome, endpoint]).toEqual(['dead', 'gone'])
  })

  it('after the last attempt the delivery has failed', () => {
    expect(judge(answered(500), { ...first, attempt: 2 }).outcome.outcome).toBe('dead')
  })

  it.each([
    [429, '120', 120_000],
    [503, 'Sun, 01 Mar 2026 12:02:00 GMT', 120_000],
    [429, '86400', 3_600_000],
    [429, '999999999999', 3_600_000],
  ])('%i with Retry-After %s asks for a rest of %i ms', (status, retryAfter, restMs) => {
    const judged = judge(answered(status, retryAfter), first)
    expect([judged.restMs, judged.outcome.args['delay_ms']]).toEqual([restMs, restMs])
  })

  it.each(['0', '-5', 'soon', ''])('Retry-After %j asks for nothing: the schedule decides', (retryAfter) => {
    const judged = judge(answered(503, retryAfter), first)
    expect([judged.restMs, judged.outcome.args['delay_ms']]).toEqual([undefined, 1_000])
  })

  it('a rest that is shorter than the wait of the schedule does not shorten it', () => {
    const judged = judge(answered(503, '1'), { ...first, schedule: [60_000] })
    expect([judged.restMs, judged.outcome.args['delay_ms']]).toEqual([1_000, 60_000])
  })

  it('Retry-After with another status asks for nothing', () => {
    expect(judge(answered(500, '120'), first).restMs).toBeUndefined()
  })
})

it('no answer is tried again, with the reason as a word and as a sentence', () => {
  const reply: Reply = { kind: 'failed', code: 'timeout', message: 'no answer within 5 ms', durationMs: 5 }
  const { outcome, endpoint } = judge(reply, first)
  expect([outcome.outcome, endpoint]).toEqual(['retry', 'failing'])
  expect(outcome.args).toMatchObject({
    status: null,
    code: 'timeout',
    error: 'no answer within 5 ms',
    response: null,
  })
})
