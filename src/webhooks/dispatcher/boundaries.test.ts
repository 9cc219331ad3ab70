import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { expect, it } from 'vitest'

const SOURCE = fileURLToPath(new URL('../../', import.meta.url))
/** These do not touch leased rows: the registry, its stored settings and worker ids, which workers live or are dead, and the wake-up of others. */
const STORES = new Set([
  'worker/registry/registry.ts',
  'worker/registry/stored-settings.ts',
  'worker/registry/worker-id.ts',
  'worker/reaper/living-owners.ts',
  'worker/reaper/dead-workers.ts',
  'worker/reaper/wake-others.ts',
])
/** Statements belong into the lease store and into files named *-sql.ts. */
const WITHOUT_SQL = ['webhooks/dispatcher', 'worker'].flatMap((folder) =>
  readdirSync(`${SOURCE}${folder}`, { encoding: 'utf8', recursive: true })
    .filter((file) => file.endsWith('.ts') && !/\.test\.ts$|-sql\.ts$/.test(file))
    .map((file) => `${folder}/${file}`)
    .filter((file) => !STORES.has(file)),
)
const STATEMENT =
  /['"`]\s*(?:with\s[^'"`]*\bas\b|select\b|insert\s+into\b|update\s+(?:\$\{|\S+\s+(?:as\s+\w+\s+)?set\b)|delete\s+from\b|merge\s+into\b|truncate\b|lock\s+table\b|alter\s|create\s|drop\s)[^'"`]{0,60}/gi

/** The beginnings of texts that are SQL, on whichever line of a text the statement begins. */
function sqlIn(source: string): string[] {
  // Comments, also those of SQL, stand before statements. A URL such as https://… is not a comment.
  const code = source
    .replaceAll(/\/\*[\s\S]*?\*\/\s*/g, '')
    .replaceAll(/^\s*\/\/.*$/gm, '')
    .replaceAll(/(^|`)\s*--.*$/gm, '$1')
  return code.match(STATEMENT) ?? []
}

it('WH-NFR-006: neither the dispatcher nor the worker contains SQL', () => {
  expect(WITHOUT_SQL).toContain('webhooks/dispatcher/dispatcher.ts')
  expect(WITHOUT_SQL).toContain('worker/worker.ts')
  expect(WITHOUT_SQL).toContain('worker/heartbeat/renewal.ts')
  const found = WITHOUT_SQL.flatMap((file) =>
    sqlIn(readFileSync(`${SOURCE}${file}`, 'utf8')).map((line) => `${file}: ${line.trim()}`),
  )
  expect(found).toEqual([])
})

it('WH-NFR-006: the search for SQL finds it where it is', () => {
  const sql = readFileSync(`${SOURCE}webhooks/dispatcher/endpoint-cache-sql.ts`, 'utf8')
  expect(sqlIn(sql).length).toBeGreaterThanOrEqual(5)
  for (const text of [
    "await tx.query({ text: 'update leasehold.webhook_outbox set x = 1' })",
    'const text = `\n  update ${table}\n set x = 1`',
    'const text = `/* leasehold:renew */\nwith held as materialized (\n select 1)`',
    'const text = `-- why\n-- and why\n  delete from t`',
    "db.query('lock table t')",
  ])
    expect(sqlIn(text), text).toHaveLength(1)
})

it('WH-NFR-006: the dispatcher accesses deliveries through the lease table only', () => {
  const named = WITHOUT_SQL.filter((file) =>
    /['"`.](?:webhook_outbox|webhook_attempts)\b/.test(readFileSync(`${SOURCE}${file}`, 'utf8')),
  )
  expect(named).toEqual([])
})
