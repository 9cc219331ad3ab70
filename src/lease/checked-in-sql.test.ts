import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, it } from 'vitest'
import { sqlFiles } from '../../scripts/sql.mjs'
import { useDatabase } from '../../test/support/database.ts'
import { plan, statementsOf } from '../../test/support/statement-plans.ts'
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
  const onCitus = new Map<string, LeaseStatement[]>()
  for (const table of [outboxTable(), webhookTable(), jobTable(), chunkTable()]) {
    const inspection = await inspectTable(db, table)
    if (inspection.found !== 'table') throw new Error(`${table.name} is missing`)
    const { shape } = inspection
    statements.set(table.name, allStatements(leaseStatements(table, shape)))
    onCitus.set(table.name, allStatements(leaseStatements(table, { ...shape, distributed: true })))
  }
  const entries = await readdir(DIRECTORY, { recursive: true, withFileTypes: true })
  const paths = entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name))
  const checkedIn = new Map<string, string>()
  for (const path of paths) checkedIn.set(path.slice(DIRECTORY.length + 1), await readFile(path, 'utf8'))
  const generated = sqlFiles(statements, onCitus)
  expect([...checkedIn.keys()].toSorted()).toEqual([...generated.keys()].toSorted())
  for (const [path, text] of generated) expect(checkedIn.get(path), path).toBe(text)
  const long = [...generated].filter(([path, text]) => path.endsWith('.sql') && /.{121}/.test(text))
  expect(
    long.map(([path]) => path),
    'files with a line of more than 120 characters',
  ).toEqual([])
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

it('no statement compares each row that it has read with each that it has found: 16,000 with 5,000 took two seconds', async () => {
  for (const table of [outboxTable(), webhookTable(), jobTable(), chunkTable()]) {
    for (const statement of await statementsOf(db, table)) {
      const nodes = await plan(db, statement, 'generic', {})
      const joins = nodes.filter((node) => Reflect.get(node, 'Join Type') === 'Semi')
      expect(joins, `${table.name}: ${statement.purpose}`).toEqual([])
    }
  }
})

describe.each([outboxTable(), webhookTable()])('where Citus distributes $name', (table) => {
  async function statementsOnCitus(): Promise<LeaseStatement[]> {
    const inspection = await inspectTable(db, table)
    if (inspection.found !== 'table') throw new Error(`${table.name} is missing`)
    return allStatements(leaseStatements(table, { ...inspection.shape, distributed: true }))
  }
  /** How often the statement reads or writes the table. */
  const usesIn = (text: string): number =>
    text.match(new RegExp(String.raw`\b(?:from|update) leasehold\.${table.name}\b`, 'g'))?.length ?? 0
  const concernsAll = ({ purpose }: LeaseStatement): boolean => purpose.endsWith(' buckets')

  it('every statement but those that find buckets names one bucket wherever it uses the table', async () => {
    const statements = (await statementsOnCitus()).filter((each) => !concernsAll(each))
    expect(statements.length).toBeGreaterThan(10)
    for (const { purpose, text } of statements) {
      const named = text.match(/\bbucket = \$\d+::smallint/g) ?? []
      expect(new Set(named.map((condition) => condition.replace(/^.*\$/, ''))).size, purpose).toBe(1)
      expect(named.length, purpose).toBeGreaterThanOrEqual(usesIn(text))
    }
  })

  it('each node finds its own buckets, without a recursive query', async () => {
    const statements = (await statementsOnCitus()).filter(concernsAll)
    expect(statements).toHaveLength(2)
    for (const { purpose, text } of statements) {
      expect(text, purpose).not.toContain('recursive')
      expect(text.match(/t\.bucket = buckets\.bucket/g), purpose).toHaveLength(usesIn(text))
    }
  })

  it('no statement has what Citus refuses: INSERT, a volatile function, a value of the time and a column', async () => {
    for (const { purpose, text } of await statementsOnCitus()) {
      expect(text, purpose).not.toMatch(/\b(?:insert into|delete from|merge into)\b/)
      expect(text, purpose).not.toMatch(/\b(?:random|clock_timestamp|nextval|gen_random_uuid)\(/)
      const evaluated = assignmentsIn(text).filter((value) => /now\(\)|jsonb_build_/.test(value))
      const refused = evaluated.filter((value) => !ACCEPTED.test(value))
      expect(refused, purpose).toEqual([])
    }
  })

  it('every UPDATE returns columns only: Citus refuses functions there that are not immutable', async () => {
    const statements = await statementsOnCitus()
    const returned = statements.flatMap(({ text }) => [...text.matchAll(/\breturning ([^]*?)(?=\n\s*\)|$)/g)])
    expect(returned.length).toBeGreaterThanOrEqual(10)
    for (const [, columns] of returned) expect(columns).not.toContain('(')
  })
})

/** In a subquery, or without a column; of greatest() the arguments count one by one. */
const ACCEPTED =
  /^(?:\(select [\s\S]*\)|(?:greatest\([\w.]+, )?now\(\)(?: [+-] \$\d+::float8 \* interval '1 millisecond')?\)?)$/

/** What each UPDATE of the statement assigns: the text between SET and WHERE, divided at the commas between assignments. */
function assignmentsIn(text: string): string[] {
  const plain = text.replaceAll(/ *--.*/g, '')
  const sets = [...plain.matchAll(/\n {2}set ([\s\S]*?)\n {2}where /g)].map(([, set = '']) => set)
  return sets.flatMap((set) => set.split(/,\s+(?=[a-z_]+ = )/).map((one) => one.replace(/^[a-z_]+ = /, '')))
}
