import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { leaseTable, openDatabase, startRuntime } from 'leasehold'

// From the start, so that a signal stops it in order at any time.
const stopped = Promise.race([once(process, 'SIGTERM'), once(process, 'SIGINT')])

const { DATABASE_URL } = process.env
const db = openDatabase({ url: DATABASE_URL })

// Your table, and the migration that `leasehold lease add` wrote. Its indexes are built one at a time.
for (const file of ['jobs.sql', 'lease.sql']) {
  const sql = await readFile(new URL(file, import.meta.url), 'utf8')
  const statements = sql.replaceAll(/^--.*\n/gm, '').split(/;\n/)
  for (const text of statements.filter((statement) => statement.trim() !== '')) await db.query({ text })
}

const jobs = leaseTable({
  table: 'public.jobs',
  id: 'id',
  lease: { owner: 'lease_owner', until: 'lease_until', token: 'lease_token' },
  claimable: "status = 'waiting'",
  order: ['id'],
  attempts: { column: false, expiries: 'lease_expiries', error: false },
  outcomes: { done: { status: "'done'" }, dead: { status: "'failed'" } },
})

const runtime = await startRuntime({
  databaseUrl: DATABASE_URL,
  migrate: true,
  workers: [{ name: 'jobs', table: jobs, handle: ({ row }) => console.log(`job ${row.id}: ${row.url}`) }],
})

await db.query({ text: "insert into jobs (url) values ('https://a.example/'), ('https://b.example/')" })

await stopped
await runtime.stop()
await db.close()
