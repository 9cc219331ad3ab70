/** Commands and statements that an operator is shown, written so that they can be pasted into a shell or into psql. */
import { idValues } from '../lease/lease.ts'
import type { LeaseTable, Sql } from '../lease/table.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'

/** A row by its id, and its bucket where the table has buckets. */
export interface RowAddress {
  readonly id: string
  readonly bucket?: number | undefined
}

/** What a terminal would not show as it is, and a shell or psql would not take when it is pasted. */
const UNPRINTABLE = /[\p{Cc}\p{Bidi_Control}\u2028\u2029]/u
const EACH_UNPRINTABLE = new RegExp(UNPRINTABLE, 'gu')

/** A text as SQL has it. */
export function literal(text: string): string {
  const quoted = text.replaceAll("'", "''")
  if (!UNPRINTABLE.test(text)) return `'${quoted}'`
  const escaped = quoted
    .replaceAll('\\', String.raw`\\`)
    .replaceAll(EACH_UNPRINTABLE, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, '0')}`)
  return `E'${escaped}'`
}

/** An argument of a command line, as a shell takes it; with `$'…'`, which not every shell knows, only where nothing else does. */
export function shellArgument(text: string): string {
  if (/^[\w./:@%+,-]+$/.test(text) && !text.startsWith('-')) return text
  if (!UNPRINTABLE.test(text)) return `'${text.replaceAll("'", String.raw`'\''`)}'`
  const octal = (byte: number): string => `\\${byte.toString(8).padStart(3, '0')}`
  const escaped = text
    .replaceAll(/[\\']/g, (each) => `\\${each}`)
    .replaceAll(EACH_UNPRINTABLE, (each) => [...Buffer.from(each)].map(octal).join(''))
  return `$'${escaped}'`
}

/** A command with arguments, of which one may look like a flag. */
export function commandLine(command: string, given: readonly string[], flags: string): string {
  const written = given.map(shellArgument).join(' ')
  return given.some((each) => each.startsWith('-'))
    ? `${command}${flags} -- ${written}`
    : `${command} ${written}${flags}`
}

/** What a command needs besides, where the tables are not in the default schema. */
export function schemaFlag(schema = 'leasehold'): string {
  return schema === 'leasehold' ? '' : ` --schema ${shellArgument(schema)}`
}

/** An UPDATE of one row, as an operator would write it. */
export function updateSql(table: LeaseTable, { id, bucket }: RowAddress, set: Sql): string {
  const values = idValues(table, id)
  const isRow = table.id.map((column, i) => `${quote(column)} = ${literal(values[i] ?? '')}`)
  const inOne =
    table.bucket === undefined || bucket === undefined ? [] : [`${quote(table.bucket)} = ${bucket}`]
  const where = [...inOne, ...isRow].join(' and ')
  return `update ${quoteQualified(table.schema, table.name)} set ${set} where ${where}`
}

/** The commands for the rows of an application that are named by their ids alone. */
export function rowCommands(application: string, schema: string | undefined) {
  const shown = (verb: string, { id }: RowAddress, flags: string): string =>
    `leasehold ${application} ${verb} ${id}${schemaFlag(schema)}${flags}`
  return {
    retry: (row: RowAddress) => shown('retry', row, " --reason '…'"),
    replay: (row: RowAddress) => shown('replay', row, " --reason '…'"),
    explain: (row: RowAddress, flags = '') => shown('explain', row, flags),
  }
}
