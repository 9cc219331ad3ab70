/** The headers of a request: which can be sent, and which an endpoint may set. */
import { LeaseholdError } from '../../errors.ts'

const HEADER_NAME = /^[\w!#$%&'*+\-.^`|~]+$/
/** Printable ASCII, with spaces and tabs inside: no CR, LF or NUL, and nothing that servers read in different ways. */
const HEADER_VALUE = /^(?:[\u0021-\u007e](?:[\t\u0020-\u007e]*[\u0021-\u007e])?)?$/
/** Headers of the connection, which undici sets. */
const FRAMING_HEADER =
  /^(?:host|content-length|transfer-encoding|connection|keep-alive|upgrade|expect|te|trailer|proxy-.*)$/
/** Headers of the connection, the body or the delivery, which an endpoint cannot set. */
const RESERVED_HEADER =
  /^(?:host|content-(?:length|type|encoding)|transfer-encoding|connection|keep-alive|upgrade|expect|te|trailer|proxy-.*|webhook-.*|idempotency-key)$/

const MAX_HEADERS = 32
const MAX_HEADER_CHARACTERS = 8 * 1_024

/** Why these headers cannot be sent; undefined when they can. A value is never repeated: it may be a credential. */
export function headersProblem(headers: Readonly<Record<string, string>>): string | undefined {
  return headerProblem(headers, FRAMING_HEADER)
}

/** The headers of an endpoint, with their names in lower case. Throws if one cannot be sent or is ours to set. */
export function endpointHeaders(headers: Readonly<Record<string, string>>): Record<string, string> {
  const entries = Object.entries(headers)
  const problem =
    entries.length > MAX_HEADERS
      ? `it has ${entries.length} headers, and at most ${MAX_HEADERS} are allowed`
      : (headerProblem(headers, RESERVED_HEADER) ?? sizeProblem(entries))
  if (problem === undefined) {
    return Object.fromEntries(entries.map(([name, value]) => [name.toLowerCase(), value]))
  }
  throw new LeaseholdError(
    'REQUEST_INVALID',
    `The field headers of a webhook endpoint is refused: ${problem}.`,
    {
      remedy:
        'Give names of letters, digits and hyphens with values of printable ASCII, and none that Leasehold sets.',
    },
  )
}

/** What follows the valid part is not repeated: of `Authorization: Bearer …` it is a credential. */
function invalidName(name: string): string {
  const start = JSON.stringify((/^[\w!#$%&'*+\-.^`|~]*/.exec(name)?.[0] ?? '').slice(0, 100))
  return `the name of a header begins with ${start} and goes on with a character that no name has`
}

function sizeProblem(headers: readonly (readonly [name: string, value: string])[]): string | undefined {
  const size = headers.reduce((sum, [name, value]) => sum + name.length + value.length, 0)
  return size > MAX_HEADER_CHARACTERS
    ? `the headers have ${size} characters, and at most ${MAX_HEADER_CHARACTERS} are allowed`
    : undefined
}

function headerProblem(headers: Readonly<Record<string, string>>, reserved: RegExp): string | undefined {
  const seen = new Set<string>()
  for (const [name, value] of Object.entries(headers)) {
    if (!HEADER_NAME.test(name)) return invalidName(name)
    const quoted = JSON.stringify(name.slice(0, 100))
    const lower = name.toLowerCase()
    if (reserved.test(lower)) return `the header ${quoted} is set by Leasehold`
    if (seen.has(lower)) return `the header ${quoted} is given twice`
    if (typeof value !== 'string' || !HEADER_VALUE.test(value)) {
      return `the value of the header ${quoted} has characters that are not printable ASCII`
    }
    seen.add(lower)
  }
  return undefined
}
