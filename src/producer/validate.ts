import { inspect } from 'node:util'
import { LeaseholdError } from '../../errors.ts'
import { payloadText, unstorableText } from './validate-payload.ts'
import { pathOf } from './validate-path.ts'
import { applySchema, type EventSchemas } from './validate-schema.ts'

/** What the events of an outbox have to keep to. */
export interface EventRules {
  readonly maxPayloadBytes: number
  readonly maxAttempts: number | null
  /** With them only the types that have one may be written. */
  readonly schemas: EventSchemas | undefined
}

/** An event that can be written as it is. */
export interface CheckedEvent {
  readonly type: string
  /** As JSON. */
  readonly payload: string
  readonly orderingKey: string | undefined
  readonly headers: Readonly<Record<string, string>>
  readonly availableAt: string | undefined
  /** In lower case, as PostgreSQL prints it. */
  readonly eventId: string | undefined
  readonly maxAttempts: number | null
}

/** Looks at all events, and refuses all if there is anything wrong with one. */
export async function checkEvents(
  events: readonly unknown[],
  labelOf: (index: number) => string,
  rules: EventRules,
): Promise<readonly CheckedEvent[]> {
  const checks = await Promise.all(events.map(async (event, i) => checkEvent(event, labelOf(i), rules)))
  const problems = checks.flatMap((check) => check.problems)
  if (problems.length > 0) throw refusal(problems)
  const checked = checks.flatMap(({ event }) => (event === undefined ? [] : [event]))
  for (const [i, { type, payload }] of checked.entries()) refuseTooLarge(type, payload, labelOf(i), rules)
  return checked
}

interface Check {
  readonly problems: readonly string[]
  readonly event?: CheckedEvent
}

async function checkEvent(given: unknown, label: string, rules: EventRules): Promise<Check> {
  if (typeof given !== 'object' || given === null) {
    return { problems: [`${label} is ${shown(given)}, but must be an object such as { type, payload }`] }
  }
  // Its fields are unknown until each has been looked at.
  const event = given as Readonly<Record<string, unknown>>
  const { type, orderingKey, availableAt, eventId, maxAttempts = rules.maxAttempts } = event
  const headers = event['headers'] ?? {}
  const schema =
    typeof type === 'string' && rules.schemas !== undefined ? ownEntry(rules.schemas, type) : undefined
  const path = `${label}.payload`
  const applied =
    schema === undefined ? { payload: event['payload'] } : await applySchema(schema, event['payload'], path)
  const payload = 'problems' in applied ? undefined : payloadText(applied.payload, path)
  const problems = [
    ...checkType(`${label}.type`, type),
    ...(schema === undefined && rules.schemas !== undefined ? unknownType(label, type, rules.schemas) : []),
    ...('problems' in applied ? applied.problems : []),
    ...(payload !== undefined && 'problem' in payload ? [payload.problem] : []),
    ...(orderingKey === undefined ? [] : checkOrderingKey(`${label}.orderingKey`, orderingKey)),
    ...checkHeaders(`${label}.headers`, headers),
    ...(availableAt === undefined ? [] : checkDate(`${label}.availableAt`, availableAt)),
    ...(eventId === undefined ? [] : checkEventId(`${label}.eventId`, eventId)),
    ...checkMaxAttempts(`${label}.maxAttempts`, maxAttempts),
  ]
  if (problems.length > 0 || payload === undefined || 'problem' in payload) return { problems }
  const checked = {
    type,
    payload: payload.text,
    orderingKey,
    headers,
    availableAt: availableAt instanceof Date ? availableAt.toISOString() : undefined,
    eventId: typeof eventId === 'string' ? eventId.toLowerCase() : undefined,
    maxAttempts,
  }
  // Each field was just looked at.
  return { problems, event: checked as CheckedEvent }
}

/** `maxAttempts`, of an event or of all. */
export function checkMaxAttempts(path: string, value: unknown): string[] {
  if (value === null || isWhole(value, 1, MAX_INT)) return []
  return [`${path} is ${shown(value)}, but must be a whole number from 1 to ${MAX_INT}, or null for no limit`]
}

/** An event's id, as consumers know it. */
export function checkEventId(path: string, value: unknown): string[] {
  return typeof value === 'string' && UUID.test(value)
    ? []
    : [`${path} is ${shown(value)}, but must be a uuid`]
}

/** A name that is stored and compared. */
const LONGEST_TYPE = 255

function checkType(path: string, value: unknown): string[] {
  const problems = checkText(path, value, 'the name of what happened, such as order.paid')
  if (problems.length > 0 || typeof value !== 'string') return problems
  const size = Buffer.byteLength(value)
  return size <= LONGEST_TYPE ? [] : [`${path} has ${size} bytes, and at most ${LONGEST_TYPE} are allowed`]
}

export function checkText(path: string, value: unknown, what: string): string[] {
  if (typeof value !== 'string' || value === '') return [`${path} is ${shown(value)}, but must be ${what}`]
  const unstorable = unstorableText(value)
  return unstorable === undefined ? [] : [`${path} contains ${unstorable}, which PostgreSQL cannot store`]
}

export function isWhole(value: unknown, from: number, to: number): boolean {
  return typeof value === 'number' && Number.isInteger(value) && value >= from && value <= to
}

const MAX_INT = 2_147_483_647
const UUID = /^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$/i

/** An entry of PostgreSQL's index must fit into a third of a page: 2,704 bytes. */
const LONGEST_KEY_BYTES = 2_048

function checkOrderingKey(path: string, value: unknown): string[] {
  const bytes = typeof value === 'string' ? Buffer.byteLength(value) : 0
  return bytes > LONGEST_KEY_BYTES
    ? [`${path} has ${bytes} bytes, but can have at most ${LONGEST_KEY_BYTES}`]
    : checkText(path, value, 'a text such as a customer’s id, or left out')
}

// oxlint-disable-next-line no-control-regex -- they are what it looks for
const CONTROL = /[\u0000-\u001f\u007f]/
// oxlint-disable-next-line no-control-regex -- as above, but for the tab
const CONTROL_BUT_TAB = /[\u0000-\u0008\u000a-\u001f\u007f]/

/** A line break in a header is one that HTTP and NATS refuse, or worse, do not. Values may be secrets: not shown. */
function checkHeaders(path: string, headers: unknown): string[] {
  if (typeof headers !== 'object' || headers === null || Symbol.iterator in headers) {
    return [`${path} is ${shown(headers)}, but must be a plain object of texts`]
  }
  return Object.entries(headers).flatMap(([name, value]: [string, unknown]) => {
    const at = pathOf(path, [name])
    if (name === '') return [`${path} has a header without a name`]
    if (CONTROL.test(name) || !name.isWellFormed())
      return [`${path} has a control character in the name ${shown(name)}`]
    if (typeof value !== 'string') return [`${at} is of type ${kindOf(value)}, but must be a text`]
    if (CONTROL_BUT_TAB.test(value)) return [`${at} contains a control character, which headers cannot carry`]
    return value.isWellFormed() ? [] : [`${at} contains half a surrogate pair, which PostgreSQL cannot store`]
  })
}

function checkDate(path: string, value: unknown): string[] {
  if (!(value instanceof Date)) return [`${path} is ${shown(value)}, but must be a Date`]
  const year = value.getUTCFullYear()
  return year >= 1 && year <= 9999
    ? []
    : [`${path} is ${shown(value)}, but must be a valid Date up to the year 9999`]
}

function unknownType(label: string, type: unknown, schemas: EventSchemas): string[] {
  // An empty or missing type has been told of already.
  if (typeof type !== 'string' || type === '') return []
  return [
    `${label}.type is ${shown(type)}, but the types of this outbox are ${Object.keys(schemas).join(', ')}`,
  ]
}

function ownEntry(schemas: EventSchemas, type: string): EventSchemas[string] | undefined {
  return Object.hasOwn(schemas, type) ? schemas[type] : undefined
}

function refuseTooLarge(type: string, payload: string, label: string, { maxPayloadBytes }: EventRules): void {
  const bytes = Buffer.byteLength(payload)
  if (bytes <= maxPayloadBytes) return
  throw new LeaseholdError(
    'EVENT_TOO_LARGE',
    `Nothing was written: ${label}.payload of type ${type} has ${bytes} bytes, and at most maxPayloadBytes = ${maxPayloadBytes} are allowed.`,
    { remedy: 'Store what is large elsewhere and send its address, or raise maxPayloadBytes.' },
  )
}

const SHOWN_PROBLEMS = 20

function refusal(problems: readonly string[]): LeaseholdError {
  const more = problems.length - SHOWN_PROBLEMS
  const told = problems.slice(0, SHOWN_PROBLEMS).join('; ')
  return new LeaseholdError(
    'EVENT_INVALID',
    `Nothing was written: ${told}${more > 0 ? `; and ${more} more` : ''}.`,
    {
      remedy: 'Correct the fields named and enqueue again.',
    },
  )
}

function kindOf(value: unknown): string {
  return value === null ? 'null' : typeof value
}

function shown(value: unknown): string {
  return inspect(value, { depth: 0, breakLength: Infinity, maxStringLength: 100 })
}
