// Writes docs/sql: the text of every statement of our own tables, and a table of them. Uses the server of DATABASE_URL
// when it is set (in a schema of its own, which is dropped afterwards), and an embedded PostgreSQL in a temporary
// directory otherwise. Run `npm run build` first. src/lease/checked-in-sql.test.ts compares what is checked in.
import { randomBytes } from 'node:crypto'
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'

const DIRECTORY = new URL('../docs/sql/', import.meta.url)

/** What each statement does, and which indexes of the table it reads. `{…}` stands for an index of the table. */
const PURPOSES = [
  [
    'claim next of keys',
    'Claims the first unfinished rows of the given ordering keys, as far as they can be claimed now.',
    'keys in_flight pkey',
  ],
  ['find next of keys', 'The rows that it would take.', 'keys in_flight'],
  [
    'claim arrived keys',
    'Claims the first unfinished rows of the ordering keys of the next rows that are due, from the cursor on.',
    'arrivals keys in_flight pkey',
  ],
  ['find arrived keys', 'The rows that it would take.', 'arrivals keys in_flight'],
  [
    'claim in order',
    'Claims the next due rows from the cursor on; where there are ordering keys, of those without one.',
    'pending pkey',
  ],
  [
    'find in order',
    'The rows that it would take: to find the one that stops it with a data error.',
    'pending',
  ],
  [
    'claim by group',
    'Claims from each of the given groups as many rows without an ordering key as it has room for.',
    'pending pkey',
  ],
  ['find by group', 'The rows that it would take.', 'pending'],
  [
    'claim keys by group',
    'Claims the first unfinished rows of the ordering keys of the given groups, from key to key.',
    'keys in_flight pkey',
  ],
  ['find keys by group', 'The rows that it would take.', 'keys in_flight'],
  [
    'claim rows',
    'Claims the rows that the caller names; of an ordering key only the first unfinished one.',
    'pkey keys in_flight',
  ],
  ['claim suspects', 'Claims rows under which two worker processes died.', 'suspects keys in_flight pkey'],
  ['find suspects', 'The rows that it would take.', 'suspects keys in_flight'],
  ['next due', 'In how many milliseconds the next row is due that is not yet.', 'due suspects arrivals'],
  ['renew', 'Extends the leases that are still ours and alive.', 'pkey'],
  [
    'held to renew',
    'Which of the leases that were not renewed are still ours: their rows are locked.',
    'pkey',
  ],
  ['release', 'Gives rows back as they were.', 'pkey'],
  ['held', 'Which of the leases that were not ended are still ours: their rows are locked.', 'pkey'],
  [
    'reap expired',
    'Takes back expired leases: retry, or dead when the attempts are used up.',
    'in_flight pkey',
  ],
  ['reap owned by', 'Takes back all leases of a worker that is known to be dead.', 'in_flight pkey'],
  ['find expired', 'The rows that a reap would take back: to find the one that stops it.', 'in_flight'],
  ['find owned by', 'The same for the leases of one worker.', 'in_flight'],
  [
    'waiting buckets',
    'The buckets in which rows wait, and when the first of them is due. Sent only where there are several buckets.',
    'pending suspects waiting_keys',
  ],
  [
    'leased buckets',
    'The buckets in which rows are leased. Sent before a reap by a worker that serves all buckets.',
    'in_flight',
  ],
]

/** What `reap expired` does where the table declares no maximum of attempts. */
const REAP_AS_RETRY = 'Takes back expired leases as a retry: the table declares no maximum of attempts.'

/** The indexes of each table by their role. */
const INDEXES = {
  outbox: {
    pkey: ['outbox_pkey'],
    pending: ['outbox_pending'],
    due: ['outbox_pending'],
    suspects: ['outbox_suspects'],
    arrivals: ['outbox_arrivals'],
    waiting_keys: ['outbox_arrivals'],
    keys: ['outbox_keys'],
    in_flight: ['outbox_in_flight'],
  },
  webhook_outbox: {
    pkey: ['webhook_outbox_pkey'],
    pending: ['webhook_outbox_pending'],
    due: ['webhook_outbox_pending'],
    suspects: ['webhook_outbox_suspects'],
    keys: ['webhook_outbox_keys'],
    waiting_keys: ['webhook_outbox_keys'],
    in_flight: ['webhook_outbox_in_flight'],
  },
  sync_jobs: {
    pkey: ['sync_jobs_pkey'],
    pending: ['sync_jobs_open'],
    suspects: ['sync_jobs_suspects'],
    in_flight: ['sync_jobs_leased'],
  },
  sync_checkpoints: {
    pkey: ['sync_checkpoints_pkey'],
    pending: ['sync_checkpoints_open'],
    suspects: ['sync_checkpoints_suspects'],
    in_flight: ['sync_checkpoints_leased'],
  },
}

/** The indexes that a statement of one of our tables reads. Settlements reach their rows by the primary key. */
export function indexesOf(table, purpose) {
  const [, , roles = 'pkey'] = PURPOSES.find(([name]) => name === purpose) ?? []
  // Without an ordering key nothing is probed for what is in flight.
  const isOrdered = INDEXES[table]?.keys !== undefined
  const read = roles.split(' ').filter((role) => isOrdered || role !== 'in_flight' || !roles.includes('keys'))
  return read.flatMap((role) => INDEXES[table]?.[role] ?? [])
}

/** The text of a file. The names of the parameters are not part of the statement. */
function fileText({ text, parameters }) {
  const legend = parameters.map((name, i) => `$${i + 1} ${name}`).join(', ')
  return `-- ${legend}\n${text}\n`
}

/** Path below docs/sql → text, of the statements of each table, and of those that are others where Citus distributes it. */
export function sqlFiles(statements, onCitus) {
  const files = new Map()
  const sections = []
  for (const [table, all] of statements) {
    const rows = all.map((statement) => {
      const { purpose, text } = statement
      const file = `${table}/${purpose.replaceAll(' ', '-')}.sql`
      files.set(file, fileText(statement))
      const [, does] = PURPOSES.find(([name]) => name === purpose) ?? []
      const isRetryOnly = purpose === 'reap expired' && text.includes('false as exhausted')
      const what = isRetryOnly
        ? REAP_AS_RETRY
        : (does ?? `Ends leases with the outcome \`${purpose.replace('settle ', '')}\`.`)
      const indexes = indexesOf(table, purpose).map((index) => `\`${index}\``)
      return `| [${purpose}](${file}) | ${text.split('\n').length} | ${what} | ${indexes.join(', ')} |`
    })
    sections.push(
      `## ${table}\n\n| statement | lines | what it does | indexes |\n|---|---|---|---|\n${rows.join('\n')}\n`,
    )
  }
  const others = []
  for (const [table, all] of onCitus) {
    const plain = new Set(statements.get(table)?.map(({ text }) => text))
    for (const statement of all.filter(({ text }) => !plain.has(text))) {
      const file = `citus/${table}/${statement.purpose.replaceAll(' ', '-')}.sql`
      files.set(file, fileText(statement))
      others.push(`| ${table} | [${statement.purpose}](${file}) |`)
    }
  }
  sections.push(`${CITUS}\n| table | statement |\n|---|---|\n${others.join('\n')}\n`)
  files.set('README.md', `${HEAD}\n${sections.join('\n')}`)
  return files
}

const CITUS = `## On Citus

Where Citus distributes a table ([docs/operations/scale.md](../operations/scale.md#citus)), these statements have another text: buckets are found
without a recursive query, and what an UPDATE computes from the time and from columns is in a subquery.
`

const HEAD = `# The statements of our own tables

Written by \`npm run sql\`; a test compares them with what the kernel generates. Each is one template in \`src/lease\`, and
starts with a tag by which it is recognised in \`pg_stat_activity\` and \`pg_stat_statements\`. The text is the same on
PostgreSQL 15 to 18. Why they are written as they are, and what keeps their plans stable:
[docs/decisions/002-plans.md](../decisions/002-plans.md). \`src/lease/plans.test.ts\` checks that these indexes are used, and
\`src/lease/one-bucket.test.ts\` that each statement concerns one bucket, apart from the two that find buckets.
`

/** The tables as they are by default, apart from their schema. */
export async function ownTables() {
  const [{ outboxTable }, { webhookTable }, { jobTable, chunkTable }] = await Promise.all([
    import('../dist/outbox/table.js'),
    import('../dist/webhooks/table.js'),
    import('../dist/sync/table.js'),
  ])
  return [outboxTable(), webhookTable(), jobTable(), chunkTable()]
}

async function writeSql(url) {
  const { migrate, openDatabase, quoteIdentifier } = await import('../dist/postgres/index.js')
  const { inspectTable } = await import('../dist/lease/inspect.js')
  const { allStatements, leaseStatements } = await import('../dist/lease/statements.js')
  const db = openDatabase({ url, applicationName: 'leasehold sql' })
  const schema = `leasehold_sql_${randomBytes(4).toString('hex')}`
  try {
    await migrate(db, { schema })
    const statements = new Map()
    const onCitus = new Map()
    for (const table of await ownTables()) {
      const { shape } = await inspectTable(db, { schema, name: table.name })
      statements.set(table.name, allStatements(leaseStatements(table, shape)))
      onCitus.set(table.name, allStatements(leaseStatements(table, { ...shape, distributed: true })))
    }
    await rm(DIRECTORY, { recursive: true, force: true })
    const files = sqlFiles(statements, onCitus)
    for (const [path, text] of files) {
      const file = new URL(path, DIRECTORY)
      await mkdir(dirname(file.pathname), { recursive: true })
      await writeFile(file, text)
    }
    process.stdout.write(`docs/sql has ${files.size - 1} statements.\n`)
  } finally {
    await db.query({ text: `drop schema if exists ${quoteIdentifier(schema)} cascade` })
    await db.close()
  }
}

async function withServer(work) {
  const given = process.env.DATABASE_URL
  if (given) {
    await work(given)
    return
  }
  const { startEmbedded } = await import('../dist/embedded/index.js')
  const directory = await mkdtemp(join(tmpdir(), 'leasehold-sql-'))
  // Started by root, the server runs under another account, which must be able to enter.
  await chmod(directory, 0o755)
  try {
    const server = await startEmbedded({ directory, settings: { fsync: 'off' } })
    try {
      await work(server.url)
    } finally {
      await server.stop()
    }
  } finally {
    await rm(directory, { recursive: true, force: true })
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await withServer(writeSql)
