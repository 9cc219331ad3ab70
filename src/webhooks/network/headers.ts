/** Headers that can be sent as they are. A value is never repeated in a message: it may be a credential. */
import { LeaseholdError } from '../../errors.ts'

const NAME = /^[\w!#$%&'*+\-.^`|~]+$/
/** Printable ASCII, spaces and tabs inside: no CR, LF or NUL, and nothing that servers read in different ways. */
const VALUE = /^(?:[\u0021-\u007e](?:[\t\u0020-\u007e]*[\u0021-\u007e])?)?$/
/** What says something about the connection, the body or the delivery is ours to say. */
const RESERVED =
  /^(?:host|content-(?:length|type|encoding)|transfer-encoding|connection|keep-alive|upgrade|expect|te|trailer|proxy-.*|webhook-.*|idempotency-key)$/
const FRAMING =
  /^(?:host|content-length|transfer-encoding|connection|keep-alive|upgrade|expect|te|trailer|proxy-.*)$/

const MOST_HEADERS = 32
const LARGEST_HEADERS = 8 * 1_024

/** Why these headers cannot be sent, whoever they come from; undefined when they can. */
export function headersProblem(headers: Readonly<Record<string, string>>): string | undefined {
  return problemOf(headers, FRAMING)
}

/**
 * The headers of an endpoint, by their names in lower case. Throws what a person who set them can act on, also for
 * those that Leasehold sends itself.
 */
export function usableHeaders(headers: Readonly<Record<string, string>>): Record<string, string> {
  const entries = Object.entries(headers)
  const size = entries.reduce((sum, [name, value]) => sum + name.length + value.length, 0)
  const problem =
    entries.length > MOST_HEADERS
      ? `${entries.length} headers are more than the ${MOST_HEADERS} that may be`
      : size > LARGEST_HEADERS
        ? `the headers have ${size} characters, more than the ${LARGEST_HEADERS} that may be`
        : problemOf(headers, RESERVED)
  if (problem === undefined) {
    return Object.fromEntries(entries.map(([name, value]) => [name.toLowerCase(), value]))
  }
  throw new LeaseholdError(
    'REQUEST_INVALID',
    `The field headers of a webhook endpoint is refused: ${problem}.`,
    {
      remedy:
        'Give names of letters, digits and hyphens with values of printable ASCII, and none that is sent anyway.',
    },
  )
}

function problemOf(headers: Readonly<Record<string, string>>, reserved: RegExp): string | undefined {
  const seen = new Set<string>()
  for (const [name, value] of Object.entries(headers)) {
    const shown = JSON.stringify(name.slice(0, 100))
    const lower = name.toLowerCase()
    if (!NAME.test(name)) return `${shown} is not the name of a header`
    if (reserved.test(lower)) return `the header ${shown} is not yours to set`
    if (seen.has(lower)) return `the header ${shown} stands there twice`
    if (typeof value !== 'string' || !VALUE.test(value)) {
      return `the value of the header ${shown} has something in it that is not printable ASCII`
    }
    seen.add(lower)
  }
  return undefined
}
