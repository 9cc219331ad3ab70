import { createHash } from 'node:crypto'
import { readFile, readdir } from 'node:fs/promises'
import { LeaseholdError } from '../errors.ts'

export interface MigrationFile {
  readonly version: number
  readonly name: string
  readonly file: string
  readonly text: string
  readonly checksum: string
}

const FILE_NAME = /^(\d{3,})_([a-z0-9_]+)\.sql$/

/** The directory is next to `src/`, and next to `dist/` in the package. */
export const MIGRATIONS_DIRECTORY = new URL('../../migrations/', import.meta.url)

/** Reads `NNN_name.sql`, in order. The numbers run from 1 without a gap, or the directory is refused. */
export async function readMigrations(directory: URL): Promise<readonly MigrationFile[]> {
  const names = (await readdir(directory)).filter((name) => name.endsWith('.sql'))
  const files = await Promise.all(names.map(async (name) => readMigration(directory, name)))
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

async function readMigration(directory: URL, file: string): Promise<MigrationFile> {
  const [, digits, name] = FILE_NAME.exec(file) ?? []
  if (digits === undefined || name === undefined) {
    throw refused(`The migration ${file} is not named like 001_lower_case_name.sql.`)
  }
  const text = await readFile(new URL(encodeURIComponent(file), directory), 'utf8')
  return { version: Number(digits), name, file, text, checksum: checksumOf(text) }
}

/** A checkout on Windows turns LF into CRLF, which does not change the checksum. */
export function checksumOf(text: string): string {
  return createHash('sha256').update(text.replaceAll('\r\n', '\n')).digest('hex')
}

function refused(message: string): LeaseholdError {
  return new LeaseholdError('MIGRATION_FAILED', message, {
    remedy: 'Nothing was applied. Restore the files of the release you run.',
  })
}
