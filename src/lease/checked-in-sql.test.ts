import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, expect, it } from 'vitest'
import { sqlFiles } from '../../scripts/sql.mjs'
import { useDatabase } from '../../test/support/database.ts'
import { outboxTable } from '../outbox/table.ts'
import { openDatabase } from '../postgres/database.ts'
import { chunkTable, jobTable } from '../sync/table.ts'
import { webhookTable } from '../webhooks/table.ts'
import { inspectTable } from './inspect.ts'
import type { LeaseStatement } from './statement.ts'
import { allStatements, leaseStatements } from './statements.ts'

const DIRECTORY = fileURLToPath(new URL('../../docs/sql', import.meta.url))
const db = openDatabase({ url: useDatabase().url })
afterAll(async () => db.close())

it('the statements of our own tables are those in docs/sql, which npm run sql writes', async () => {
  const statements = new Map<string, LeaseStatement[]>()
  for (const table of [outboxTable(), webhookTable(), jobTable(), chunkTable()]) {
    const inspection = await inspectTable(db, table)
    if (inspection.found !== 'table') throw new Error(`${table.name} is missing`)
    statements.set(table.name, allStatements(leaseStatements(table, inspection.shape)))
  }
  const entries = await readdir(DIRECTORY, { recursive: true, withFileTypes: true })
  const paths = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name))
  const checkedIn = new Map<string, string>()
  for (const path of paths) checkedIn.set(path.slice(DIRECTORY.length + 1), await readFile(path, 'utf8'))
  const generated = sqlFiles(statements)
  expect([...checkedIn.keys()].toSorted()).toEqual([...generated.keys()].toSorted())
  for (const [path, text] of generated) expect(checkedIn.get(path), path).toBe(text)
})

it('RULE-020-040: in every statement of our own tables each row lock skips what is locked, and every claim locks its rows so', async () => {
  for (const table of [outboxTable(), webhookTable(), jobTable(), chunkTable()]) {
    const inspection = await inspectTable(db, table)
    if (inspection.found !== 'table') throw new Error(`${table.name} is missing`)
    for (const { purpose, text } of allStatements(leaseStatements(table, inspection.shape))) {
      const locks: readonly string[] = text.match(/\bfor (?:no key )?(?:key )?(?:update|share).*$/gim) ?? []
      for (const lock of locks) expect(lock, `${table.name}: ${purpose}`).toMatch(/ skip locked$/)
      const isClaim = /\bclaim\b/.test(purpose)
      expect(locks.includes('for update skip locked') || !isClaim, `${table.name}: ${purpose}`).toBe(true)
    }
  }
})
