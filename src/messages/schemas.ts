/** The types of payloads: given as a map of types, or derived from Standard Schemas, which also check them. */
import { pathOf } from './json.ts'

/** Event type → its payload: `{ 'order.paid': { id: string } }`. */
export type EventPayloads = object

/** Any JSON, for those who do not type their events. */
export type AnyPayloads = Readonly<Record<string, unknown>>

/**
 * The part of Standard Schema v1 (standardschema.dev) that is used here. Zod, Valibot, ArkType, Effect Schema and many
 * others implement it.
 */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>
    readonly types?: { readonly input: Input; readonly output: Output } | undefined
  }
}

type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly SchemaIssue[] }

interface SchemaIssue {
  readonly message: string
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined
}

/** One schema for each event type. */
export type EventSchemas = Readonly<Record<string, StandardSchema>>

/** The schemas for known payloads: each schema takes its payload as input. */
export type SchemasOf<Payloads extends EventPayloads> = {
  readonly [Type in keyof Payloads & string]: StandardSchema<Payloads[Type], unknown>
}

/** The payloads for known schemas: the input of each schema. */
export type PayloadsOf<Schemas extends EventSchemas> = {
  [Type in keyof Schemas & string]: NonNullable<Schemas[Type]['~standard']['types']>['input']
}

export function isStandardSchema(schema: unknown): boolean {
  if ((typeof schema !== 'object' && typeof schema !== 'function') || schema === null) return false
  const standard: unknown = Reflect.get(schema, '~standard')
  return typeof standard === 'object' && standard !== null && Reflect.get(standard, 'version') === 1
}

/** The payload as the schema returns it, or every problem that the schema reports. */
export async function applySchema(
  schema: StandardSchema,
  payload: unknown,
  path: string,
): Promise<{ readonly payload: unknown } | { readonly problems: readonly string[] }> {
  const result = await schema['~standard'].validate(payload)
  if (result.issues === undefined) return { payload: result.value }
  if (result.issues.length === 0)
    return { problems: [`${path}: its schema refuses it, and does not say why`] }
  const problems = result.issues.map(({ message, path: keys = [] }) => {
    const plain = keys.map((key) => (typeof key === 'object' ? key.key : key))
    return `${pathOf(path, plain)}: ${message}`
  })
  return { problems }
}
