import { describe, expect, it, onTestFinished } from 'vitest'

import { outboxEvent, outboxEvents, publishContext } from '../../../test/support/brokers/events.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { useReceivers } from '../../../test/support/receiver.ts'
import { retryAfterMs } from '../../webhooks/network/retry-after.ts'
import type { Answer, Publisher } from '../publisher.ts'
import { httpPublisher, type HttpPublisherOptions } from './http.ts'

useQuietProcess()

const startServer = useReceivers()

function publisher(url: string, options: Partial<HttpPublisherOptions> = {}): Publisher {
  const made = httpPublisher({ url, ...options })
  onTestFinished(async () => made.close?.())
  return made
}

function shown(answer: Answer): string {
  if (answer instanceof Error) return answer.message
  return [answer.name, answer.args['error']].join(' ').trim()
}

describe('what the answer means', () => {
  it('LIFE-17: each event has its own outcome, in the order of the batch', async () => {
    const statuses = { a: 200, b: 503, c: 422, d: 204, e: 302, f: 408, g: 429, h: 500, i: 404 }
    const status = new Map(Object.entries(statuses))
    const server = await startServer(({ headers }) => status.get(String(headers['leasehold-event-type'])))
    const events = Object.keys(statuses).map((type) => outboxEvent({ type }))
    const outcomes = await publisher(server.url).publish(events, publishContext())
    expect(outcomes?.map((answer) => shown(answer))).toEqual([
      'done',
      'retry Error: HTTP 503',
      'dead Error: HTTP 422',
      'done',
      'retry Error: HTTP 302, not followed',
      'retry Error: HTTP 408',
      'retry Error: HTTP 429',
      'retry Error: HTTP 500',
      'dead Error: HTTP 404',
    ])
  })

  it('a refusal can be a retry, if one says so', async () => {
    const server = await startServer(() => 422)
    const target = publisher(server.url, { whenRefused: 'retry' })
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([{ name: 'retry' }])
  })

  it('a redirect is never followed', async () => {
    const elsewhere = await startServer()
    const server = await startServer((_request, response) => {
      response.writeHead(307, { location: elsewhere.url }).end()
    })
    await publisher(server.url).publish([outboxEvent()], publishContext())
    expect(elsewhere.received).toEqual([])
  })

  it('LIFE-07: Retry-After decides when, in seconds or as a date, within a day', async () => {
    const server = await startServer((_request, response) => {
      response.writeHead(429, { 'retry-after': '7' }).end()
    })
    expect(await publisher(server.url).publish([outboxEvent()], publishContext())).toMatchObject([
      { name: 'retry', args: { delay_ms: 7_000 } },
    ])
    const now = Date.parse('2026-03-01T12:00:00Z')
    expect(retryAfterMs('Sun, 01 Mar 2026 12:00:30 GMT', now)).toBe(30_000)
    // What is over already must not take the place of the back-off: 25 attempts would be gone within a second.
    for (const past of ['Sun, 01 Mar 2026 11:00:00 GMT', '0', '-5', '1.5', '1e3'])
      expect(retryAfterMs(past, now)).toBeUndefined()
    expect(retryAfterMs('99999999999', now)).toBe(86_400_000)
    expect(retryAfterMs('soon', now)).toBeUndefined()
    expect(retryAfterMs(undefined, now)).toBeUndefined()
  })

  it('an answer that never comes is a retry that says so', async () => {
    const server = await startServer(() => {})
    const target = publisher(server.url, { timeoutMs: 200 })
    expect(await target.publish([outboxEvent()], publishContext())).toMatchObject([
      { name: 'retry', args: { error: expect.stringContaining('no complete answer within 200 ms') } },
    ])
  })

  it('an answer without an end does not hold it up: the status was the answer', async () => {
    const server = await startServer((_request, response) => {
      const more = (): void => {
        if (!response.destroyed) response.write('x'.repeat(32_768), () => setImmediate(more))
      }
      more()
    })
    expect(await publisher(server.url).publish([outboxEvent()], publishContext())).toMatchObject([
      { name: 'done' },
    ])
  })

  it('a connection that breaks over an event is a retry: the event may be why', async () => {
    const server = await startServer((_request, response) => void response.destroy())
    expect(await publisher(server.url).publish([outboxEvent()], publishContext())).toMatchObject([
      { name: 'retry' },
    ])
  })

  it('a signal that fires ends the wait, and nothing is reported as done', async () => {
    const controller = new AbortController()
    const server = await startServer(() => controller.abort(new Error('lease lost')))
    const publishing = publisher(server.url).publish(outboxEvents(3), publishContext(controller.signal))
    await expect(publishing).rejects.toThrow('lease lost')
  })
})
