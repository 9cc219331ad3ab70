import { PassThrough, Writable } from 'node:stream'

import { expect, it } from 'vitest'

import { outboxEvent, outboxEvents, publishContext } from '../../../test/support/brokers/events.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { done, SaturatedError } from '../../worker/completion/outcome.ts'
import { stdoutPublisher } from './stdout.ts'

useQuietProcess()

function collected(): { stream: Writable; lines: () => unknown[] } {
  const stream = new PassThrough()
  return {
    stream,
    lines: () =>
      String(stream.read() ?? '')
        .split('\n')
        .filter((line) => line !== '')
        .map((line): unknown => JSON.parse(line)),
  }
}

it('LIFE-05: each event is a line of JSON, and done once it was written', async () => {
  const { stream, lines } = collected()
  const event = outboxEvent()
  expect(await stdoutPublisher({ stream }).publish([event, outboxEvent()], publishContext())).toEqual([
    done(),
    done(),
  ])
  const written = lines()
  expect(written).toHaveLength(2)
  expect(written[0]).toEqual({
    id: event.id,
    eventId: event.eventId,
    type: 'order.paid',
    orderingKey: 'customer-7',
    createdAt: '2026-03-01T12:00:00.250Z',
    headers: expect.objectContaining({ 'leasehold-token': '9007199254740993' }),
    payload: event.payload,
  })
})

it('RULE-020-042: the publisher waits for a slow reader, and no event is done before the reader has taken its line', async () => {
  let take = () => {}
  const slow = new Writable({
    highWaterMark: 1,
    write(_chunk, _encoding, callback) {
      take = () => callback()
    },
  })
  let published = false
  const publish = async (): Promise<void> => {
    await stdoutPublisher({ stream: slow }).publish(outboxEvents(10), publishContext())
    published = true
  }
  const publishing = publish()
  await new Promise((resolve) => setImmediate(resolve))
  expect(published).toBe(false)
  take()
  await publishing
  expect(published).toBe(true)
})

it('LIFE-18: a reader that closes its end releases the events, and does not end the process', async () => {
  const broken = new Writable({ write: (_chunk, _encoding, callback) => callback(new Error('EPIPE')) })
  const target = stdoutPublisher({ stream: broken })
  await expect(target.publish([outboxEvent()], publishContext())).rejects.toThrow('EPIPE')
  await expect(target.publish([outboxEvent()], publishContext())).rejects.toBeInstanceOf(SaturatedError)
  await expect(target.probe?.(new AbortController().signal)).rejects.toThrow('ended')
})

it('a signal that fires ends the wait', async () => {
  const stuck = new Writable({ write: () => {} })
  const controller = new AbortController()
  const publishing = stdoutPublisher({ stream: stuck }).publish(
    [outboxEvent()],
    publishContext(controller.signal),
  )
  controller.abort(new Error('lease lost'))
  await expect(publishing).rejects.toThrow('lease lost')
})

it('a line is a structured CloudEvent, or has its attributes as headers', async () => {
  const { stream, lines } = collected()
  const event = outboxEvent()
  const source = '/orders'
  await stdoutPublisher({ stream, envelope: { cloudevents: 'structured', source } }).publish(
    [event],
    publishContext(),
  )
  await stdoutPublisher({ stream, envelope: { cloudevents: 'binary', source } }).publish(
    [event],
    publishContext(),
  )
  expect(lines()).toMatchObject([
    { specversion: '1.0', id: event.eventId, source, type: 'order.paid', data: event.payload },
    { headers: { 'ce-id': event.eventId, 'content-type': 'application/json' }, data: event.payload },
  ])
})

it('close() leaves the stream open, and its listeners as they were', async () => {
  const { stream } = collected()
  const before = stream.listenerCount('error')
  await stdoutPublisher({ stream }).close?.()
  expect(stream.writableEnded).toBe(false)
  expect(stream.listenerCount('error')).toBe(before)
})
