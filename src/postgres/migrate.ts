import { setTimeout as delay } from 'node:timers/promises'
import { LeaseholdError } from '../errors.ts'
import { pauseAfter } from './back-off.ts'
import type { Database } from './database.ts'
import { isLockConflict, isServerError } from './failures.ts'
import { quoteIdentifier, quoteLiteral } from './identifiers.ts'
import { MIGRATIONS_DIRECTORY, readMigrations, type MigrationFile } from './migration-files.ts'
import {
  assertContiguous,
  assertUnchanged,
  createLedger,
  readLedger,
  recordMigration,
} from './migration-ledger.ts'
import type { Queryable } from './queryable.ts'

export interface MigrateOptions {
  /** Where everything goes. Default `leasehold`. */
  readonly schema?: string
  /** Where the files are. Default: those of this package. */
  readonly directory?: URL
  /** How long one attempt waits for a table lock before it is rolled back, so that workers can proceed. Default 2,000. */
  readonly lockTimeoutMs?: number
  /** How many attempts one migration gets. Default 30. */
  readonly attempts?: number
  readonly onEvent?: (event: MigrationEvent) => void
}

export type MigrationEvent =
  | { readonly type: 'migrationApplied'; readonly file: string }
  /** A table was in use; the migration was rolled back and is retried. */
  | {
      readonly type: 'migrationGaveWay'
      readonly file: string
      readonly attempt: number
      readonly retryInMs: number
    }

export interface Migrated {
  /** The versions this call applied; those another process applied meanwhile are not among them. */
  readonly applied: readonly number[]
  /** The version of the database now. */
  readonly version: number
  /** Versions in the database that this release does not know: it is older than the database. */
  readonly ahead: readonly number[]
}

/** A migration may build an index on a large table; waiting for another process's migration is bounded by it too. */
const STATEMENT_TIMEOUT_MS = 3_600_000
const BACK_OFF = { firstMs: 100, longestMs: 5_000 }

/**
 * Brings the schema to the version of this release. Any number of processes may call it at once: each migration is
 * one transaction that holds a transaction-scoped advisory lock and reads the ledger under it.
 * With nothing to do it is one SELECT.
 */
export async function migrate(db: Database, options: MigrateOptions = {}): Promise<Migrated> {
  const schema = options.schema ?? 'leasehold'
  const files = await readMigrations(options.directory ?? MIGRATIONS_DIRECTORY)
  const ledger = await readLedger(db, schema)
  assertContiguous(ledger, schema)
  assertUnchanged(files, ledger)
  const known = new Set(ledger.map((row) => row.version))
  const applied: number[] = []
  for (const file of files) {
    if (known.has(file.version)) continue
    const plan: Plan = { schema, file, lockTimeoutMs: options.lockTimeoutMs ?? 2_000 }
    if (!(await applyWithRetries(db, plan, options))) continue
    applied.push(file.version)
    options.onEvent?.({ type: 'migrationApplied', file: file.file })
  }
  return {
    applied,
    version: Math.max(0, files.length, ...known),
    ahead: [...known].filter((version) => version > files.length),
  }
}

interface Plan {
  readonly schema: string
  readonly file: MigrationFile
  readonly lockTimeoutMs: number
}

/**
 * A statement that waits for a table lock blocks every later statement that needs the table. Therefore the wait is
 * short, and between two attempts the workers can proceed.
 */
async function applyWithRetries(db: Database, plan: Plan, options: MigrateOptions): Promise<boolean> {
  const attempts = options.attempts ?? 30
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await db.transaction(async (tx) => applyOnce(tx, plan), { queryTimeoutMs: STATEMENT_TIMEOUT_MS })
    } catch (error) {
      if (!isLockConflict(error)) throw isServerError(error) ? failed(error, plan.file, '') : error
      if (attempt >= attempts) throw lockedOut(error, plan, attempts)
    }
    const retryInMs = pauseAfter(attempt, BACK_OFF, Math.random)
    options.onEvent?.({ type: 'migrationGaveWay', file: plan.file.file, attempt, retryInMs })
    await delay(retryInMs)
  }
}

/** Resolves with false when another process was faster. */
async function applyOnce(tx: Queryable, { schema, file, lockTimeoutMs }: Plan): Promise<boolean> {
  // Whatever the role's defaults. Read committed: the ledger must be seen as it is after the lock was granted.
  // No lock_timeout yet: waiting for another migrator blocks no worker.
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
  await createLedger(tx, schema)
  const ledger = await readLedger(tx, schema)
  assertUnchanged([file], ledger)
  if (ledger.some((row) => row.version === file.version)) return false
  // Functions store this path. Temporary tables come first unless pg_temp is named: one called outbox would receive events.
  await tx.query({ text: `set local search_path to ${quoteIdentifier(schema)}, pg_temp` })
  try {
    await tx.query({ text: file.text })
  } catch (error) {
    throw isServerError(error) && !isLockConflict(error)
      ? failed(error, file, positionOf(error, file))
      : error
  }
  await recordMigration(tx, schema, file)
  return true
}

type ServerError = Error & { readonly code: string | undefined; readonly position: string | undefined }

function failed(error: ServerError, file: MigrationFile, position: string): LeaseholdError {
  return new LeaseholdError(
    'MIGRATION_FAILED',
    `The migration ${file.file} failed${position}: ${error.message} (SQLSTATE ${error.code}).`,
    { remedy: 'Nothing of this file was applied. Remove the cause and repeat the migration.', cause: error },
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

function lockedOut(error: unknown, plan: Plan, attempts: number): LeaseholdError {
  return new LeaseholdError(
    'MIGRATION_FAILED',
    `The migration ${plan.file.file} got no lock in ${attempts} attempts of lockTimeoutMs = ${plan.lockTimeoutMs} ms.`,
    {
      remedy:
        'Nothing of this file was applied. End the long transaction that holds the table (see pg_stat_activity and pg_blocking_pids) and repeat the migration.',
      cause: error,
    },
  )
}
