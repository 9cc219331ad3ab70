// Writes docs/openapi.json, the document of the HTTP API, and test/fixtures/openapi.d.ts, the types that a generated client
// has. Run `npm run build` first. src/server/api/openapi.test.ts compares what is checked in.
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { astToString, generateTypes } from 'leasehold-openapi-types'

const ROOT = fileURLToPath(new URL('..', import.meta.url))

const HEADER =
  '// The types of docs/openapi.json, made by openapi-typescript. Written by `npm run openapi`.\n'

/** The files, by their names. */
export async function openApiFiles(document) {
  const text = `${JSON.stringify(document, null, 2)}\n`
  return {
    'docs/openapi.json': text,
    'test/fixtures/openapi.d.ts': `${HEADER}${astToString(await generateTypes(JSON.parse(text)))}`,
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const { openApiDocument } = await import('../dist/server/api/openapi.js')
  const { ROUTES } = await import('../dist/server/api/resources/index.js')
  const { packageVersion } = await import('../dist/package-files.js')
  const document = openApiDocument(ROUTES, { basePath: '/api/v1', version: packageVersion() })
  for (const [name, text] of Object.entries(await openApiFiles(document))) {
    await writeFile(join(ROOT, name), text)
    process.stdout.write(`${name} is written.\n`)
  }
}
