/** Requests that the schemas of a route accept, made from its part of the OpenAPI document. */
import { z } from 'zod'
import type { Route } from '../../src/server/api/route.ts'

type Json = Readonly<Record<string, unknown>>

/** Nothing has this id. */
export const UNKNOWN_UUID = '00000000-0000-4000-8000-000000000001'
export const UNKNOWN_NUMBER = '9223372036854775807'

const TEXTS = [
  'sample',
  UNKNOWN_NUMBER,
  UNKNOWN_UUID,
  '2100-01-01T00:00:00Z',
  'https://example.com/hook',
  'sample.event',
  'true',
]

export function jsonSchemaOf(schema: z.ZodType): Json {
  return z.toJSONSchema(schema, { target: 'draft-2020-12', io: 'input', unrepresentable: 'any' })
}

/** A value with the required fields only; `withOptional`: with all of them. */
export function sampleOf(schema: Json, withOptional = false): unknown {
  if ('const' in schema) return schema['const']
  if (Array.isArray(schema['enum'])) return schema['enum'][0]
  const choices = schema['anyOf'] ?? schema['oneOf']
  if (Array.isArray(choices)) return sampleOf(choices[0] as Json, withOptional)
  switch (schema['type']) {
    case 'object': {
      const properties = (schema['properties'] ?? {}) as Readonly<Record<string, Json>>
      const required = (schema['required'] ?? []) as readonly string[]
      return Object.fromEntries(
        Object.entries(properties)
          .filter(([name]) => withOptional || required.includes(name))
          .map(([name, property]) => [name, sampleOf(property, withOptional)]),
      )
    }
    case 'array':
      return [sampleOf((schema['items'] ?? {}) as Json, withOptional)]
    case 'integer':
    case 'number':
      return Math.max(1, Number(schema['minimum'] ?? 1))
    case 'boolean':
      return true
    case 'null':
      return null
    case 'string':
      return textFor(schema)
    default:
      return 'sample'
  }
}

function textFor({ format, pattern, maxLength = Infinity }: Json): string {
  const byFormat: Readonly<Record<string, string>> = {
    uuid: UNKNOWN_UUID,
    'date-time': '2100-01-01T00:00:00Z',
    uri: 'https://example.com/hook',
  }
  if (typeof format === 'string' && byFormat[format] !== undefined) return byFormat[format]
  const fits = (text: string): boolean =>
    text.length <= Number(maxLength) && (typeof pattern !== 'string' || new RegExp(pattern, 'u').test(text))
  const text = TEXTS.find(fits)
  if (text === undefined) throw new Error(`no sample fits ${JSON.stringify({ pattern, maxLength })}`)
  return text
}

/** The path with ids that nothing has. */
export function samplePath({ path, params }: Pick<Route, 'path' | 'params'>): string {
  const values = (params === undefined ? {} : sampleOf(jsonSchemaOf(params), true)) as Record<string, string>
  return path.replaceAll(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(values[name] ?? 'sample'))
}

/** With the required fields; where there are none, with the first of the others that is accepted alone. */
export function sampleBody({ body }: Pick<Route, 'body'>): unknown {
  if (body === undefined) return undefined
  const schema = jsonSchemaOf(body)
  const sample = sampleOf(schema)
  if (typeof sample !== 'object' || sample === null || Object.keys(sample).length > 0) return sample
  const optional = Object.entries(Object(sampleOf(schema, true)))
    // What is a good URL depends on more than its schema.
    .filter(([name]) => name !== 'url')
    .map(([name, value]) => ({ [name]: value }))
  return optional.find((each) => body.safeParse(each).success) ?? sample
}
