import { describe, expect, it } from 'vitest'
import type { Reply } from '../network/post.ts'
import { type Attempt, judgeResponse } from './judge-response.ts'

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

describe('responses', () => {
  it.each([200, 201, 204, 299])('a response with %i is a success', (status) => {
    const { outcome, endpoint } = judgeResponse(answered(status), first)
    expect([outcome.name, endpoint]).toEqual(['done', 'healthy'])
    expect(outcome.args).toEqual({ duration_ms: 12, status, code: null, error: null, response: 'so' })
  })

  it.each([301, 302, 307, 308])('a response with %i is a failure and is not followed', (status) => {
    const { outcome, endpoint } = judgeResponse(answered(status), first)
    expect([outcome.name, endpoint]).toEqual(['retry', 'failing'])
    expect(outcome.args['error']).toBe(`answered with HTTP ${status}; redirects are not followed`)
  })

  it.each([401, 403, 404, 408, 429, 500, 502, 503])(
    'after a response with %i the delivery is retried, and the endpoint counts as failing',
    (status) => {
      const { outcome, endpoint } = judgeResponse(answered(status), first)
      expect([outcome.name, outcome.args['delay_ms'], endpoint]).toEqual(['retry', 1_000, 'failing'])
    },
  )

  it.each([400, 409, 413, 415, 422])(
    'after a response with %i the delivery is retried, and the endpoint counts as healthy',
    (status) => {
      const { outcome, endpoint } = judgeResponse(answered(status), first)
      expect([outcome.name, endpoint]).toEqual(['retry', 'healthy'])
    },
  )

  it('after a response with 410 the delivery is dead and the endpoint is disabled', () => {
    const { outcome, endpoint } = judgeResponse(answered(410), first)
    expect([outcome.name, endpoint]).toEqual(['dead', 'disable'])
  })

  it('a failure of the last attempt makes the delivery dead', () => {
    expect(judgeResponse(answered(500), { ...first, attempt: 2 }).outcome.name).toBe('dead')
  })

  it.each([
    [429, '120', 120_000],
    [503, 'Sun, 01 Mar 2026 12:02:00 GMT', 120_000],
    [429, '86400', 3_600_000],
    [429, '999999999999', 3_600_000],
  ])('a response with %i and Retry-After %s pauses the endpoint for %i ms', (status, retryAfter, pauseMs) => {
    const judgement = judgeResponse(answered(status, retryAfter), first)
    expect([judgement.pauseMs, judgement.outcome.args['delay_ms']]).toEqual([pauseMs, pauseMs])
  })

  it.each(['0', '-5', 'soon', ''])(
    'the invalid Retry-After %j is ignored, and the schedule applies',
    (retryAfter) => {
      const judgement = judgeResponse(answered(503, retryAfter), first)
      expect([judgement.pauseMs, judgement.outcome.args['delay_ms']]).toEqual([undefined, 1_000])
    },
  )

  it('a Retry-After that is shorter than the delay of the schedule does not shorten it', () => {
    const judgement = judgeResponse(answered(503, '1'), { ...first, schedule: [60_000] })
    expect([judgement.pauseMs, judgement.outcome.args['delay_ms']]).toEqual([1_000, 60_000])
  })

  it('Retry-After is ignored for other statuses', () => {
    expect(judgeResponse(answered(500, '120'), first).pauseMs).toBeUndefined()
  })
})

it('without a response the delivery is retried, and the code and message of the failure are recorded', () => {
  const reply: Reply = { kind: 'failed', code: 'timeout', message: 'no answer within 5 ms', durationMs: 5 }
  const { outcome, endpoint } = judgeResponse(reply, first)
  expect([outcome.name, endpoint]).toEqual(['retry', 'failing'])
  expect(outcome.args).toMatchObject({
    status: null,
    code: 'timeout',
    error: 'no answer within 5 ms',
    response: null,
  })
})
