/** Validates endpoints before they are written. All problems are reported at once, by field. */
import { isLeaseholdError, LeaseholdError } from '../../errors.ts'
import { endpointHeaders } from '../network/headers.ts'
import { checkTarget, type NetworkPolicy, type TargetOptions } from '../network/policy.ts'
import { checkText, isWhole, describeValue } from '../../messages/validate.ts'
import { isPlainObject } from '../../rules.ts'
import { signingKey } from '../signing/secret.ts'
import { checkEventType, checkTenant } from '../subscription.ts'
import { type By, HIDDEN_VALUE } from './endpoint.ts'

/** Which URLs endpoints may have. */
export type TargetRules = TargetOptions & { readonly policy: NetworkPolicy }

/** A valid field, as it is stored. */
export interface Column {
  readonly column: string
  readonly value: unknown
}

type FieldCheck = { readonly problems: readonly string[] } | { readonly stored: unknown }

interface Field {
  readonly column: string
  check(value: unknown, rules: TargetRules): FieldCheck
}

const MAX_DESCRIPTION_CHARACTERS = 1_000
const MAX_EVENT_TYPES = 100
const MAX_RATE_PER_SECOND = 100_000
const MAX_CONCURRENCY = 10_000
/** Less than three leases of a dispatcher: a delivery may not be in flight for longer (RULE-020-051). */
export const MAX_TIMEOUT_MS = 300_000
const MAX_URL_BYTES = 2_048

/** The fields that can be changed at any time. */
const CHANGEABLE: Readonly<Record<string, Field>> = {
  url: { column: 'url', check: checkUrl },
  description: {
    column: 'description',
    check: (value) => fieldCheck(value, checkDescription('description', value)),
  },
  eventTypes: { column: 'event_types', check: checkEventTypes },
  headers: { column: 'headers', check: checkHeaders },
  ratePerSecond: {
    column: 'rate_per_second',
    check: (value) =>
      fieldCheck(
        value,
        value === null || (typeof value === 'number' && value > 0 && value <= MAX_RATE_PER_SECOND)
          ? []
          : [
              `ratePerSecond is ${describeValue(value)}, but must be above 0 and at most ${MAX_RATE_PER_SECOND}, or null`,
            ],
      ),
  },
  concurrency: {
    column: 'concurrency',
    check: (value) => wholeNumber('concurrency', value, MAX_CONCURRENCY),
  },
  timeoutMs: { column: 'timeout_ms', check: (value) => wholeNumber('timeoutMs', value, MAX_TIMEOUT_MS) },
  ordered: {
    column: 'ordered',
    check: (value) =>
      fieldCheck(
        value,
        typeof value === 'boolean' ? [] : [`ordered is ${describeValue(value)}, but must be true or false`],
      ),
  },
}

/** The fields of a new endpoint. */
const ALL_FIELDS: Readonly<Record<string, Field>> = {
  ...CHANGEABLE,
  tenant: { column: 'tenant', check: (value) => fieldCheck(value, checkTenant('tenant', value)) },
  signing: {
    column: 'signing',
    check: (value) =>
      fieldCheck(
        value,
        value === 'v1' || value === 'v1a'
          ? []
          : [`signing is ${describeValue(value)}, but must be 'v1' or 'v1a'`],
      ),
  },
}

/** The columns of a new endpoint, without its secret. */
export function checkNew(given: unknown, by: By, rules: TargetRules): readonly Column[] {
  const { secret, ...fields } = record(given)
  const { signing = 'v1' } = fields
  return checkFields(ALL_FIELDS, fields, rules, [
    ...(fields['url'] === undefined ? ['url is missing: where are deliveries to be POSTed to?'] : []),
    ...(secret === undefined || (signing !== 'v1' && signing !== 'v1a') ? [] : checkSecret(secret, signing)),
    ...checkBy(by),
  ])
}

export function checkChanges(given: unknown, by: By, rules: TargetRules): readonly Column[] {
  const fields = record(given)
  const isEmpty = Object.values(fields).every((value) => value === undefined)
  return checkFields(CHANGEABLE, fields, rules, [
    ...(isEmpty ? [`there is nothing to change: give one of ${Object.keys(CHANGEABLE).join(', ')}`] : []),
    ...checkBy(by),
  ])
}

/** A given secret must fit the endpoint's `signing`. Problems never repeat the secret. */
export function checkSecret(secret: unknown, signing: 'v1' | 'v1a'): string[] {
  const prefix = signing === 'v1' ? 'whsec_' : 'whsk_'
  if (typeof secret !== 'string' || !secret.startsWith(prefix)) {
    return [
      `secret must begin with ${prefix}, because signing is ${signing}; without a secret, one is generated`,
    ]
  }
  return problemsOf(() => signingKey(secret))
}

/** Checked at run time too, for callers without TypeScript. */
export function checkBy(by: Partial<By> | undefined): string[] {
  const { principal, reason } = by ?? {}
  return [
    ...(typeof principal === 'string' && principal.trim() !== ''
      ? checkText('principal', principal, 'a name')
      : [`principal is ${describeValue(principal)}, but must be who changes it; the audit records it`]),
    ...(reason === undefined ? [] : checkText('reason', reason, 'why it is changed, or left out')),
  ]
}

/** Throws one error with all problems. Each begins with the field, and the error has that of the first. */
export function refuse(problems: readonly string[]): void {
  const [first] = problems
  if (first === undefined) return
  const [field] = /^\w+(?=[.[:]| is | has | must | cannot )/.exec(first) ?? []
  throw new LeaseholdError('REQUEST_INVALID', `Nothing was changed: ${problems.join('; ')}.`, {
    remedy: 'Correct what is named.',
    ...(field === undefined ? {} : { field }),
  })
}

function record(given: unknown): Readonly<Record<string, unknown>> {
  if (typeof given === 'object' && given !== null && !Array.isArray(given)) return { ...given }
  refuse([`the endpoint is ${describeValue(given)}, but must be an object such as { url }`])
  return {}
}

function checkFields(
  known: Readonly<Record<string, Field>>,
  fields: Readonly<Record<string, unknown>>,
  rules: TargetRules,
  otherProblems: readonly string[],
): readonly Column[] {
  const problems = [...otherProblems]
  const columns: Column[] = []
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined) continue
    const field = Object.hasOwn(known, name) ? known[name] : undefined
    if (field === undefined) {
      problems.push(`${name} cannot be given here: the fields are ${Object.keys(known).join(', ')}`)
      continue
    }
    const checked = field.check(value, rules)
    if ('problems' in checked) problems.push(...checked.problems)
    else columns.push({ column: field.column, value: checked.stored })
  }
  refuse(problems)
  return columns
}

/** The normalized URL is stored, so that it is the URL that will be called. */
function checkUrl(value: unknown, { policy, ...options }: TargetRules): FieldCheck {
  if (typeof value !== 'string')
    return { problems: [`url is ${describeValue(value)}, but must be a URL as a text`] }
  const check = checkTarget(value, policy, options)
  if (!check.permitted) return { problems: [`url: ${check.message} ${check.remedy}`.replace(/\.$/, '')] }
  const { href } = check.url
  const bytes = Buffer.byteLength(href)
  return bytes <= MAX_URL_BYTES
    ? { stored: href }
    : { problems: [`url has ${bytes} bytes once encoded, and at most ${MAX_URL_BYTES} are allowed`] }
}

function checkDescription(path: string, value: unknown): string[] {
  if (value === '') return []
  if (typeof value === 'string' && value.length > MAX_DESCRIPTION_CHARACTERS) {
    return [`${path} has ${value.length} characters, and at most ${MAX_DESCRIPTION_CHARACTERS} are allowed`]
  }
  return checkText(path, value, 'a text')
}

function checkEventTypes(value: unknown): FieldCheck {
  if (!Array.isArray(value)) {
    return {
      problems: [
        `eventTypes is ${describeValue(value)}, but must be a list such as ['order.paid', 'user.*']`,
      ],
    }
  }
  if (value.length > MAX_EVENT_TYPES) {
    return {
      problems: [`eventTypes has ${value.length} entries, and at most ${MAX_EVENT_TYPES} are allowed`],
    }
  }
  const given: readonly unknown[] = value
  const problems = given.flatMap((type, i) => checkEventType(`eventTypes[${i}]`, type))
  return fieldCheck([...new Set(given)], problems)
}

function checkHeaders(value: unknown): FieldCheck {
  if (!isPlainObject(value)) {
    // Its value is not repeated: it may be a credential.
    const kind = value === null ? 'null' : `a ${typeof value}`
    const what = Array.isArray(value) ? 'a list' : kind === 'a object' ? 'an object of another kind' : kind
    return { problems: [`headers is ${what}, but must be a plain object of texts`] }
  }
  // endpointHeaders checks every name and value.
  const headers = value as Readonly<Record<string, string>>
  const hidden = Object.keys(headers).filter((name) => headers[name] === HIDDEN_VALUE)
  // An endpoint that was read and is written back would lose its credentials.
  if (hidden.length > 0) {
    return {
      problems: [
        `headers: the value of ${hidden.join(', ')} is ${HIDDEN_VALUE}, which stands for a hidden value`,
      ],
    }
  }
  const problems = problemsOf(() => endpointHeaders(headers)).map((problem) => `headers: ${problem}`)
  return problems.length > 0 ? { problems } : { stored: endpointHeaders(headers) }
}

function wholeNumber(name: string, value: unknown, most: number): FieldCheck {
  return fieldCheck(
    value,
    isWhole(value, 1, most)
      ? []
      : [`${name} is ${describeValue(value)}, but must be a whole number from 1 to ${most}`],
  )
}

function fieldCheck(stored: unknown, problems: readonly string[]): FieldCheck {
  return problems.length > 0 ? { problems } : { stored }
}

/** The error that a check throws, as a problem. */
function problemsOf(check: () => unknown): string[] {
  try {
    check()
    return []
  } catch (error) {
    if (!isLeaseholdError(error)) throw error
    return [error.message.replace(/\.$/, '')]
  }
}
