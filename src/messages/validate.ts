import { LeaseholdError } from '../errors.ts'
import {
  checkDate,
  checkEventId,
  checkHeaders,
  checkOrderingKey,
  checkType,
  shown,
  storedBytes,
} from './validate-fields.ts'
import { LARGEST_PAYLOAD } from './rules.ts'
import { payloadText } from './validate-payload.ts'
import { applySchema, type EventSchemas } from './validate-schema.ts'

/** What the events of one producer have to keep to. */
export interface EventRules {
  readonly maxPayloadBytes: number
  /** With them only the types that have one may be written. */
  readonly schemas: EventSchemas | undefined
  /** Where its events go, as messages name it: `this outbox`. */
  readonly place: string
  /** What is done with events there, as messages name it: `enqueue`. */
  readonly verb: string
}

/** Looks at the fields that only the events of one place have: what is wrong with them, or what they come to. */
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

/** Looks at all events, and refuses all if there is anything wrong with one. */
export async function checkEvents<Own extends object>(
  events: readonly unknown[],
  labelOf: (index: number) => string,
  rules: EventRules,
  checkOwn: CheckOwn<Own>,
): Promise<readonly (CheckedEvent & Own)[]> {
  const checks = await Promise.all(
    events.map(async (event, i) => checkEvent(event, labelOf(i), rules, checkOwn)),
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

async function checkEvent<Own extends object>(
  given: unknown,
  label: string,
  rules: EventRules,
  checkOwn: CheckOwn<Own>,
): Promise<Check<Own>> {
  if (typeof given !== 'object' || given === null) {
    return { problems: [`${label} is ${shown(given)}, but must be an object such as { type, payload }`] }
  }
  // Its fields are unknown until each has been looked at.
  const event = given as Readonly<Record<string, unknown>>
  const { type, orderingKey, availableAt, eventId } = event
  const own = checkOwn(event, label)
  const headers = event['headers'] ?? {}
  const schema =
    typeof type === 'string' && rules.schemas !== undefined ? ownEntry(rules.schemas, type) : undefined
  const path = `${label}.payload`
  const applied =
    schema === undefined ? { payload: event['payload'] } : await applySchema(schema, event['payload'], path)
  const payload = 'problems' in applied ? undefined : payloadText(applied.payload, path)
  const problems = [
    ...checkType(`${label}.type`, type),
    ...(schema === undefined && rules.schemas !== undefined ? unknownType(label, type, rules) : []),
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
  // Each field was just looked at.
  return { problems, event: { ...(checked as CheckedEvent), ...own.own } }
}

function unknownType(label: string, type: unknown, { schemas = {}, place }: EventRules): string[] {
  // An empty or missing type has been told of already.
  if (typeof type !== 'string' || type === '') return []
  return [`${label}.type is ${shown(type)}, but the types of ${place} are ${Object.keys(schemas).join(', ')}`]
}

function ownEntry(schemas: EventSchemas, type: string): EventSchemas[string] | undefined {
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
        maxPayloadBytes < LARGEST_PAYLOAD
          ? 'Store what is large elsewhere and send its address, or raise maxPayloadBytes.'
          : 'Store what is large elsewhere and send its address.',
    },
  )
}

const SHOWN_PROBLEMS = 20

function refusal(problems: readonly string[], { verb }: EventRules): LeaseholdError {
  const more = problems.length - SHOWN_PROBLEMS
  const told = problems.slice(0, SHOWN_PROBLEMS).join('; ')
  return new LeaseholdError(
    'EVENT_INVALID',
    `Nothing was written: ${told}${more > 0 ? `; and ${more} more` : ''}.`,
    { remedy: `Correct the fields named and ${verb} again.` },
  )
}
