// Writes schema.sql: the schema after all migrations, as PostgreSQL 18 prints it; and migrations/schema.json, the snapshot
// with which `leasehold doctor` compares. Uses the server of DATABASE_URL when it
// is set (in a schema of its own, which is dropped afterwards; the user must be allowed to create roles), and an embedded
// PostgreSQL in a temporary directory otherwise. Run `npm run build` first.
import { randomBytes } from 'node:crypto'
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { makeSnapshot } from '../dist/doctor/schema/snapshot.js'
import { startEmbedded } from '../dist/embedded/index.js'
import {
  describeSchema,
  migrate,
  openDatabase,
  quoteIdentifier,
  SCHEMA_FILE_HEADER,
} from '../dist/postgres/index.js'

const file = new URL('../schema.sql', import.meta.url)
const snapshotFile = new URL('../migrations/schema.json', import.meta.url)

async function writeSchema(url) {
  const db = openDatabase({ url, applicationName: 'leasehold schema' })
  const schema = `leasehold_schema_${randomBytes(4).toString('hex')}`
  try {
    const { version } = await migrate(db, { schema })
    await writeFile(file, SCHEMA_FILE_HEADER + (await describeSchema(db, schema)))
    await writeFile(snapshotFile, `${JSON.stringify(await makeSnapshot(db), undefined, 1)}\n`)
    process.stdout.write(`schema.sql and migrations/schema.json are at version ${version}.\n`)
  } finally {
    await db.query({ text: `drop schema if exists ${quoteIdentifier(schema)} cascade` })
    await db.close()
  }
}

const given = process.env.DATABASE_URL
if (given) {
  await writeSchema(given)
} else {
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-schema-'))
  // Started by root, the server runs under another account, which must be able to enter.
  await chmod(directory, 0o755)
  try {
    const server = await startEmbedded({ directory, settings: { fsync: 'off' } })
    try {
      await writeSchema(server.url)
    } finally {
      await server.stop()
    }
  } finally {
    await rm(directory, { recursive: true, force: true })
  }
}
