/**
 * What a producer may be configured with, and what is checked of an event before it is written. All problems of all events
 * are reported at once, by their paths. The tables enforce the same limits; checking here leaves the caller's transaction
 * usable.
 */
import { inspect } from 'node:util'
import { LeaseholdError } from '../errors.ts'
import { describeValue, isPlainObject } from '../rules.ts'
import { unstorable } from '../unstorable-text.ts'
import { pathOf, payloadText, storedBytes } from './json.ts'
import { applySchema, type EventSchemas, isStandardSchema } from './schemas.ts'

export { describeValue } from '../rules.ts'

/** The limits of the tables. An index entry must fit into a third of a page: 2,704 bytes. */
export const MAX_PAYLOAD_BYTES = 262_144
export const MAX_HEADERS_BYTES = 16_384
const MAX_TYPE_BYTES = 255
const MAX_ORDERING_KEY_BYTES = 1_024

/** What `createOutbox` and `createWebhooks` have in common. */
export interface ProducerOptions<Schemas = EventSchemas> {
  /** Where the migrations put the tables. Default `leasehold`. */
  readonly schema?: string | undefined
  /**
   * A Standard Schema (Zod, Valibot, ArkType, …) for each event type. A payload is checked before anything is written,
   * and what its schema returns is what is written. Types that have no schema are refused.
   */
  readonly events?: Schemas | undefined
  /** The largest payload, in bytes of JSON as PostgreSQL prints it. Default and maximum 262,144 (256 KiB). */
  readonly maxPayloadBytes?: number | undefined
}

export interface ProducerRules {
  readonly schema: string
  readonly schemas: EventSchemas | undefined
  readonly maxPayloadBytes: number
}

/** Completes the options, or refuses them with every problem, `furtherProblems` included. */
export function producerRules(
  creator: string,
  options: ProducerOptions,
  furtherProblems: readonly string[] = [],
): ProducerRules {
  const { schema = 'leasehold', events: schemas, maxPayloadBytes = MAX_PAYLOAD_BYTES } = options
  const problems = [
    ...furtherProblems,
    ...(isWhole(maxPayloadBytes, 1, MAX_PAYLOAD_BYTES)
      ? []
      : [
          `maxPayloadBytes is ${describeValue(maxPayloadBytes)}, but must be a whole number from 1 to ${MAX_PAYLOAD_BYTES}`,
        ]),
    ...(typeof schema === 'string' && schema !== ''
      ? []
      : [`schema is ${describeValue(schema)}, but must be the name of a schema`]),
    ...(typeof schemas === 'object' || schemas === undefined
      ? []
      : [`events is ${describeValue(schemas)}, but must be an object of schemas, one for each type`]),
    ...Object.entries(schemas ?? {}).flatMap(([type, each]) =>
      isStandardSchema(each) ? [] : [`events[${JSON.stringify(type)}] is no Standard Schema (version 1)`],
    ),
  ]
  if (problems.length === 0) return { schema, schemas, maxPayloadBytes }
  throw new LeaseholdError('SETTING_INVALID', `The options of ${creator}: ${problems.join('; ')}.`, {
    remedy: 'Correct the options named.',
  })
}

/** The rules for the events of one producer. */
export interface EventRules {
  readonly maxPayloadBytes: number
  /** If given, only types that have a schema may be written. */
  readonly schemas: EventSchemas | undefined
  /** What the events are written to, as messages name it: `this outbox`. */
  readonly target: string
  /** How they are written, as messages name it: `enqueue`. */
  readonly verb: string
}

/** Checks the fields that only one application's events have, and returns them or the problems with them. */
export type CheckOwn<Own> = (
  event: Readonly<Record<string, unknown>>,
  label: string,
) => { readonly problems: readonly string[]; readonly own: Own }

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
}

/** Checks all events, and refuses all of them if there is a problem with one. */
export async function checkEvents<Own extends object>(
  events: readonly unknown[],
  labelOf: (index: number) => string,
  rules: EventRules,
  checkOwn: CheckOwn<Own>,
): Promise<readonly (CheckedEvent & Own)[]> {
  const check = (event: unknown, i: number, applied?: AppliedPayload): Check<Own> =>
    checkEvent(event, labelOf(i), rules, checkOwn, applied)
  // Without schemas there is nothing to wait for: a promise for each event would cost more than its checks.
  const checks =
    rules.schemas === undefined
      ? events.map((event, i) => check(event, i))
      : await Promise.all(
          events.map(async (event, i) => check(event, i, await appliedPayload(event, labelOf(i), rules))),
        )
  const problems = checks.flatMap((check) => check.problems)
  if (problems.length > 0) throw refusal(problems, rules)
  const checked = checks.flatMap(({ event }) => (event === undefined ? [] : [event]))
  for (const [i, { type, payload }] of checked.entries()) refuseTooLarge(type, payload, labelOf(i), rules)
  return checked
}

interface Check<Own> {
  readonly problems: readonly string[]
  readonly event?: CheckedEvent & Own
}

/** A payload as its schema returns it, or what the schema found. */
type AppliedPayload = Awaited<ReturnType<typeof applySchema>>

async function appliedPayload(
  event: unknown,
  label: string,
  { schemas }: EventRules,
): Promise<AppliedPayload | undefined> {
  if (typeof event !== 'object' || event === null || schemas === undefined) return undefined
  // The fields have unknown types.
  const { type, payload } = event as Readonly<Record<string, unknown>>
  const schema = typeof type === 'string' ? schemaFor(schemas, type) : undefined
  return schema === undefined ? undefined : applySchema(schema, payload, `${label}.payload`)
}

function checkEvent<Own extends object>(
  given: unknown,
  label: string,
  rules: EventRules,
  checkOwn: CheckOwn<Own>,
  appliedBySchema: AppliedPayload | undefined,
): Check<Own> {
  if (typeof given !== 'object' || given === null) {
    return {
      problems: [`${label} is ${describeValue(given)}, but must be an object such as { type, payload }`],
    }
  }
  // The fields have unknown types until each has been checked.
  const event = given as Readonly<Record<string, unknown>>
  const { type, orderingKey, availableAt, eventId } = event
  const own = checkOwn(event, label)
  const headers = event['headers'] ?? {}
  const applied = appliedBySchema ?? { payload: event['payload'] }
  const payload = 'problems' in applied ? undefined : payloadText(applied.payload, `${label}.payload`)
  const problems = [
    ...checkType(`${label}.type`, type),
    ...(appliedBySchema === undefined && rules.schemas !== undefined ? unknownType(label, type, rules) : []),
    ...('problems' in applied ? applied.problems : []),
    ...(payload !== undefined && 'problem' in payload ? [payload.problem] : []),
    ...(orderingKey === undefined ? [] : checkOrderingKey(`${label}.orderingKey`, orderingKey)),
    ...checkHeaders(`${label}.headers`, headers),
    ...(availableAt === undefined ? [] : checkDate(`${label}.availableAt`, availableAt)),
    ...(eventId === undefined ? [] : checkEventId(`${label}.eventId`, eventId)),
    ...own.problems,
  ]
  if (problems.length > 0 || payload === undefined || 'problem' in payload) return { problems }
  const checked = {
    type,
    payload: payload.text,
    orderingKey,
    headers,
    availableAt: availableAt instanceof Date ? availableAt.toISOString() : undefined,
    eventId: typeof eventId === 'string' ? eventId.toLowerCase() : undefined,
  }
  // Each field has been checked above.
  return { problems, event: { ...(checked as CheckedEvent), ...own.own } }
}

function unknownType(label: string, type: unknown, { schemas = {}, target }: EventRules): string[] {
  // An empty or missing type is reported by checkType.
  if (typeof type !== 'string' || type === '') return []
  return [
    `${label}.type is ${describeValue(type)}, but the types of ${target} are ${Object.keys(schemas).join(', ')}`,
  ]
}

function schemaFor(schemas: EventSchemas, type: string): EventSchemas[string] | undefined {
  return Object.hasOwn(schemas, type) ? schemas[type] : undefined
}

function refuseTooLarge(type: string, payload: string, label: string, { maxPayloadBytes }: EventRules): void {
  const bytes = storedBytes(payload, maxPayloadBytes)
  if (bytes <= maxPayloadBytes) return
  throw new LeaseholdError(
    'EVENT_TOO_LARGE',
    `Nothing was written: ${label}.payload of type ${type} has ${bytes} bytes, and at most maxPayloadBytes = ${maxPayloadBytes} are allowed.`,
    {
      remedy:
        maxPayloadBytes < MAX_PAYLOAD_BYTES
          ? 'Store what is large elsewhere and send its address, or raise maxPayloadBytes.'
          : 'Store what is large elsewhere and send its address.',
    },
  )
}

const MAX_PROBLEMS_SHOWN = 20

function refusal(problems: readonly string[], { verb }: EventRules): LeaseholdError {
  const more = problems.length - MAX_PROBLEMS_SHOWN
  const listed = problems.slice(0, MAX_PROBLEMS_SHOWN).join('; ')
  return new LeaseholdError(
    'EVENT_INVALID',
    `Nothing was written: ${listed}${more > 0 ? `; and ${more} more` : ''}.`,
    { remedy: `Correct the fields named and ${verb} again.` },
  )
}

/* The problems with one field, as sentences that name its path. */

const UUID = /^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$/i

export function checkEventId(path: string, value: unknown): string[] {
  return typeof value === 'string' && UUID.test(value)
    ? []
    : [`${path} is ${describeValue(value)}, but must be a uuid`]
}

export function checkType(path: string, value: unknown): string[] {
  const problems = checkText(path, value, 'the name of what happened, such as order.paid')
  if (problems.length > 0 || typeof value !== 'string') return problems
  const size = Buffer.byteLength(value)
  return size <= MAX_TYPE_BYTES
    ? []
    : [
        `${path} is ${shortened(value)} and has ${size} bytes, and at most ${MAX_TYPE_BYTES} are allowed: give a name, and data in the payload`,
      ]
}

export function checkText(path: string, value: unknown, what: string): string[] {
  if (typeof value !== 'string' || value === '')
    return [`${path} is ${describeValue(value)}, but must be ${what}`]
  const problem = unstorable(value)
  return problem === undefined ? [] : [`${path} contains ${problem} (it is ${describeValue(value)})`]
}

function checkOrderingKey(path: string, value: unknown): string[] {
  const bytes = typeof value === 'string' ? Buffer.byteLength(value) : 0
  return bytes > MAX_ORDERING_KEY_BYTES
    ? [
        `${path} is ${shortened(value)} and has ${bytes} bytes, but can have at most ${MAX_ORDERING_KEY_BYTES}: give an id, or a hash of the text`,
      ]
    : checkText(path, value, 'a text such as a customer’s id, or left out')
}

// oxlint-disable-next-line no-control-regex -- control characters are what it searches for
const CONTROL = /[\u0000-\u001f\u007f]/
// oxlint-disable-next-line no-control-regex -- as above, except for the tab
const CONTROL_EXCEPT_TAB = /[\u0000-\u0008\u000a-\u001f\u007f]/

/**
 * Line breaks are refused because HTTP and NATS refuse them, or let them start another header. Values are not shown: they
 * may be secrets.
 */
function checkHeaders(path: string, headers: unknown): string[] {
  if (!isPlainObject(headers)) {
    return [`${path} is ${describeValue(headers)}, but must be a plain object of texts`]
  }
  const problems = Object.entries(headers).flatMap(([name, value]: [string, unknown]) => {
    const at = pathOf(path, [name])
    if (name === '') return [`${path} has a header without a name`]
    if (CONTROL.test(name) || !name.isWellFormed())
      return [`${path} has a control character in the name ${describeValue(name)}`]
    if (typeof value !== 'string')
      return [`${at} is of type ${value === null ? 'null' : typeof value}, but must be a text`]
    if (CONTROL_EXCEPT_TAB.test(value))
      return [`${at} contains a control character, which headers cannot carry`]
    return value.isWellFormed() ? [] : [`${at} contains half a surrogate pair, which PostgreSQL cannot store`]
  })
  const bytes = problems.length > 0 ? 0 : storedBytes(JSON.stringify(headers), MAX_HEADERS_BYTES)
  return bytes > MAX_HEADERS_BYTES
    ? [`${path} have ${bytes} bytes, but can have at most ${MAX_HEADERS_BYTES}: put data into the payload`]
    : problems
}

function checkDate(path: string, value: unknown): string[] {
  if (!(value instanceof Date)) return [`${path} is ${describeValue(value)}, but must be a Date`]
  const year = value.getUTCFullYear()
  return year >= 1 && year <= 9999
    ? []
    : [`${path} is ${describeValue(value)}, but must be a valid Date up to the year 9999`]
}

export function isWhole(value: unknown, from: number, to: number): boolean {
  return typeof value === 'number' && Number.isInteger(value) && value >= from && value <= to
}

/** The beginning of a text that is too long. */
function shortened(value: unknown): string {
  return inspect(value, { maxStringLength: 40 })
}
