/** `leasehold doctor`: examines the database, and prints what is wrong with it and how to repair it. */
import {
  type CheckReport,
  CHECKS,
  type Diagnosis,
  examine,
  type Finding,
  type Severity,
} from '../doctor/doctor.ts'
import { LeaseholdError, withoutUrlPasswords } from '../errors.ts'
import { withCatalogPath } from '../postgres/catalog-path.ts'
import type { Run } from './command.ts'
import { schemaInUse, secretKeyOf, withRunningDatabase } from './database.ts'
import { invalidArgument, isSet, textFlag } from './flags.ts'
import { counted, printable, printableJson } from './output.ts'

const UNPRINTABLE = /[\p{Cc}\p{Bidi_Control}\u2028\u2029]/u

const EXIT_FOUND = 1
const EXIT_NOT_EXAMINED = 2

export async function doctor(run: Run): Promise<number> {
  const { print, flags, terminal } = run
  const failOn = failOnOf(flags)
  const ignore = ignoredOf(flags)
  let diagnosis: Diagnosis
  try {
    diagnosis = await diagnose(run, ignore)
  } catch (error) {
    // Found and not examined are told apart by scripts.
    if (!(error instanceof LeaseholdError)) throw error
    terminal.err(`${withoutUrlPasswords(`leasehold: ${error.code}: ${error.message}`)}\n`)
    return EXIT_NOT_EXAMINED
  }
  print(isSet(flags, 'json') ? `${printableJson(diagnosis)}\n` : diagnosisText(diagnosis))
  const failing = diagnosis.findings.filter(({ severity }) => failOn === 'warning' || severity === 'error')
  return failing.length === 0 ? 0 : EXIT_FOUND
}

function failOnOf(flags: Run['flags']): Severity {
  const given = textFlag(flags, 'failOn') ?? 'warning'
  if (given !== 'error' && given !== 'warning')
    throw invalidArgument('failOn', given, 'give error or warning.')
  return given
}

function ignoredOf(flags: Run['flags']): readonly string[] {
  const given = (textFlag(flags, 'ignore') ?? '').split(',').map((id) => id.trim())
  const ids = given.filter((id) => id !== '')
  const unknown = ids.find((id) => !CHECKS.some((check) => check.id === id))
  if (unknown === undefined) return ids
  const known = CHECKS.map(({ id }) => id).join(', ')
  throw invalidArgument('ignore', unknown, `that is no check; give some of ${known}, separated by commas.`)
}

async function diagnose({ loaded, log }: Run, ignore: readonly string[]): Promise<Diagnosis> {
  const { settings } = loaded
  const { databaseUrl, listenUrl, workers } = settings
  const secretKey = await secretKeyOf(settings)
  return withRunningDatabase(
    loaded,
    log,
    async (db) =>
      examine(db, {
        // A registry that cannot be read is a finding, and nothing that ends the examination.
        schema: await schemaInUse(withCatalogPath(db), loaded, log).catch(() => settings.schema),
        workers,
        ignore,
        embedded: databaseUrl === undefined,
        ...(secretKey === undefined ? {} : { secretKey }),
        // The embedded server has no pooler before it.
        ...(databaseUrl === undefined ? {} : { databaseUrl }),
        ...(databaseUrl === undefined || listenUrl === undefined ? {} : { listenUrl }),
      }),
    // The examination sets the path itself, but for tables of the user.
    { neededRole: 'reader', ownPath: true },
  )
}

/** Findings first, errors before warnings; then remarks, and what could not be seen; then the sum. */
export function diagnosisText({ findings, checks }: Diagnosis): string {
  const errors = findings.filter(({ severity }) => severity === 'error')
  const warnings = findings.filter(({ severity }) => severity === 'warning')
  const sections = [
    ...(errors.length === 0 ? [] : ['ERRORS', ...errors.map(findingText)]),
    ...(warnings.length === 0 ? [] : ['WARNINGS', ...warnings.map(findingText)]),
    ...remarks(checks),
    `${counted(errors.length, 'error')}, ${counted(warnings.length, 'warning')} in ${counted(checks.length, 'check')}`,
  ]
  return `${sections.join('\n\n')}\n`
}

function findingText({ check, text, remedy, repair = [] }: Finding): string {
  return [`${check}: ${printable(text)}`, `  ${printable(remedy)}`, ...repair.map(repairText)].join('\n')
}

/**
 * Of a statement line ends and spaces are kept: it is pasted into psql. A command of ours is not SQL, and names rows: with
 * other spaces it would name another one.
 */
function repairText(statement: string): string {
  if (statement.startsWith('leasehold ') && UNPRINTABLE.test(statement))
    return '    (a command with characters that a terminal does not show: take it from --json)'
  const lines = statement
    .split('\n')
    .map((line) => line.replaceAll(/[\p{Cc}\p{Bidi_Control}\u2028\u2029]/gu, ' '))
  const end = statement.startsWith('leasehold ') || statement.endsWith(';') ? '' : ';'
  return `${lines.map((line) => `    ${line}`).join('\n')}${end}`
}

function remarks(checks: readonly CheckReport[]): string[] {
  const skipped = new Map<string, string[]>()
  for (const check of checks) {
    if (check.skipped === undefined) continue
    skipped.set(check.skipped, [...(skipped.get(check.skipped) ?? []), check.id])
  }
  const lines = [
    ...checks.flatMap(({ id, remarks: all = [] }) => all.map((remark) => `${id}: ${printable(remark)}`)),
    ...checks.flatMap(({ id, notSeen }) =>
      notSeen === undefined ? [] : [`${id}: this role may not see ${printable(notSeen)}.`],
    ),
    ...[...skipped].map(([why, ids]) => `Not examined, because ${printable(why)}: ${ids.join(', ')}.`),
  ]
  return lines.length === 0 ? [] : [lines.join('\n')]
}
