/** The OpenAPI document: a linter accepts it, it says what the routes say, and what is checked in is current. */
import { readFile } from 'node:fs/promises'
import { createConfig, lintFromString } from '@redocly/openapi-core'
import { describe, expect, it } from 'vitest'
import { openApiFiles } from '../../../scripts/openapi.mjs'
import { packageVersion } from '../../package-files.ts'
import { openApiDocument } from './openapi.ts'
import { ROUTES } from './resources/index.ts'

interface Operation {
  readonly operationId: string
  readonly summary: string
  readonly description: string
  readonly tags: readonly string[]
  readonly security?: readonly object[]
  readonly responses: Readonly<Record<string, object>>
}

const document = openApiDocument(ROUTES, { basePath: '/api/v1', version: packageVersion() }) as {
  readonly security: readonly object[]
  readonly tags: readonly { readonly name: string; readonly description: string }[]
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>
}

const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({
    name: `${method.toUpperCase()} ${path}`,
    operation,
  })),
)

/** What the linter finds in a document. */
async function problemsIn(source: object): Promise<string[]> {
  const config = await createConfig({
    extends: ['recommended-strict'],
    rules: {
      'tag-description': 'error',
      'tags-alphabetical': 'off',
      'operation-description': 'error',
      'operation-singular-tag': 'error',
      'operation-operationId': 'error',
      'operation-operationId-unique': 'error',
      'operation-operationId-url-safe': 'error',
      'no-invalid-parameter-examples': 'error',
      'no-invalid-schema-examples': 'error',
      'no-invalid-media-type-examples': 'error',
      'no-unused-components': 'error',
      'path-parameters-defined': 'error',
    },
  })
  const problems = await lintFromString({ source: JSON.stringify(source), config })
  return problems.map(({ ruleId, message, location }) => `${ruleId}: ${message} (${location[0]?.pointer})`)
}

it('a linter finds nothing in the document', async () => {
  expect(await problemsIn(document)).toEqual([])
})

it.each([
  [
    'a reference that leads nowhere',
    'no-unresolved-refs',
    '#/components/responses/Invalid',
    '#/components/responses/Nothing',
  ],
  ['an operationId that is used twice', 'operation-operationId-unique', '"getOverview"', '"getWorkers"'],
  ['a parameter that the path does not have', 'path-parameters-defined', '/workers/{id}', '/workers/{other}'],
  ['an example that is not valid', 'no-invalid-schema-examples', '"examples":["4711"]', '"examples":["x"]'],
])('the linter would find %s', async (_, rule, part, broken) => {
  const text = JSON.stringify(document)
  expect(text).toContain(part)
  const problems = await problemsIn(JSON.parse(text.replaceAll(part, broken)))
  expect(problems.join('\n')).toContain(rule)
})

describe('every operation', () => {
  it.each(operations)('$name says what it does, who may do it, and how it fails', ({ name, operation }) => {
    const route = ROUTES.find(({ method, path }) => `${method} ${path}` === name)
    expect(route).toBeDefined()
    expect(operation.summary).toMatch(/^[A-Z].*[^.]$/)
    expect(operation.tags).toHaveLength(1)
    expect(document.tags.find((tag) => tag.name === operation.tags[0])?.description).not.toMatch(/^Concerns /)
    expect(operation.security ?? document.security).toEqual(route?.isOpen === true ? [] : [{ key: [] }])
    const statuses = Object.keys(operation.responses).map(Number)
    expect(statuses).toContain(route?.status)
    const needed = [
      401,
      422,
      429,
      503,
      ...(route?.isOpen === true ? [] : [403]),
      ...(route?.params === undefined ? [] : [404]),
      ...(route?.method === 'GET' ? [] : [409, 413]),
    ]
    expect(statuses).toEqual(expect.arrayContaining(needed))
  })

  it('has an id of its own', () => {
    const ids = operations.map(({ operation }) => operation.operationId)
    expect(new Set(ids).size).toBe(ids.length)
    expect(ids).toHaveLength(ROUTES.length)
  })
})

it('docs/openapi.json and the types of the client are current; npm run openapi writes them', async () => {
  for (const [name, text] of Object.entries(await openApiFiles(document)))
    // Not toBe: the difference would be thousands of lines.
    expect((await readFile(new URL(`../../../${name}`, import.meta.url), 'utf8')) === text, name).toBe(true)
})
