import { LeaseholdError } from '../errors.ts'
import { isWhole } from './validate-fields.ts'
import type { EventSchemas } from './validate-schema.ts'

/** What all who write events can be told about them. */
export interface ProducerOptions<Schemas = EventSchemas> {
  /** Where the migrations put the tables. Default `leasehold`. */
  readonly schema?: string | undefined
  /**
   * A Standard Schema (Zod, Valibot, ArkType, …) for each event type. A payload is checked before anything is written,
   * and what its schema returns is what is written. Types that have no schema are refused.
   */
  readonly events?: Schemas | undefined
  /** The largest payload, in bytes of JSON as PostgreSQL writes it. Default and maximum 262,144 (256 KiB). */
  readonly maxPayloadBytes?: number | undefined
}

export interface ProducerRules {
  readonly schema: string
  readonly schemas: EventSchemas | undefined
  readonly maxPayloadBytes: number
}

/** The tables take no more. */
export const LARGEST_PAYLOAD = 262_144

/** The options, complete; refused with everything that is wrong, `further` included. */
export function producerRules(
  creator: string,
  options: ProducerOptions,
  further: readonly string[] = [],
): ProducerRules {
  const { schema = 'leasehold', events: schemas, maxPayloadBytes = LARGEST_PAYLOAD } = options
  const problems = [
    ...further,
    ...(isWhole(maxPayloadBytes, 1, LARGEST_PAYLOAD)
      ? []
      : [`maxPayloadBytes is ${maxPayloadBytes}, but must be a whole number from 1 to ${LARGEST_PAYLOAD}`]),
    ...(schema === '' ? [`schema is '', but must be the name of a schema`] : []),
    ...Object.entries(schemas ?? {}).flatMap(([type, each]) =>
      isStandardSchema(each) ? [] : [`events[${JSON.stringify(type)}] is no Standard Schema (version 1)`],
    ),
  ]
  if (problems.length === 0) return { schema, schemas, maxPayloadBytes }
  throw new LeaseholdError('SETTING_INVALID', `The options of ${creator}: ${problems.join('; ')}.`, {
    remedy: 'Correct the options named.',
  })
}

function isStandardSchema(schema: unknown): boolean {
  if ((typeof schema !== 'object' && typeof schema !== 'function') || schema === null) return false
  const standard: unknown = Reflect.get(schema, '~standard')
  return typeof standard === 'object' && standard !== null && Reflect.get(standard, 'version') === 1
}
