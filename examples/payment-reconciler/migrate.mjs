// Leasehold's own schema, then the application's, then a database role for each service: what a deployment runs once,
// before anything else, as the owner of the tables.
import { readdir, readFile } from 'node:fs/promises'
import { migrate, openDatabase } from 'leasehold'
import { ACCOUNTS, createAccount } from './accounts.mjs'
import { databaseUrlOf } from './settings.mjs'

const migrations = new URL('migrations/', import.meta.url)
const db = openDatabase({ url: databaseUrlOf(), maxConnections: 1 })
try {
  const { version } = await migrate(db)
  process.stdout.write(`Leasehold's schema is at version ${version}.\n`)
  for (const file of (await readdir(migrations)).sort()) {
    const sql = (await readFile(new URL(file, migrations), 'utf8')).replaceAll(/^--.*\n/gm, '')
    // One by one and not together: an index is not built CONCURRENTLY inside a transaction.
    for (const text of sql.split(/;\n/).filter((statement) => statement.trim() !== ''))
      await db.query({ text })
    process.stdout.write(`${file} was run.\n`)
  }
  for (const account of ACCOUNTS) {
    const password = process.env[account.password]
    if (password) await createAccount(db, account, password)
  }
} finally {
  await db.close()
}
