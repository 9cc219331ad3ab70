/** Events to functions in this process, by their type. */
import { namesOf, refuseUnknownOptions } from '../../nearest.ts'
import { describeValue, isRecord } from '../../rules.ts'
import type { AnyPayloads, EventPayloads } from '../../messages/schemas.ts'
import { dead, done, type Outcome, retry } from '../../worker/completion/outcome.ts'
import type { OutboxEvent } from '../event.ts'
import { type Answer, type PublishContext, type Publisher, reasonOf } from '../publisher.ts'
import { refuse, throwIfAllSaturated, wholeNumber } from './publishing.ts'

type Result = Outcome | void

/** What it returns or throws applies to its event alone. Returning nothing means done. */
export type EventHandler<Type extends string = string, Payload = unknown> = (
  event: OutboxEvent<Type, Payload>,
  context: PublishContext,
) => Promise<Result> | Result

export type EventHandlers<Payloads extends EventPayloads = AnyPayloads> = {
  readonly [Type in keyof Payloads & string]?: EventHandler<Type, Payloads[Type]>
}

export interface HandlersOptions {
  /**
   * What becomes of an event whose type has no handler. Default 'retry': while a release is rolled out, a relay of the
   * old release meets events of the new one, which a relay of the new release will publish.
   */
  readonly otherwise?: 'retry' | 'dead' | 'done' | EventHandler
  /**
   * The most events of one call. Default 1: each event is settled as soon as its handler has returned. With more, the
   * handlers of a batch run at the same time, and all are settled when the slowest has returned.
   */
  readonly maxBatch?: number
}

const OPTION_NAMES = namesOf<HandlersOptions>({
  otherwise: true,
  maxBatch: true,
})

/**
 * ```ts
 * handlers<{ 'order.paid': { id: string } }>({ 'order.paid': async ({ payload }) => ship(payload.id) })
 * ```
 */
export function handlers<Payloads extends EventPayloads = AnyPayloads>(
  byType: EventHandlers<Payloads>,
  options: HandlersOptions = {},
): Publisher {
  refuseUnknownOptions('handlers', options, OPTION_NAMES)
  if (!isRecord(byType))
    refuse(
      'handlers',
      'byType',
      byType,
      "Give an object with a function for each type: { 'order.paid': async (event) => { … } }.",
    )
  for (const [type, handler] of Object.entries<unknown>(byType)) {
    if (handler !== undefined && typeof handler !== 'function')
      refuse('handlers', `'${type}'`, handler, 'Give a function (event, context) => … for each type.')
  }
  const { otherwise = 'retry' } = options
  const fallback: EventHandler =
    (typeof otherwise === 'function' ? otherwise : FALLBACKS.get(otherwise)) ??
    refuse('handlers', 'otherwise', otherwise, "Give 'retry', 'dead', 'done' or a function.")
  // A handler takes the payload of its own type. It is only called with events of that type, which TypeScript cannot express.
  const known = new Map(Object.entries(byType) as [string, EventHandler][])

  async function handleOne(event: OutboxEvent, context: PublishContext): Promise<Answer> {
    try {
      const outcome = await (known.get(event.type) ?? fallback)(event, context)
      return outcome === undefined ? done() : checked(outcome)
    } catch (error) {
      const reason = reasonOf(error)
      // As an outcome, an error would lose its stack.
      return reason instanceof Error ? reason : retry({ error: reason })
    }
  }

  async function handleAll(
    events: readonly OutboxEvent[],
    context: PublishContext,
  ): Promise<readonly Answer[]> {
    return throwIfAllSaturated(await Promise.all(events.map(async (event) => handleOne(event, context))))
  }

  return {
    name: 'handlers',
    maxBatch: wholeNumber('handlers', 'maxBatch', options.maxBatch ?? 1),
    // Not an async function: a single event then costs the handler's promise and one more, which shows in throughput.
    publish(events, context) {
      const [event] = events
      if (event === undefined || events.length > 1) return handleAll(events, context)
      try {
        const running = (known.get(event.type) ?? fallback)(event, context)
        // What a handler throws applies to the batch, which is this one event.
        return Promise.resolve(running).then(answersOf)
      } catch (error) {
        return Promise.reject(error)
      }
    },
  }
}

function answersOf(outcome: Result): readonly Answer[] | undefined {
  return outcome === undefined ? undefined : [checked(outcome)]
}

const FALLBACKS = new Map<unknown, EventHandler>([
  ['retry', (event) => retry({ error: noHandlerFor(event) })],
  ['dead', (event) => dead(noHandlerFor(event))],
  ['done', () => {}],
])

function noHandlerFor({ type }: OutboxEvent): string {
  return `no handler for events of type '${type}'`
}

/** A handler written without types may return anything. */
function checked(result: Outcome): Outcome {
  const value: unknown = result
  if (typeof value === 'object' && value !== null && 'name' in value && 'args' in value) return result
  return retry({
    error: new TypeError(
      `the handler returned ${describeValue(value)}, which is no outcome: return done(), retry(), dead() or nothing`,
    ),
  })
}
