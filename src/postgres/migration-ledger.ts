import { LeaseholdError } from '../errors.ts'
import { isMissingTable } from './failures.ts'
import { quoteIdentifier, quoteQualified } from './identifiers.ts'
import type { MigrationFile } from './migration-files.ts'
import type { Queryable } from './queryable.ts'

export interface LedgerRow {
  readonly version: number
  readonly checksum: string
}

/** The applied migrations, oldest first; none where there is no ledger yet. */
export async function readLedger(db: Queryable, schema: string): Promise<readonly LedgerRow[]> {
  try {
    const text = `select version, checksum from ${quoteQualified(schema, 'migrations')} order by version`
    return (await db.query<LedgerRow>({ text })).rows
  } catch (error) {
    if (isMissingTable(error)) return []
    throw error
  }
}

export async function recordMigration(tx: Queryable, schema: string, file: MigrationFile): Promise<void> {
  await tx.query({
    text: `insert into ${quoteQualified(schema, 'migrations')} (version, name, checksum) values ($1, $2, $3)`,
    values: [file.version, file.name, file.checksum],
  })
}

/** Creates only what is missing: `create schema if not exists` needs a privilege that an existing schema does not. */
export async function createLedger(tx: Queryable, schema: string): Promise<void> {
  const table = quoteQualified(schema, 'migrations')
  const { rows } = await tx.query<{ schema: boolean; ledger: boolean }>({
    text: 'select to_regnamespace($1) is not null as schema, to_regclass($2) is not null as ledger',
    values: [quoteIdentifier(schema), table],
  })
  if (rows[0]?.schema !== true) await tx.query({ text: `create schema ${quoteIdentifier(schema)}` })
  if (rows[0]?.ledger === true) return
  await tx.query({
    text: `
      create table ${table} (
        version int primary key,
        name text not null,
        checksum text not null,
        applied_at timestamptz not null default now()
      );
      comment on table ${table} is 'The migrations that were applied. Written by Leasehold only.';
      comment on column ${table}.version is 'The number the file starts with.';
      comment on column ${table}.name is 'The rest of the file''s name.';
      comment on column ${table}.checksum is 'SHA-256 of the file as it was applied, with LF line ends.';
      comment on column ${table}.applied_at is 'When it was applied, by the clock of the database.';
    `,
  })
}

/** Versions go up by one. A gap was made by hand, and the state of the database is then unknown. */
export function assertContiguous(ledger: readonly LedgerRow[], schema: string): void {
  const gap = ledger.findIndex((row, index) => row.version !== index + 1)
  if (gap === -1) return
  throw new LeaseholdError(
    'MIGRATION_CHANGED',
    `The ledger ${quoteQualified(schema, 'migrations')} lacks version ${gap + 1} but has version ${ledger[gap]?.version}.`,
    { remedy: 'Restore the ledger from a backup; rows were removed from it by hand.' },
  )
}

export function assertUnchanged(files: readonly MigrationFile[], ledger: readonly LedgerRow[]): void {
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
