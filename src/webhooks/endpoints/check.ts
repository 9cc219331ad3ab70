/** What an endpoint may be. Everything that is wrong is told at once, by field; nothing is written then. */
import { isLeaseholdError, LeaseholdError } from '../../errors.ts'
import { checkEventType } from './event-types.ts'
import { checkText, isWhole, shown } from '../../messages/validate-fields.ts'
import { judgeTarget, type NetworkPolicy, type TargetOptions, usableHeaders } from '../network/index.ts'
import { signingKey } from '../signing/secret.ts'
import { checkTenant } from '../tenant.ts'
import type { By } from './endpoint.ts'

/** Where endpoints may lead. */
export type TargetRules = TargetOptions & { readonly policy: NetworkPolicy }

/** A field that has passed, as it is stored. */
interface Passed {
  readonly column: string
  readonly value: unknown
}

type Verdict = { readonly problems: readonly string[] } | { readonly stored: unknown }

interface Field {
  readonly column: string
  check(value: unknown, rules: TargetRules): Verdict
}

const LONGEST_DESCRIPTION = 1_000
const MOST_EVENT_TYPES = 100
const MOST_PER_SECOND = 100_000
const MOST_AT_ONCE = 10_000
/** Well within three leases of a dispatcher, which is as long as a delivery may be held. */
export const LONGEST_TIMEOUT_MS = 300_000
const LARGEST_URL_BYTES = 2_048

/** What can be changed at any time. */
const CHANGEABLE: Readonly<Record<string, Field>> = {
  url: { column: 'url', check: checkUrl },
  description: {
    column: 'description',
    check: (value) => verdict(value, checkDescription('description', value)),
  },
  eventTypes: { column: 'event_types', check: checkEventTypes },
  headers: { column: 'headers', check: checkHeaders },
  ratePerSecond: {
    column: 'rate_per_second',
    check: (value) =>
      verdict(
        value,
        value === null || (typeof value === 'number' && value > 0 && value <= MOST_PER_SECOND)
          ? []
          : [`ratePerSecond is ${shown(value)}, but must be above 0 and at most ${MOST_PER_SECOND}, or null`],
      ),
  },
  concurrency: { column: 'concurrency', check: (value) => whole('concurrency', value, MOST_AT_ONCE) },
  timeoutMs: { column: 'timeout_ms', check: (value) => whole('timeoutMs', value, LONGEST_TIMEOUT_MS) },
  ordered: {
    column: 'ordered',
    check: (value) =>
      verdict(
        value,
        typeof value === 'boolean' ? [] : [`ordered is ${shown(value)}, but must be true or false`],
      ),
  },
}

/** What an endpoint is born with. */
const ALL: Readonly<Record<string, Field>> = {
  ...CHANGEABLE,
  tenant: { column: 'tenant', check: (value) => verdict(value, checkTenant('tenant', value)) },
  signing: {
    column: 'signing',
    check: (value) =>
      verdict(
        value,
        value === 'v1' || value === 'v1a' ? [] : [`signing is ${shown(value)}, but must be 'v1' or 'v1a'`],
      ),
  },
}

/** The columns of a new endpoint, its secret apart. */
export function checkNew(given: unknown, by: By, rules: TargetRules): readonly Passed[] {
  const { secret, ...fields } = record(given)
  const { signing = 'v1' } = fields
  return passed(ALL, fields, rules, [
    ...(fields['url'] === undefined ? ['url is missing: where are deliveries to be POSTed to?'] : []),
    ...(secret === undefined || (signing !== 'v1' && signing !== 'v1a') ? [] : checkSecret(secret, signing)),
    ...checkBy(by),
  ])
}

export function checkChanges(given: unknown, by: By, rules: TargetRules): readonly Passed[] {
  const fields = record(given)
  const isEmpty = Object.values(fields).every((value) => value === undefined)
  return passed(CHANGEABLE, fields, rules, [
    ...(isEmpty ? [`there is nothing to change: give one of ${Object.keys(CHANGEABLE).join(', ')}`] : []),
    ...checkBy(by),
  ])
}

/** A secret that was given, of the kind that the endpoint signs with. What is wrong with it never repeats it. */
export function checkSecret(secret: unknown, signing: 'v1' | 'v1a'): string[] {
  const prefix = signing === 'v1' ? 'whsec_' : 'whsk_'
  if (typeof secret !== 'string' || !secret.startsWith(prefix)) {
    return [`secret must begin with ${prefix}, because signing is ${signing}; left out, one is made`]
  }
  return problemsOf(() => signingKey(secret))
}

/** Not everybody who calls has a compiler. */
export function checkBy(by: Partial<By> | undefined): string[] {
  const { principal, reason } = by ?? {}
  return [
    ...(typeof principal === 'string' && principal.trim() !== ''
      ? checkText('principal', principal, 'a name')
      : [`principal is ${shown(principal)}, but must be who changes it; the audit keeps it`]),
    ...(reason === undefined ? [] : checkText('reason', reason, 'why it is changed, or left out')),
  ]
}

/** Refuses everything that is wrong at once. */
export function refuse(problems: readonly string[]): void {
  if (problems.length === 0) return
  throw new LeaseholdError('REQUEST_INVALID', `Nothing was changed: ${problems.join('; ')}.`, {
    remedy: 'Correct what is named.',
  })
}

function record(given: unknown): Readonly<Record<string, unknown>> {
  if (typeof given === 'object' && given !== null && !Array.isArray(given)) return { ...given }
  refuse([`the endpoint is ${shown(given)}, but must be an object such as { url }`])
  return {}
}

function passed(
  known: Readonly<Record<string, Field>>,
  fields: Readonly<Record<string, unknown>>,
  rules: TargetRules,
  further: readonly string[],
): readonly Passed[] {
  const problems = [...further]
  const found: Passed[] = []
  for (const [name, value] of Object.entries(fields)) {
    if (value === undefined) continue
    const field = Object.hasOwn(known, name) ? known[name] : undefined
    if (field === undefined) {
      problems.push(`${name} cannot be given here: the fields are ${Object.keys(known).join(', ')}`)
      continue
    }
    const checked = field.check(value, rules)
    if ('problems' in checked) problems.push(...checked.problems)
    else found.push({ column: field.column, value: checked.stored })
  }
  refuse(problems)
  return found
}

/** Whole and normalised: what is stored is what will be called. */
function checkUrl(value: unknown, { policy, ...options }: TargetRules): Verdict {
  if (typeof value !== 'string') return { problems: [`url is ${shown(value)}, but must be a URL as a text`] }
  const judged = judgeTarget(value, policy, options)
  if (!judged.usable) return { problems: [`url: ${judged.message} ${judged.remedy}`.replace(/\.$/, '')] }
  const { href } = judged.url
  const bytes = Buffer.byteLength(href)
  return bytes <= LARGEST_URL_BYTES
    ? { stored: href }
    : { problems: [`url has ${bytes} bytes once encoded, and at most ${LARGEST_URL_BYTES} are allowed`] }
}

function checkDescription(path: string, value: unknown): string[] {
  if (value === '') return []
  if (typeof value === 'string' && value.length > LONGEST_DESCRIPTION) {
    return [`${path} has ${value.length} characters, and at most ${LONGEST_DESCRIPTION} are allowed`]
  }
  return checkText(path, value, 'a text')
}

function checkEventTypes(value: unknown): Verdict {
  if (!Array.isArray(value)) {
    return {
      problems: [`eventTypes is ${shown(value)}, but must be a list such as ['order.paid', 'user.*']`],
    }
  }
  if (value.length > MOST_EVENT_TYPES) {
    return {
      problems: [`eventTypes has ${value.length} entries, and at most ${MOST_EVENT_TYPES} are allowed`],
    }
  }
  const given: readonly unknown[] = value
  const problems = given.flatMap((type, i) => checkEventType(`eventTypes[${i}]`, type))
  return verdict([...new Set(given)], problems)
}

/** By their names in lower case. */
function checkHeaders(value: unknown): Verdict {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    return { problems: [`headers is ${shown(value)}, but must be a plain object of texts`] }
  }
  // Every name and value is looked at there.
  const headers = value as Readonly<Record<string, string>>
  const problems = problemsOf(() => usableHeaders(headers))
  return problems.length > 0 ? { problems } : { stored: JSON.stringify(usableHeaders(headers)) }
}

function whole(name: string, value: unknown, most: number): Verdict {
  return verdict(
    value,
    isWhole(value, 1, most)
      ? []
      : [`${name} is ${shown(value)}, but must be a whole number from 1 to ${most}`],
  )
}

function verdict(stored: unknown, problems: readonly string[]): Verdict {
  return problems.length > 0 ? { problems } : { stored }
}

/** What others refuse by an error, as one problem among others. */
function problemsOf(check: () => unknown): string[] {
  try {
    check()
    return []
  } catch (error) {
    if (!isLeaseholdError(error)) throw error
    return [error.message.replace(/\.$/, '')]
  }
}
