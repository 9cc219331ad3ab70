// Writes docs/sql: the text of every statement of our own tables, and a table of them. Uses the server of DATABASE_URL
// when it is set (in a schema of its own, which is dropped afterwards), and an embedded PostgreSQL in a temporary
// directory otherwise. Run `npm run build` first. src/lease/checked-in-sql.test.ts compares what is checked in.
import { randomBytes } from 'node:crypto'
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'

const DIRECTORY = new URL('../docs/sql/', import.meta.url)

/**
 * What each statement does, and the roles of the indexes that it reads. What is in brackets is left out where a table has
 * no ordering keys.
 */
const PURPOSES = [
  [
    'claim next of keys',
    'Claims the first unfinished row of each of the given ordering keys, if it can be claimed now. Sent after the settlement of the row before it, in the same pipeline. If two claims pick two rows of one key, a unique index refuses the second.',
    'keys in_flight pkey',
  ],
  [
    'find next of keys',
    'Returns the ids of the rows that `claim next of keys` would take. Sent after a data error has stopped that claim.',
    'keys in_flight',
  ],
  [
    'claim arrived keys',
    'Claims the first unfinished row of each ordering key to which the next due rows belong, if it can be claimed now. Also returns how many rows were read, up to where, and the first one whose key there was no room for.',
    'arrivals keys in_flight pkey',
  ],
  [
    'find arrived keys',
    'Returns the ids of the rows that `claim arrived keys` would take. Sent after a data error has stopped that claim.',
    'arrivals keys in_flight',
  ],
  [
    'claim in order',
    'Claims the next rows that are due[ and have no ordering key], from the cursor on. Rows with two or more expiries are left to `claim suspects`.',
    'pending pkey',
  ],
  [
    'find in order',
    'Returns the ids of the rows that `claim in order` would take. Sent after a data error has stopped that claim.',
    'pending',
  ],
  [
    'claim by group',
    'Claims the next rows that are due[ and have no ordering key] of each of the given groups, as many as the group has room for. Rows with two or more expiries are left to `claim suspects`.',
    'pending pkey',
  ],
  [
    'find by group',
    'Returns the ids of the rows that `claim by group` would take. Sent after a data error has stopped that claim.',
    'pending',
  ],
  [
    'claim keys by group',
    'Steps from ordering key to ordering key in each of the given groups, and claims the first unfinished row of each key, if it can be claimed now. Also returns for each group at which key it stopped, unless that was the last one.',
    'keys in_flight pkey',
  ],
  [
    'find keys by group',
    'Returns the ids of the rows that `claim keys by group` would take. Sent after a data error has stopped that claim.',
    'keys in_flight',
  ],
  [
    'claim rows',
    'Claims the given rows, also suspects, as far as they can be claimed now[; of an ordering key only the first unfinished row].',
    'pkey keys in_flight',
  ],
  [
    'claim suspects',
    'Claims suspects: rows of which at least two leases have ended, since the last retry, because the worker process died.',
    'suspects keys in_flight pkey',
  ],
  [
    'find suspects',
    'Returns the ids of the rows that `claim suspects` would take. Sent after a data error has stopped that claim.',
    'suspects keys in_flight',
  ],
  [
    'next due',
    'Returns in how many milliseconds the next row will be due. Sent before a worker waits.',
    'due suspects arrivals',
  ],
  [
    'renew',
    'Extends the given leases, as far as they are still held and have not expired. Returns the ids of their rows.',
    'pkey',
  ],
  [
    'held to renew',
    'Sent for the leases that were not renewed. Returns those that are still held and have not expired: another session has locked their rows. The others are lost.',
    'pkey',
  ],
  [
    'release',
    'Gives rows back: they can be claimed again after the delay, and no attempt is counted. Returns their ids.',
    'pkey',
  ],
  [
    'held',
    'Sent for the leases that a settlement or a release did not end. Returns those that are still held: another session has locked their rows. The others are lost.',
    'pkey',
  ],
  [
    'reap expired',
    'Takes back leases that have expired: the rows can be claimed again, or are dead if their attempts are used up.',
    'in_flight pkey',
  ],
  [
    'reap owned by',
    'Takes back all leases of a worker that is known to be dead, also those that have not expired.',
    'in_flight pkey',
  ],
  [
    'find expired',
    'Returns the ids of the rows that `reap expired` would take back. Sent after a data error has stopped it.',
    'in_flight',
  ],
  [
    'find owned by',
    'Returns the ids of the rows that `reap owned by` would take back. Sent after a data error has stopped it.',
    'in_flight',
  ],
  [
    'waiting buckets',
    'Returns the buckets in which rows wait, and when the first row of each is due. Sent only where there are several buckets.',
    'pending suspects waiting_keys',
  ],
  [
    'leased buckets',
    'Returns the buckets in which rows are leased. Sent before a reap by a worker that serves all buckets.',
    'in_flight',
  ],
  [
    'settle retry',
    'Ends the given leases with the outcome `retry`, as far as they are still held. The expiries start again at 0: the handler came back, so the row has not ended its process. Returns the ids of the rows.',
    'pkey',
  ],
]

/** What `reap expired` does where the table declares no maximum of attempts. */
const REAP_AS_RETRY =
  'Takes back leases that have expired as a retry: the table declares no maximum of attempts.'

/** What the parameters of the statements are; of those that are numbered, without the number. */
const PARAMETERS = {
  alone: 'also those that must run alone',
  args: 'arguments (JSON, by row id)',
  backoffMs: 'delays in ms (array)',
  bucket: 'bucket',
  bytes: 'byte budget',
  cursor: 'cursor',
  delayMs: 'delay in ms',
  excluded: 'ids to leave out (array)',
  graceMs: 'grace period in ms',
  groupCursors: 'key to start at in each group (array)',
  groups: 'groups (array)',
  id: 'ids (array)',
  keys: 'ordering keys (array)',
  leaseMs: 'lease in ms',
  limit: 'row limit',
  living: 'owners that are alive (array)',
  ownedBy: 'owner of the leases',
  owner: 'owner',
  reason: 'error text or null',
  rooms: 'row limit of each group (array)',
  rows: 'rows to read',
  steps: 'key limit of each group',
  tokens: 'their tokens (array)',
}

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

/** What a statement of this table does, in one or two sentences. */
function purposeOf(table, { purpose, text }) {
  if (purpose === 'reap expired' && text.includes('false as exhausted')) return REAP_AS_RETRY
  const [, does] = PURPOSES.find(([name]) => name === purpose) ?? []
  if (does === undefined)
    return `Ends the given leases with the outcome \`${purpose.replace('settle ', '')}\`, as far as they are still held. Returns the ids of the rows.`
  const isOrdered = INDEXES[table]?.keys !== undefined
  return isOrdered ? does.replaceAll(/[[\]]/g, '') : does.replaceAll(/\[.*?\]/g, '')
}

/** What each parameter is: `$1 and $2 cursor`. */
function legendOf({ purpose, parameters }) {
  if (parameters.length === 0) return ['No parameters.']
  const numbers = new Map()
  for (const [i, parameter] of parameters.entries()) {
    const name = parameter.replace(/\d+$/, '')
    const label = PARAMETERS[name]
    if (label === undefined) throw new Error(`${purpose}: ${parameter} has no description`)
    numbers.set(label, [...(numbers.get(label) ?? []), `$${i + 1}`])
  }
  const entries = [...numbers].map(([label, own]) => `${own.join(' and ')} ${label}`)
  return entries.map(
    (entry, i) => `${i === 0 ? 'Parameters: ' : ''}${entry}${i < entries.length - 1 ? ',' : ''}`,
  )
}

/** The text of a file: its comments are not part of the statement. */
function fileText(table, statement) {
  const head = [
    ...commentLines(purposeOf(table, statement).split(' '), '-- '),
    ...commentLines(legendOf(statement), '--   '),
  ]
  return `${head.join('\n')}\n${statement.text}\n`
}

const LINE_LENGTH = 120

/** As many of these parts on a line as fit. */
function commentLines(parts, margin) {
  const lines = ['--']
  for (const part of parts) {
    const line = `${lines.at(-1)} ${part}`
    if (line.length <= LINE_LENGTH) lines[lines.length - 1] = line
    else lines.push(`${margin}${part}`)
  }
  return lines
}

/** Path below docs/sql → text, of the statements of each table, and of those that are others where Citus distributes it. */
export function sqlFiles(statements, onCitus) {
  const files = new Map()
  const sections = []
  for (const [table, all] of statements) {
    const rows = all.map((statement) => {
      const { purpose, text } = statement
      const file = `${table}/${purpose.replaceAll(' ', '-')}.sql`
      files.set(file, fileText(table, statement))
      const what = purposeOf(table, statement)
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
      files.set(file, fileText(table, statement))
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

A file begins with what the statement does and what its parameters are; these comments are not sent. Answers are read by
position: the names of returned columns are there for people. The tables have their default options; with others, some
values differ. With \`onFailure: 'park'\`, for instance, \`settle dead\` writes \`parked = ordering_key is not null\`.
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
