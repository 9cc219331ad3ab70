/** What all publishers share: checking options, sending a batch, and telling an event's failure from the target's. */
import { inspect } from 'node:util'

import { LeaseholdError, messageOf } from '../../errors.ts'
import { untilAborted, within } from '../../timeout.ts'
import {
  dead,
  done,
  type Outcome,
  PermanentError,
  retry,
  SaturatedError,
} from '../../worker/completion/outcome.ts'
import type { OutboxEvent } from '../event.ts'
import type { Answer } from '../publisher.ts'

export interface Sending {
  readonly signal: AbortSignal
  /** How long the target may take to answer for the whole batch. */
  readonly timeoutMs: number
  /**
   * Sends one event and waits for its acknowledgement. What it throws applies to this event alone: an error is a retry, a
   * `PermanentError` dead, a `SaturatedError` releases the event.
   */
  send(event: OutboxEvent): Promise<Outcome | void>
  /** The error for the events that were not answered in time. */
  unansweredError(): Promise<Error>
}

/** Sends all events at once, and returns an answer for each in their order. */
export async function publishEach(
  events: readonly OutboxEvent[],
  sending: Sending,
): Promise<readonly Answer[]> {
  const { signal, timeoutMs } = sending
  const answers: (Answer | undefined)[] = Array.from({ length: events.length })
  let expired = false
  const all = Promise.all(
    events.map(async (event, index) => {
      try {
        answers[index] = (await sending.send(event)) ?? done()
      } catch (error) {
        // A late acknowledgement still counts. A late error says no more than the timeout did.
        if (!expired) answers[index] = answerFor(error)
      }
    }),
  )
  const answered = await untilAborted(signal, async () => within(timeoutMs, all))
  if (answered) return throwIfAllSaturated(answers.filter((answer) => answer !== undefined))
  expired = true
  const unanswered = answerFor(await untilAborted(signal, async () => sending.unansweredError()))
  return throwIfAllSaturated(answers.map((answer) => answer ?? unanswered))
}

/**
 * Prepares each event by itself, sends together what could be prepared, and returns an answer for each event in their
 * order. What `prepare` throws applies to its event alone. If it returns nothing, nothing is to be sent, and the event is
 * done.
 */
export async function publishTogether<Prepared extends object>(
  events: readonly OutboxEvent[],
  prepare: (event: OutboxEvent) => Prepared | undefined,
  send: (prepared: readonly Prepared[]) => Promise<readonly Answer[]>,
): Promise<readonly Answer[]> {
  const toSend: Prepared[] = []
  const answers = events.map((event): Answer | undefined => {
    try {
      const prepared = prepare(event)
      if (prepared === undefined) return done()
      toSend.push(prepared)
      return undefined
    } catch (error) {
      return answerFor(error)
    }
  })
  const sent = (toSend.length === 0 ? [] : await send(toSend)).values()
  return answers.map((answer) => answer ?? sent.next().value ?? unansweredByPublisher())
}

function unansweredByPublisher(): Answer {
  return retry({ error: new Error('the publisher gave no answer for the event') })
}

/** What an error thrown for one event means for it. */
export function answerFor(error: unknown): Answer {
  if (error instanceof SaturatedError) return error
  return error instanceof PermanentError ? dead(error) : retry({ error })
}

/** If no event was answered, throws one error for the batch instead of returning the same error for each event. */
export function throwIfAllSaturated(answers: readonly Answer[]): readonly Answer[] {
  const [first] = answers
  if (first instanceof SaturatedError && answers.every((answer) => answer instanceof SaturatedError))
    throw first
  return answers
}

/** How long claiming pauses when a target does not answer. A broker that restarts is back within seconds. */
const UNAVAILABLE_PAUSE_MS = 1_000

/** The name of a publisher, and with it the address that it sends to, where it knows that. */
export type Target = string | { readonly name: string; readonly address: string }

/** Only the servers: what else is in a URL, such as a password or a token in its path, may be secret. */
export function targetAt(name: string, ...urls: readonly (string | URL)[]): Target {
  const servers = urls.map((url) => (typeof url === 'string' ? url.replace(/^.*@/, '') : serverOf(url)))
  return servers.length === 0 ? name : { name, address: servers.join(', ') }
}

function serverOf({ protocol, host }: URL): string {
  return `${protocol}//${host}`
}

/**
 * The error for a target that cannot be reached or has no room. No event caused it: all are released, and no attempt is
 * counted.
 */
export function unavailable(target: Target, what: string, cause?: unknown): SaturatedError {
  // It says so already, and more precisely.
  if (cause instanceof SaturatedError) return cause
  const publisher =
    typeof target === 'string' ? `${target} publisher` : `${target.name} publisher for ${target.address}`
  const why = cause === undefined ? '' : `: ${messageOf(cause)}`
  const error = new SaturatedError(UNAVAILABLE_PAUSE_MS, `The ${publisher} ${what}${why}`)
  if (cause !== undefined) error.cause = cause
  return error
}

/** Probes a target: what it rejects with says which target is unavailable. */
export async function probeTarget(
  target: Target,
  signal: AbortSignal,
  check: () => Promise<unknown>,
): Promise<void> {
  try {
    await untilAborted(signal, check)
  } catch (error) {
    throw signal.aborted ? error : unavailable(target, 'cannot reach its target', error)
  }
}

/** Refuses an option, naming it, its value and what to give instead. */
export function refuse(publisher: string, option: string, value: unknown, remedy: string): never {
  const text = value === undefined ? 'what was given' : inspect(value, { depth: 1 })
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The option ${option} of the ${publisher} publisher cannot be ${text}.`,
    { remedy },
  )
}

export function wholeNumber(publisher: string, option: string, value: number, least = 1): number {
  if (Number.isSafeInteger(value) && value >= least) return value
  return refuse(publisher, option, value, `Give a whole number of at least ${least}.`)
}

/** The URL, if it has one of these protocols. The error does not repeat it: it may contain a password. */
export function usableUrl(publisher: string, value: string, protocols: readonly string[]): URL {
  const remedy = `Give a URL that begins with ${protocols.map((protocol) => `${protocol}//`).join(' or ')}`
  let url: URL
  try {
    url = new URL(value)
  } catch {
    return refuse(publisher, 'url', undefined, `${remedy}.`)
  }
  if (!protocols.includes(url.protocol)) refuse(publisher, 'url', url.protocol, `${remedy}.`)
  return url
}

let isStdoutReserved = false

/** From now on only events go to stdout. The command line prints everything else to stderr. */
export function reserveStdout(): void {
  isStdoutReserved = true
}

export function stdoutCarriesEvents(): boolean {
  return isStdoutReserved
}
