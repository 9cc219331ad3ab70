import { SaturatedError } from '../../worker/completion/outcome.ts'

/** How long claiming pauses when a target does not answer: a broker is back within seconds, or not for a while. */
const PAUSE_MS = 1_000

/** The target cannot be reached or has no room. No event's fault: all are given back, and no attempt is counted. */
export function unavailable(publisher: string, what: string, cause?: unknown): SaturatedError {
  const why = cause === undefined ? '' : `: ${messageOf(cause)}`
  const error = new SaturatedError(PAUSE_MS, `The ${publisher} publisher ${what}${why}`)
  if (cause !== undefined) error.cause = cause
  return error
}

/** A refused connection to a name with several addresses is an AggregateError without a message. */
export function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.message !== '') return error.message
  if (error instanceof AggregateError) return error.errors.map((each) => messageOf(each)).join('; ')
  return error.name
}
