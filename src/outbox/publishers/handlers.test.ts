import { describe, expect, expectTypeOf, it } from 'vitest'

import { outboxEvent, outboxEvents, publishContext } from '../../../test/support/brokers/events.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import type { OutboxEvent } from '../event.ts'
import type { PublishContext } from '../publisher.ts'
import {
  dead,
  done,
  type Outcome,
  PermanentError,
  retry,
  SaturatedError,
  settleAs,
} from '../../worker/completion/outcome.ts'
import { handlers } from './handlers.ts'

useQuietProcess()

interface Events {
  'order.paid': { readonly id: string }
  'order.sent': { readonly at: number }
}

describe('handlers', () => {
  it('LIFE-05: get the events of their type, and returning nothing means done', async () => {
    const paid: string[] = []
    const target = handlers<Events>({
      'order.paid': async (event, context) => {
        expectTypeOf(event).toEqualTypeOf<OutboxEvent<'order.paid', { readonly id: string }>>()
        expectTypeOf(context).toEqualTypeOf<PublishContext>()
        paid.push(event.payload.id)
      },
      'order.sent': (event) => void expectTypeOf(event.payload).toEqualTypeOf<{ readonly at: number }>(),
    })
    const events = [
      outboxEvent({ payload: { id: 'a' } }),
      outboxEvent({ type: 'order.sent' }),
      outboxEvent({ payload: { id: 'b' } }),
    ]
    const allDone = events.map(() => ({ name: 'done', args: {} }))
    expect(await target.publish(events, publishContext())).toEqual(allDone)
    expect(paid).toEqual(['a', 'b'])
    expect(await target.publish(events.slice(0, 1), publishContext())).toBeUndefined()
    expect(paid).toEqual(['a', 'b', 'a'])
  })

  it('a type or a payload that does not exist does not compile', () => {
    // @ts-expect-error -- there is no such event
    expect(handlers<Events>({ 'order.lost': async () => {} }).name).toBe('handlers')
    const wrong = async ({ payload }: { payload: { amount: number } }): Promise<void> => void payload.amount
    // @ts-expect-error -- the payload is another
    expect(handlers<Events>({ 'order.paid': wrong }).name).toBe('handlers')
  })

  it('LIFE-17: each event has its own outcome, whatever becomes of the others', async () => {
    const results: Record<string, () => Promise<Outcome | void> | Outcome | void> = {
      a: async () => {},
      b: async () => {
        throw new Error('not today')
      },
      c: () => {
        throw new PermanentError('never')
      },
      d: () => retry({ delayMs: 5, error: 'later' }),
      e: async () => dead('no'),
      f: () => {},
      g: async () => done(),
      h: async () => settleAs('elsewhere'),
    }
    const events = Object.keys(results).map((type) => outboxEvent({ type }))
    expect(await handlers(results).publish(events, publishContext())).toEqual([
      { name: 'done', args: {} },
      new Error('not today'),
      new PermanentError('never'),
      { name: 'retry', args: { delay_ms: 5, error: 'later' } },
      { name: 'dead', args: { error: 'no' } },
      { name: 'done', args: {} },
      { name: 'done', args: {} },
      { name: 'elsewhere', args: {} },
    ])
  })

  it('LIFE-17: alone, an event has the same outcome: what its handler returns, or throws', async () => {
    const target = handlers({
      a: () => {
        throw new PermanentError('never')
      },
      b: async () => retry({ error: 'later' }),
    })
    await expect(target.publish([outboxEvent({ type: 'a' })], publishContext())).rejects.toThrow(
      PermanentError,
    )
    expect(await target.publish([outboxEvent({ type: 'b' })], publishContext())).toEqual([
      { name: 'retry', args: { error: 'later' } },
    ])
  })

  it('RULE-020-042: a saturated handler releases its own event, and the others keep their outcomes', async () => {
    const target = handlers({
      a: async () => {},
      b: async () => {
        throw new SaturatedError(250)
      },
    })
    const alone = target.publish([outboxEvent({ type: 'b' })], publishContext())
    await expect(alone).rejects.toMatchObject({ name: 'SaturatedError', forMs: 250 })
    const both = await target.publish(
      [outboxEvent({ type: 'a' }), outboxEvent({ type: 'b' })],
      publishContext(),
    )
    expect(both).toMatchObject([{ name: 'done' }, { name: 'SaturatedError', forMs: 250 }])
  })

  it('run at the same time', async () => {
    let running = 0
    let open = () => {}
    const all = new Promise<void>((resolve) => (open = resolve))
    const target = handlers({
      'order.paid': async () => {
        running += 1
        if (running === 5) open()
        await all
      },
    })
    expect(await target.publish(outboxEvents(5), publishContext())).toHaveLength(5)
  })

  it('a result that is no outcome is a retry with an error that says so', async () => {
    // As a handler written without types may.
    const target = handlers({ a: async () => 42 as never, b: () => null as never })
    const events = [outboxEvent({ type: 'a' }), outboxEvent({ type: 'b' })]
    expect(await target.publish(events, publishContext())).toMatchObject([
      {
        name: 'retry',
        args: { error: expect.stringContaining('returned 42, which is no outcome: return done()') },
      },
      { name: 'retry', args: { error: expect.stringContaining('returned null, which is no outcome') } },
    ])
  })

  it.each([undefined, null, [], async () => {}])(
    '%j instead of an object of handlers is refused',
    (given) => {
      // As a program written without types may.
      expect(() => handlers(given as never)).toThrow(
        expect.objectContaining({
          code: 'SETTING_INVALID',
          message: expect.stringContaining('Give an object with a function for each type'),
        }),
      )
    },
  )
})

describe('an event without a handler', () => {
  const unknown = [outboxEvent({ type: 'order.lost' }), outboxEvent({ type: 'constructor' })]

  it('is retried by the policy, and the reason names its type', async () => {
    expect(await handlers<Events>({}).publish(unknown, publishContext())).toEqual([
      { name: 'retry', args: { error: "no handler for events of type 'order.lost'" } },
      { name: 'retry', args: { error: "no handler for events of type 'constructor'" } },
    ])
  })

  it('LIFE-08: is dead where `otherwise` says so, and the reason names its type', async () => {
    expect(await handlers<Events>({}, { otherwise: 'dead' }).publish(unknown, publishContext())).toEqual([
      { name: 'dead', args: { error: "no handler for events of type 'order.lost'" } },
      { name: 'dead', args: { error: "no handler for events of type 'constructor'" } },
    ])
  })

  it('`otherwise` takes nothing else, and the error names what was given', () => {
    const wrong = { otherwise: 'drop' as never }
    expect(() => handlers({}, wrong)).toThrow(
      "The option otherwise of the handlers publisher cannot be 'drop'. Give 'retry', 'dead', 'done' or a function.",
    )
  })

  it('is done, or passed to another function, where `otherwise` says so', async () => {
    const ignoring = handlers({}, { otherwise: 'done' })
    expect(await ignoring.publish(unknown, publishContext())).toMatchObject([
      { name: 'done' },
      { name: 'done' },
    ])
    const seen: string[] = []
    const target = handlers({}, { otherwise: async ({ type }) => void seen.push(type) })
    await target.publish(unknown, publishContext())
    expect(seen).toEqual(['order.lost', 'constructor'])
  })
})
