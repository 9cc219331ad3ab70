import { describe, expect, it } from 'vitest'

import { outboxEvents } from '../../../test/support/brokers/events.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import type { OutboxEvent } from '../event.ts'
import { PermanentError, SaturatedError } from '../../worker/completion/outcome.ts'
import { publishEach, type Sending, unavailable } from './publishing.ts'

useQuietProcess()

function sending(send: Sending['send'], given: Partial<Sending> = {}): Sending {
  return {
    signal: new AbortController().signal,
    timeoutMs: 60_000,
    send,
    unansweredError: async () => unavailable('test', 'had no answer'),
    ...given,
  }
}

const never = async (): Promise<void> => new Promise(() => {})

/** What to do with the event of this number. */
function byNumber(...each: (() => Promise<void>)[]): (event: OutboxEvent) => Promise<void> {
  return async ({ id }) => each[Number(id)]?.()
}

async function ok(): Promise<void> {}

describe('publishEach', () => {
  it('LIFE-17: returns an outcome for each event in the order of the batch, whatever the order of the answers', async () => {
    let release = () => {}
    const first = new Promise<void>((resolve) => (release = resolve))
    const send = byNumber(
      async () => first,
      async () => {
        throw new Error('not today')
      },
      async () => {
        release()
        throw new PermanentError('never')
      },
    )
    expect(await publishEach(outboxEvents(3), sending(send))).toMatchObject([
      { name: 'done' },
      { name: 'retry' },
      { name: 'dead' },
    ])
  })

  it('only unanswered events of an interrupted batch are released; if none was answered, publishEach throws one error', async () => {
    const away = async (): Promise<void> => {
      throw unavailable('test', 'lost its connection')
    }
    const partly = await publishEach(outboxEvents(3), sending(byNumber(ok, away, ok)))
    expect(partly).toMatchObject([
      { name: 'done' },
      { name: 'SaturatedError', message: 'The test publisher lost its connection' },
      { name: 'done' },
    ])
    const first = await publishEach(outboxEvents(2), sending(byNumber(away, ok)))
    expect(first).toMatchObject([{ name: 'SaturatedError' }, { name: 'done' }])
    const wholly = publishEach(outboxEvents(2), sending(byNumber(away, away)))
    await expect(wholly).rejects.toBeInstanceOf(SaturatedError)
  })

  it('an event that was not answered in time gets the error for that, and an answered one keeps its outcome', async () => {
    const events = outboxEvents(2)
    const given = { timeoutMs: 20, unansweredError: async () => new Error('too slow') }
    expect(await publishEach(events, sending(byNumber(never, ok), given))).toMatchObject([
      { name: 'retry', args: { error: 'Error: too slow' } },
      { name: 'done' },
    ])
  })

  it('an acknowledgement that arrives after the timeout still counts, and a late failure does not', async () => {
    let acknowledge = () => {}
    let fail = (_error: Error) => {}
    const send = byNumber(
      async () => new Promise<void>((resolve) => (acknowledge = resolve)),
      async () => new Promise<void>((_resolve, reject) => (fail = reject)),
    )
    const unansweredError = async (): Promise<Error> => {
      acknowledge()
      fail(new Error('gave up'))
      await new Promise((resolve) => setImmediate(resolve))
      return unavailable('test', 'had no answer')
    }
    const answers = await publishEach(outboxEvents(2), sending(send, { timeoutMs: 20, unansweredError }))
    expect(answers).toMatchObject([{ name: 'done' }, { name: 'SaturatedError' }])
  })

  it('a signal that fires, or has fired, ends the wait with its reason', async () => {
    const controller = new AbortController()
    const given = { signal: controller.signal }
    const publishing = publishEach(outboxEvents(2), sending(byNumber(ok, never), given))
    controller.abort(new Error('lease lost'))
    await expect(publishing).rejects.toThrow('lease lost')
    await expect(publishEach(outboxEvents(1), sending(ok, given))).rejects.toThrow('lease lost')
  })
})
