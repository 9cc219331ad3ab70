import { createHash } from 'node:crypto'
import { readFile, readdir } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { isLeaseholdError, LeaseholdError } from '../errors.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import { readSqlFiles } from '../package-files.ts'
import { DEFAULT_CITUS_BUCKETS, distribute, requireCitus } from './citus.ts'
import { CATALOG_PATH, withCatalogPath } from './catalog-path.ts'
import type { Database } from './database.ts'
import { isLockConflict, isMissingTable, isServerError, pauseAfter } from './failures.ts'
import { quoteIdentifier, quoteLiteral, quoteQualified } from './identifiers.ts'
import { isPermissionDenied } from './permissions.ts'
import type { Queryable } from './queryable.ts'

export interface MigrateOptions {
  /** The schema of all objects. Default `leasehold`. */
  readonly schema?: string
  /** The directory of the files. Default: that of this package. */
  readonly directory?: URL
  /** How long one attempt waits for a table lock before it is rolled back, so that workers can proceed. Default 2,000. */
  readonly lockTimeoutMs?: number
  /** How many attempts one migration gets. Default 30. */
  readonly attempts?: number
  /** How many buckets the tables are to have. It can be raised while producers and workers run, and never lowered. */
  readonly buckets?: number
  /** Distribute the tables with Citus, by their buckets; 64, unless `buckets` says otherwise. Nobody may use them meanwhile. */
  readonly citus?: boolean
  readonly onEvent?: (event: MigrationEvent) => void
}

const OPTIONS = namesOf<MigrateOptions>({
  schema: true,
  directory: true,
  lockTimeoutMs: true,
  attempts: true,
  buckets: true,
  citus: true,
  onEvent: true,
})

export type MigrationEvent =
  | { readonly type: 'migrationApplied'; readonly file: string }
  /** A table was in use. The migration was rolled back and will be retried. */
  | {
      readonly type: 'migrationGaveWay'
      readonly file: string
      readonly attempt: number
      readonly retryInMs: number
    }

export interface Migrated {
  /** The versions that this call applied, without those that another process applied at the same time. */
  readonly applied: readonly number[]
  /** The version of the database now. */
  readonly version: number
  /** Versions in the database that this release does not know: it is older than the database. */
  readonly ahead: readonly number[]
  /** With `citus`: how many buckets the tables are distributed by. */
  readonly distributedBy?: number
}

/** A migration may build an index on a large table. This also limits the wait for another process's migration. */
const STATEMENT_TIMEOUT_MS = 3_600_000
const DEFAULT_LOCK_TIMEOUT_MS = 2_000
const DEFAULT_ATTEMPTS = 30
const BACK_OFF = { firstMs: 100, longestMs: 5_000 }

/**
 * Brings the schema to the version of this release. Any number of processes may call it at once: each migration is
 * one transaction that holds a transaction-scoped advisory lock and reads the ledger under it. If there is nothing to
 * apply, the call only reads.
 */
export async function migrate(db: Database, options: MigrateOptions = {}): Promise<Migrated> {
  refuseUnknownOptions('migrate', options, OPTIONS)
  const schema = options.schema ?? 'leasehold'
  const files = await readMigrations(options.directory)
  // These two name everything with its schema, so that a start which finds nothing to apply costs two round trips.
  await refuseForeignSchema(db, schema, 'reading')
  const ledger = await readLedger(db, schema)
  const catalog = withCatalogPath(db)
  if (options.citus === true) await requireCitus(catalog)
  assertContiguous(ledger, schema)
  assertUnchanged(files, ledger)
  const known = new Set(ledger.map((row) => row.version))
  const applied: number[] = []
  for (const file of files) {
    if (known.has(file.version)) continue
    const plan: Plan = { schema, file, lockTimeoutMs: options.lockTimeoutMs ?? DEFAULT_LOCK_TIMEOUT_MS }
    if (!(await applyWithRetries(catalog, plan, options))) continue
    applied.push(file.version)
    options.onEvent?.({ type: 'migrationApplied', file: file.file })
  }
  const buckets =
    options.buckets ?? (options.citus === true ? await bucketsForCitus(catalog, schema) : undefined)
  if (buckets !== undefined) await raiseBuckets(catalog, schema, buckets, options)
  if (options.citus === true)
    await catalog.transaction(
      async (tx) => {
        await tx.query({ text: 'set local statement_timeout to 0; set local lock_timeout to 0' })
        return distribute(tx, schema)
      },
      { queryTimeoutMs: STATEMENT_TIMEOUT_MS },
    )
  return {
    applied,
    version: Math.max(0, files.length, ...known),
    ahead: [...known].filter((version) => version > files.length),
    ...(options.citus === true && buckets !== undefined ? { distributedBy: buckets } : {}),
  }
}

/** As many as there are, if somebody has chosen the number. */
async function bucketsForCitus(db: Queryable, schema: string): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    text: `select ${quoteQualified(schema, 'bucket_count')}() as count`,
  })
  const count = rows[0]?.count ?? 1
  return count === 1 ? DEFAULT_CITUS_BUCKETS : count
}

interface Plan {
  readonly schema: string
  readonly file: MigrationFile
  readonly lockTimeoutMs: number
}

/**
 * Refuses a schema that `migrate` has not brought to this release, without changing anything. A database that is ahead
 * passes: during a rolling deployment the older release continues to work.
 */
export async function requireMigrations(db: Queryable, schema: string): Promise<void> {
  const files = await readMigrations()
  const ledger = await readLedger(db, schema)
  assertUnchanged(files, ledger)
  const applied = new Set(ledger.map(({ version }) => version))
  const missing = files.filter(({ version }) => !applied.has(version)).map(({ file }) => file)
  if (missing.length === 0) return
  // Where another tool runs the migrations there is no ledger. The checks of the tables then say what is missing.
  if (ledger.length === 0 && (await hasTables(db, schema))) return
  throw new LeaseholdError(
    'SETTING_INVALID',
    ledger.length === 0
      ? `The schema ${schema} has no tables of Leasehold.`
      : `The schema ${schema} is not up to date: ${missing.join(', ')} ${missing.length === 1 ? 'has' : 'have'} not been applied.`,
    { remedy: 'Run `leasehold migrate`, start with `migrate: true`, or name another schema.' },
  )
}

/** Whether the schema has the tables of Leasehold, whoever created them. */
export async function hasTables(db: Queryable, schema: string): Promise<boolean> {
  const { rows } = await db.query<{ present: boolean }>({
    text: 'select to_regclass($1) is not null as present',
    values: [quoteQualified(schema, 'workers')],
  })
  return rows[0]?.present === true
}

/** Raises the number of buckets, and gives way to those who use the tables, as migrations do. */
async function raiseBuckets(
  db: Database,
  schema: string,
  buckets: number,
  options: MigrateOptions,
): Promise<void> {
  const { lockTimeoutMs = DEFAULT_LOCK_TIMEOUT_MS } = options
  const raise = async (tx: Queryable): Promise<void> => {
    await tx.query({
      text: `set transaction isolation level read committed;
        set local lock_timeout to ${quoteLiteral(`${lockTimeoutMs}ms`)}`,
    })
    await tx.query({
      text: `call ${quoteQualified(schema, 'raise_bucket_count')}($1::int)`,
      values: [buckets],
    })
  }
  try {
    const file = `the number of buckets (${buckets})`
    await givingWay({ ...options, file, title: `Raising ${file}` }, async () => db.transaction(raise))
  } catch (error) {
    throw bucketsRefused(error)
  }
}

function bucketsRefused(error: unknown): unknown {
  if (!isServerError(error) || !['22023', '55006'].includes(error.code ?? '')) return error
  const hint: unknown = Reflect.get(error, 'hint')
  return new LeaseholdError(
    'SETTING_INVALID',
    `${error.message[0]?.toUpperCase()}${error.message.slice(1)}.`,
    {
      remedy: typeof hint === 'string' ? hint : 'Give a number from 1 to 1024.',
      cause: error,
    },
  )
}

async function applyWithRetries(db: Database, plan: Plan, options: MigrateOptions): Promise<boolean> {
  const { file } = plan.file
  try {
    return await givingWay({ ...options, file, title: `The migration ${file}` }, async () =>
      db.transaction(async (tx) => applyOnce(tx, plan), { queryTimeoutMs: STATEMENT_TIMEOUT_MS }),
    )
  } catch (error) {
    throw isServerError(error) ? failed(error, plan.file, '') : error
  }
}

interface GivingWay extends MigrateOptions {
  readonly title: string
  /** What the event calls it. */
  readonly file: string
}

/**
 * Repeats what found a table locked. A statement that waits for a table lock blocks every later statement that needs the
 * table. Therefore each attempt waits only briefly, and workers can proceed between two attempts.
 */
async function givingWay<Result>(options: GivingWay, work: () => Promise<Result>): Promise<Result> {
  const { file, attempts = DEFAULT_ATTEMPTS, onEvent } = options
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await work()
    } catch (error) {
      const cause = refusalIn(error)
      if (!isLockConflict(cause)) throw cause
      if (attempt >= attempts) throw lockedOut(cause, options)
    }
    const retryInMs = pauseAfter(attempt, BACK_OFF, Math.random)
    onEvent?.({ type: 'migrationGaveWay', file, attempt, retryInMs })
    await delay(retryInMs)
  }
}

/** Returns false if another process has applied the migration in the meantime. */
async function applyOnce(tx: Queryable, { schema, file, lockTimeoutMs }: Plan): Promise<boolean> {
  // These override the role's defaults. Read committed, because the ledger must be read as it is after the lock was
  // granted. No lock_timeout yet, because waiting for another migration blocks no worker.
  await tx.query({
    text: `
      set transaction isolation level read committed;
      set local statement_timeout to 0;
      set local lock_timeout to 0;
    `,
  })
  await tx.query({
    text: 'select pg_advisory_xact_lock(hashtextextended($1, 0))',
    values: [`leasehold migrations of ${schema}`],
  })
  await tx.query({ text: `set local lock_timeout to ${quoteLiteral(`${lockTimeoutMs}ms`)}` })
  await refuseForeignSchema(tx, schema, 'applying')
  await createLedger(tx, schema, file)
  const ledger = await readLedger(tx, schema)
  assertUnchanged([file], ledger)
  if (ledger.some((row) => row.version === file.version)) return false
  // Functions store this path. pg_temp is named last, because otherwise it comes first, and a temporary table called
  // outbox would receive events.
  await tx.query({ text: `set local search_path to ${quoteIdentifier(schema)}, pg_temp` })
  try {
    await tx.query({ text: file.text })
  } catch (error) {
    const cause = refusalIn(error)
    throw isServerError(cause) && !isLockConflict(cause)
      ? failed(cause, file, positionOf(cause, file))
      : cause
  }
  await tx.query({ text: CATALOG_PATH })
  await recordMigration(tx, schema, file)
  return true
}

type ServerError = Error & { readonly code: string | undefined; readonly position: string | undefined }

/** The refusal of PostgreSQL itself: what a migration needs is not one of Leasehold's roles. */
function refusalIn(error: unknown): unknown {
  return isLeaseholdError(error, 'PERMISSION_DENIED') ? error.cause : error
}

function failed(
  error: ServerError,
  file: MigrationFile,
  position: string,
  remedy = 'Remove the cause and repeat the migration.',
): LeaseholdError {
  return new LeaseholdError(
    'MIGRATION_FAILED',
    `The migration ${file.file} failed${position}: ${error.message} (SQLSTATE ${error.code}).`,
    { remedy: `Nothing of this file was applied. ${remedy}`, cause: error },
  )
}

function positionOf(error: ServerError, file: MigrationFile): string {
  if (error.position === undefined) return ''
  // PostgreSQL counts characters, not UTF-16 units.
  const before = Array.from(file.text)
    .slice(0, Number(error.position) - 1)
    .join('')
  const lines = before.split('\n')
  return ` at line ${lines.length}, column ${(lines.at(-1) ?? '').length + 1}`
}

function lockedOut(
  error: unknown,
  { title, attempts = DEFAULT_ATTEMPTS, lockTimeoutMs = DEFAULT_LOCK_TIMEOUT_MS }: GivingWay,
): LeaseholdError {
  return new LeaseholdError(
    'MIGRATION_FAILED',
    `${title} got no lock in ${attempts} attempts of lockTimeoutMs = ${lockTimeoutMs} ms.`,
    {
      remedy:
        'Nothing of it was applied. End the long transaction that holds the table (see pg_stat_activity and pg_blocking_pids) and repeat the migration.',
      cause: error,
    },
  )
}

export interface MigrationFile {
  readonly version: number
  readonly name: string
  readonly file: string
  readonly text: string
  readonly checksum: string
}

const FILE_NAME = /^(\d{3,})_([a-z0-9_]+)\.sql$/

/** The files `NNN_name.sql` in order: those of this package, or of a directory. Their numbers must run from 1 without a gap. */
export async function readMigrations(directory?: URL): Promise<readonly MigrationFile[]> {
  const texts = directory === undefined ? await readSqlFiles() : await readDirectory(directory)
  const files = Object.entries(texts)
    .filter(([file]) => !file.includes('/'))
    .map(([file, text]) => migrationFile(file, text))
  files.sort((a, b) => a.version - b.version || (a.file < b.file ? -1 : 1))
  for (const [index, { version, file }] of files.entries()) {
    const expected = index + 1
    if (version === expected) continue
    const problem =
      version < expected
        ? `the number ${version} is used by ${files[index - 1]?.file} and ${file}`
        : `the number ${expected} is missing before ${file}`
    throw refused(`The migrations are not numbered 1, 2, 3, …: ${problem}.`)
  }
  return files
}

async function readDirectory(directory: URL): Promise<Record<string, string>> {
  const names = (await readdir(directory)).filter((name) => name.endsWith('.sql'))
  const read = names.map(
    async (name) => [name, await readFile(new URL(encodeURIComponent(name), directory), 'utf8')] as const,
  )
  return Object.fromEntries(await Promise.all(read))
}

function migrationFile(file: string, text: string): MigrationFile {
  const [, digits, name] = FILE_NAME.exec(file) ?? []
  if (digits === undefined || name === undefined) {
    throw refused(`The migration ${file} is not named like 001_lower_case_name.sql.`)
  }
  return { version: Number(digits), name, file, text, checksum: checksumOf(text) }
}

/** CRLF counts as LF, because a checkout on Windows may convert line ends. */
function checksumOf(text: string): string {
  return createHash('sha256').update(text.replaceAll('\r\n', '\n')).digest('hex')
}

function refused(message: string): LeaseholdError {
  return new LeaseholdError('MIGRATION_FAILED', message, {
    remedy: 'Nothing was applied. Restore the files of the release you run.',
  })
}

export interface LedgerRow {
  readonly version: number
  readonly checksum: string
}

/** The applied migrations, oldest first. Empty if there is no ledger yet. */
export async function readLedger(db: Queryable, schema: string): Promise<readonly LedgerRow[]> {
  try {
    const text = `select version, checksum from ${quoteQualified(schema, 'migrations')} order by version`
    return (await db.query<LedgerRow>({ text })).rows
  } catch (error) {
    if (isMissingTable(error)) return []
    throw error
  }
}

/**
 * Refuses a schema of another role, which could have put functions into it that would run with the privileges of whoever
 * migrates. Membership counts, being a superuser does not.
 *
 * Even the ledger may be a view that calls such a function, so this comes before it is read. A role that the owner lets
 * read a ledger that is a table, such as that of a worker, may find out that there is nothing to apply. A superuser needs
 * nobody's permission, so that this says nothing about trust.
 */
async function refuseForeignSchema(
  db: Queryable,
  schema: string,
  purpose: 'reading' | 'applying',
): Promise<void> {
  const { rows } = await db.query<{ owner: string; role: string }>({
    text: `with recursive self as (
  select oid, rolsuper from pg_catalog.pg_roles where rolname = current_user
  union
  select roleid, false from pg_catalog.pg_auth_members join self on member = self.oid
)
select pg_catalog.pg_get_userbyid(nspowner) as owner, current_user as role
from pg_catalog.pg_namespace
where nspname = $1 and nspowner not in (select oid from self)
  and ($2 = 'applying' or exists (select from self where rolsuper) or exists (
    select from pg_catalog.pg_class
    where relnamespace = pg_namespace.oid and relname = 'migrations' and (relkind <> 'r' or relrowsecurity)
  ))
  -- The owner of the database is the owner of public.
  and not (nspowner = 'pg_database_owner'::pg_catalog.regrole::pg_catalog.oid
    and (select datdba from pg_catalog.pg_database where datname = pg_catalog.current_database()) in (select oid from self))`,
    values: [schema, purpose],
  })
  const [foreign] = rows
  if (foreign === undefined) return
  const { owner, role } = foreign
  throw new LeaseholdError(
    'MIGRATION_FAILED',
    `The schema ${schema} belongs to ${owner}, and ${role} is not a member of that role.`,
    {
      remedy: `Nothing was applied. Migrate as ${owner}, run ALTER SCHEMA ${quoteIdentifier(schema)} OWNER TO ${quoteIdentifier(role)} if you trust what is in it, or name another schema.`,
    },
  )
}

async function recordMigration(tx: Queryable, schema: string, file: MigrationFile): Promise<void> {
  await tx.query({
    text: `insert into ${quoteQualified(schema, 'migrations')} (version, name, checksum) values ($1, $2, $3)`,
    values: [file.version, file.name, file.checksum],
  })
}

/** Creates only what is missing: `create schema if not exists` needs the CREATE privilege even if the schema exists. */
async function createLedger(tx: Queryable, schema: string, file: MigrationFile): Promise<void> {
  const table = quoteQualified(schema, 'migrations')
  const { rows } = await tx.query<{ schema: boolean; ledger: boolean; role: string; database: string }>({
    text: `select to_regnamespace($1) is not null as schema, to_regclass($2) is not null as ledger,
  quote_ident(current_user) as role, quote_ident(current_database()) as database`,
    values: [quoteIdentifier(schema), table],
  })
  const { schema: exists = false, ledger = false, role = '', database = '' } = rows[0] ?? {}
  if (!exists) {
    const name = quoteIdentifier(schema)
    await tx.query({ text: `create schema ${name}` }).catch((error: unknown) => {
      const cause = refusalIn(error)
      if (!isServerError(cause) || !isPermissionDenied(cause)) throw error
      const remedy = `Let an administrator run CREATE SCHEMA ${name} AUTHORIZATION ${role}; or GRANT CREATE ON DATABASE ${database} TO ${role}; and repeat the migration.`
      throw failed(cause, file, '', remedy)
    })
  }
  if (!ledger) await tx.query({ text: ledgerSql(table) })
}

function ledgerSql(table: string): string {
  return `create table ${table} (
  version int primary key,
  name text not null,
  checksum text not null,
  applied_at timestamptz not null default now()
);
comment on table ${table} is 'The migrations that were applied. Written by Leasehold only.';
comment on column ${table}.version is 'The number the file starts with.';
comment on column ${table}.name is 'The rest of the file''s name.';
comment on column ${table}.checksum is 'SHA-256 of the file as it was applied, with LF line ends.';
comment on column ${table}.applied_at is 'When it was applied, by the clock of the database.';`
}

export interface PrintOptions {
  /** The schema of all objects. Default `leasehold`. */
  readonly schema?: string
  /** The version that the database has: only later migrations are printed. Default 0, which is none. */
  readonly after?: number
}

/**
 * The migrations as SQL for another migration tool. It leaves the tables and the ledger as `migrate` does. It neither
 * begins nor commits, because such tools run a file in a transaction of their own; the search_path is therefore set for the
 * session, and set back at the end.
 */
export async function migrationsSql({ schema = 'leasehold', after = 0 }: PrintOptions = {}): Promise<string> {
  const files = await readMigrations()
  if (after > files.length) {
    throw new LeaseholdError('SETTING_INVALID', `after is ${after}.`, {
      remedy: `Give a version of this release, from 0 to ${files.length}.`,
    })
  }
  const name = quoteIdentifier(schema)
  const ledger = quoteQualified(schema, 'migrations')
  const missing = files.filter(({ version }) => version > after)
  return [
    `-- The migrations of Leasehold ${after === 0 ? '' : `after version ${after}, `}up to version ${files.length}. Run them in one transaction, as the owner of the schema.`,
    ...(after === 0 ? [schemaSql(schema), ledgerSql(ledger)] : []),
    `select set_config('leasehold.search_path', current_setting('search_path'), false);\nset search_path to ${name}, pg_temp;`,
    ...missing.map(
      (file) =>
        `-- ${file.file}\n\n${file.text.trim()}\n\ninsert into ${ledger} (version, name, checksum) values (${file.version}, ${quoteLiteral(file.name)}, ${quoteLiteral(file.checksum)});`,
    ),
    `select set_config('search_path', current_setting('leasehold.search_path'), false);\n`,
  ].join('\n\n')
}

/** As in `createLedger`: a schema that exists needs no privilege to create one. */
function schemaSql(schema: string): string {
  return `do $$
begin
  if to_regnamespace(${quoteLiteral(quoteIdentifier(schema))}) is null then
    create schema ${quoteIdentifier(schema)};
  end if;
end
$$;`
}

/** Versions go up by one. A gap can only be made by hand, and then the state of the database is unknown. */
function assertContiguous(ledger: readonly LedgerRow[], schema: string): void {
  const gap = ledger.findIndex((row, index) => row.version !== index + 1)
  if (gap === -1) return
  throw new LeaseholdError(
    'MIGRATION_CHANGED',
    `The ledger ${quoteQualified(schema, 'migrations')} lacks version ${gap + 1} but has version ${ledger[gap]?.version}.`,
    { remedy: 'Restore the ledger from a backup; rows were removed from it by hand.' },
  )
}

function assertUnchanged(files: readonly MigrationFile[], ledger: readonly LedgerRow[]): void {
  for (const file of files) {
    const row = ledger.find(({ version }) => version === file.version)
    if (row === undefined || row.checksum === file.checksum) continue
    throw new LeaseholdError(
      'MIGRATION_CHANGED',
      `The migration ${file.file} was changed after it had been applied: the database has checksum ${row.checksum}, the file has ${file.checksum}.`,
      { remedy: 'Restore the file as released, and put the change into a new migration.' },
    )
  }
}
