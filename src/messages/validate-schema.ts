import type { EventPayloads } from './event-payloads.ts'
import { pathOf } from './validate-path.ts'

/**
 * As much of Standard Schema v1 (standardschema.dev) as is used here. Zod, Valibot, ArkType, Effect Schema and many
 * others have it.
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

/** The schemas of events whose payloads are known already: each takes what the payload is. */
export type SchemasOf<Payloads extends EventPayloads> = {
  readonly [Type in keyof Payloads & string]: StandardSchema<Payloads[Type], unknown>
}

/** The payloads of events whose schemas are known: what each schema takes. */
export type PayloadsOf<Schemas extends EventSchemas> = {
  [Type in keyof Schemas & string]: NonNullable<Schemas[Type]['~standard']['types']>['input']
}

/** What the schema makes of a payload, or everything it has against it. */
export async function applySchema(
  schema: StandardSchema,
  payload: unknown,
  path: string,
): Promise<{ readonly payload: unknown } | { readonly problems: readonly string[] }> {
  const result = await schema['~standard'].validate(payload)
  if (result.issues === undefined) return { payload: result.value }
  if (result.issues.length === 0)
    return { problems: [`${path}: its schema refuses it, and does not say why`] }
  return { problems: result.issues.map(({ message, path: keys = [] }) => `${where(path, keys)}: ${message}`) }
}

function where(path: string, keys: NonNullable<SchemaIssue['path']>): string {
  return pathOf(
    path,
    keys.map((key) => (typeof key === 'object' ? key.key : key)),
  )
}
