import { join } from 'node:path'
import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, expect, inject, it } from 'vitest'
import { quoteIdentifier } from '../src/postgres/identifiers.ts'
import { withAdmin, withDatabase } from './support/admin.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import {
  checkTypes,
  exampleCode,
  hasSteps,
  installPackages,
  parseBlocks,
  readPages,
  runPage,
} from './support/documents.ts'
import { freePort } from './support/free-port.ts'

const pages = await readPages()
const examples = await exampleCode()
let directory = ''
let typeErrors: Promise<Map<string, string[]>>

beforeAll(async () => {
  directory = await temporaryDirectory()
  await installPackages(directory)
  typeErrors = checkTypes(pages, examples, join(directory, 'types'))
  // A failure is reported by the pages, which await it.
  typeErrors.catch(() => {})
})
afterAll(async () => removeDirectory(directory))

/** Gives a page a migrated database of its own. */
async function withPageDatabase(use: (url: string) => Promise<void>): Promise<void> {
  const clusterUrl = inject('clusterUrl')
  const name = `${inject('databasePrefix')}documents_${randomBytes(4).toString('hex')}`
  const create = `create database ${quoteIdentifier(name)} template ${quoteIdentifier(inject('templateDatabase'))}`
  await withAdmin(clusterUrl, async (admin) => void (await admin.query(create)))
  try {
    await use(withDatabase(clusterUrl, name))
  } finally {
    const drop = `drop database ${quoteIdentifier(name)} with (force)`
    await withAdmin(clusterUrl, async (admin) => void (await admin.query(drop)))
  }
}

for (const page of pages) {
  // Pages wait for processes most of the time.
  it.concurrent(`the code blocks of ${page.path} are correct, and run from top to bottom`, async () => {
    const errors = (await typeErrors).get(page.path) ?? []
    expect([...page.problems, ...parseBlocks(page, examples), ...errors]).toEqual([])
    if (!hasSteps(page)) return
    const port = await freePort()
    if (page.isEmbedded) await runPage(page, { directory, databaseUrl: undefined, port })
    else await withPageDatabase(async (databaseUrl) => runPage(page, { directory, databaseUrl, port }))
  })
}
