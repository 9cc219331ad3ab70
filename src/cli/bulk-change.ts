/** What replay and cancel have in common on the command line, whatever rows they change: flags, questions, reports. */
import type { Command } from 'commander'
import {
  type BulkChangeOptions,
  type BulkChangeResult,
  type ChangeProgress,
  isEmptyFilter,
  type ResumeOptions,
  type RowFilter,
} from '../operations/bulk-change.ts'
import { isRowId, isUuid } from '../operations/request-checks.ts'
import type { Database, NeededRole } from '../postgres/index.ts'
import { type Run, UsageError } from './command.ts'
import {
  invalidArgument,
  isSet,
  JSON_FLAG,
  positiveFlag,
  PRINCIPAL_FLAG,
  principalOf,
  reasonOf,
  textFlag,
  wholeFlag,
} from './flags.ts'
import { counted, grouped, printableJson, relative } from './output.ts'
import { withProgress } from './process.ts'

export interface BulkCommand<Filter extends RowFilter, Count extends string> {
  /** The command without `leasehold`: `outbox replay`. */
  readonly name: string
  readonly verb: 'replay' | 'cancel' | 'retry' | 'give up'
  /** The rows in the singular and the plural. */
  readonly row: readonly [one: string, many: string]
  /** The flags that choose rows, and an example that chooses many, for the error when there are none. */
  readonly choices: string
  /** Whether rows have event ids as well as numbers. */
  readonly hasEventIds: boolean
  readonly readFilter: (flags: Run['flags'], now: Date) => Filter
  readonly change: (db: Database, options: BulkChangeOptions<Filter>) => Promise<BulkChangeResult<Count>>
  readonly resume: (
    db: Database,
    changeId: string,
    options: ResumeOptions,
  ) => Promise<BulkChangeResult<Count>>
  readonly withTables: (
    run: Run,
    act: (db: Database, schema: string) => Promise<number>,
    neededRole: NeededRole,
  ) => Promise<number>
  /** What matched, where the number alone says too little: `10 events (7 dead, 3 published)`. */
  readonly describe?: (result: BulkChangeResult<Count>) => string
  /** Further sentences about the result. */
  readonly remarks?: (result: BulkChangeResult<Count>) => readonly string[]
}

/** The flags of every bulk change. */
export function addBulkChangeFlags(command: Command, rows: string): Command {
  return command
    .option('--dry-run', `count the ${rows}, and change nothing`)
    .option('--rate <n>', `at most this many ${rows} per second`)
    .option('--limit <n>', `at most this many ${rows}, the oldest first`)
    .option('--reason <text>', 'reason for the change, for the audit; required unless --dry-run is given')
    .option(...PRINCIPAL_FLAG)
    .option('--yes', 'do not ask for confirmation before a change by filter')
    .option('--resume <id>', 'continue a change that was stopped or killed')
    .option(...JSON_FLAG)
}

/** The names of a flag such as `--status dead,published`. */
export function readNames<Name extends string>(
  flags: Run['flags'],
  flag: string,
  names: readonly Name[],
): Name[] | undefined {
  const given = textFlag(flags, flag)
  return given?.split(',').map((part) => {
    const found = names.find((name) => name.toLowerCase() === part.trim().toLowerCase())
    if (found !== undefined) return found
    throw invalidArgument(flag, given, `give one or more of ${names.join(', ').toLowerCase()}.`)
  })
}

/** Runs the change; the exit code is 1 when it was stopped, or a row that was named was not changed. */
export async function runBulkCommand<Filter extends RowFilter, Count extends string>(
  run: Run,
  command: BulkCommand<Filter, Count>,
): Promise<number> {
  const act =
    textFlag(run.flags, 'resume') === undefined ? prepareChange(run, command) : prepareResume(run, command)
  const texts = { line: progressLine, halfWay: (progress: ChangeProgress) => howToResume(command, progress) }
  const neededRole = isSet(run.flags, 'dryRun') ? 'reader' : 'operator'
  return withProgress<ChangeProgress>(run, texts, async (follow) =>
    command.withTables(run, async (db, schema) => act(db, schema, follow), neededRole),
  )
}

type Follow = Required<Pick<ResumeOptions, 'signal' | 'onProgress'>>
type Act = (db: Database, schema: string, follow: Follow) => Promise<number>

/** Every mistake in the call is found before the database is reached. */
function prepareChange<Filter extends RowFilter, Count extends string>(
  run: Run,
  command: BulkCommand<Filter, Count>,
): Act {
  const { flags, args: ids } = run
  const dryRun = isSet(flags, 'dryRun')
  const filter = command.readFilter(flags, new Date())
  checkChoice(command, ids, filter)
  const chosen: Omit<BulkChangeOptions<Filter>, 'schema'> = {
    filter,
    rate: positiveFlag(flags, 'rate', `give the ${command.row[1]} per second, above 0.`),
    limit: wholeFlag(flags, 'limit', Number.MAX_SAFE_INTEGER),
    ...(dryRun ? {} : { reason: reasonOf(flags), principal: principalOf(run) }),
    ...(ids.length === 0 ? {} : { ids }),
  }
  const confirm = dryRun || ids.length > 0 || isSet(flags, 'yes') ? undefined : confirmation(run)
  return async (db, schema, follow) => {
    const options = { ...chosen, schema }
    if (confirm !== undefined) {
      const found = await command.change(db, { ...options, dryRun: true, signal: follow.signal })
      if (found.matched > 0 && !(await confirm(`${capitalized(command.verb)} ${described(command, found)}?`)))
        return 1
    }
    return report(run, command, await command.change(db, { ...options, dryRun, ...follow }))
  }
}

function prepareResume<Filter extends RowFilter, Count extends string>(
  run: Run,
  command: BulkCommand<Filter, Count>,
): Act {
  const { flags, args } = run
  const changeId = textFlag(flags, 'resume') ?? ''
  const isChosen = args.length > 0 || !isEmptyFilter(command.readFilter(flags, new Date()))
  if (isChosen || isSet(flags, 'dryRun')) {
    throw new UsageError(`--resume continues a change as it was begun: leave out ids, filters and --dry-run.`)
  }
  const principal = principalOf(run)
  return async (db, schema, follow) =>
    report(run, command, await command.resume(db, changeId, { schema, principal, ...follow }))
}

function checkChoice<Filter extends RowFilter>(
  { row, hasEventIds, choices }: Pick<BulkCommand<Filter, never>, 'row' | 'hasEventIds' | 'choices'>,
  ids: readonly string[],
  filter: Filter,
): void {
  for (const id of ids) {
    if (isRowId(id) || (hasEventIds && isUuid(id))) continue
    const orEventId = hasEventIds ? ', or an event id, which is a uuid' : ''
    throw new UsageError(
      `${JSON.stringify(id)} is not an id: give the number of one of the ${row[1]}${orEventId}.`,
    )
  }
  if (ids.length > 0 && filter.ids !== undefined) {
    throw new UsageError('--event and ids exclude each other: give the event id among the ids.')
  }
  if (ids.length === 0 && isEmptyFilter(filter)) {
    throw new UsageError(`say which ${row[1]}: by their ids, or with ${choices}`)
  }
}

/** Asks the person at the terminal before a change by filter. */
function confirmation({ terminal }: Run): (question: string) => Promise<boolean> {
  const { ask } = terminal
  if (ask === undefined) {
    throw new UsageError(
      `--yes is missing: a change by filter asks before it changes anything, and nobody is at this terminal. ` +
        'Count with --dry-run, then add --yes.',
    )
  }
  return async (question) => {
    const isConfirmed = /^y(es)?$/i.test((await ask(`${question} [y/N] `)).trim())
    if (!isConfirmed) terminal.err('Nothing was changed.\n')
    return isConfirmed
  }
}

function report<Filter extends RowFilter, Count extends string>(
  { flags, print }: Run,
  command: BulkCommand<Filter, Count>,
  result: BulkChangeResult<Count>,
): number {
  print(`${isSet(flags, 'json') ? asJson(result) : asText(command, result, new Date())}\n`)
  return result.finished && result.skipped.length === 0 ? 0 : 1
}

/** What is unknown is null, so that every name is always there. */
function asJson({ changeId, firstId, lastId, lastDueAt, ...rest }: BulkChangeResult<string>): string {
  return printableJson({
    ...rest,
    changeId: changeId ?? null,
    firstId: firstId ?? null,
    lastId: lastId ?? null,
    lastDueAt: lastDueAt ?? null,
  })
}

function asText<Filter extends RowFilter, Count extends string>(
  command: BulkCommand<Filter, Count>,
  result: BulkChangeResult<Count>,
  now: Date,
): string {
  const not = result.dryRun ? 'would not be' : 'was not'
  return [
    summary(command, result, now),
    ...(command.remarks?.(result) ?? []),
    ...result.skipped.map(({ id, why }) => `${id} ${not} ${DONE[command.verb]}: ${why}.`),
  ].join('\n')
}

const DONE = { replay: 'replayed', cancel: 'cancelled', retry: 'retried', 'give up': 'given up' } as const

function summary<Filter extends RowFilter, Count extends string>(
  command: BulkCommand<Filter, Count>,
  result: BulkChangeResult<Count>,
  now: Date,
): string {
  const { verb, row } = command
  const { dryRun, matched, changed, changedBefore, changeId, lastDueAt, finished } = result
  const done = DONE[verb]
  if (!finished && changeId === undefined) return 'Stopped before anything was changed.'
  if (matched === 0)
    return dryRun ? `No ${row[0]} would be ${done}.` : `No ${row[0]} was ${done}: none matches.`
  if (dryRun) return `Would ${verb} ${described(command, result)}. Nothing was changed.`
  if (changeId === undefined)
    return `No ${row[0]} was ${done}: in the meantime others have changed what matched.`
  const all = changed + changedBefore
  const due =
    lastDueAt !== undefined && lastDueAt.getTime() - now.getTime() > 1_000
      ? ` The last is due ${relative(lastDueAt, now)}, at ${lastDueAt.toISOString()}.`
      : ''
  if (!finished) return `Stopped.${due} ${howToResume(command, { changeId, matched, changed: all })}`
  const before = changedBefore > 0 ? `, after ${grouped(changedBefore)} before` : ''
  const others =
    matched > all
      ? ` In the meantime others have changed ${grouped(matched - all)} of those that matched.`
      : ''
  return `${capitalized(done)} ${counted(changed, ...row)}${before}.${others}${due} It is recorded in the audit as ${changeId}.`
}

/** What a change that did not come to its end has done, and how to continue it. */
function howToResume(
  { name, verb, row }: Pick<BulkCommand<never, never>, 'name' | 'verb' | 'row'>,
  { changeId, matched, changed }: ChangeProgress,
): string {
  return `${grouped(changed)} of ${counted(matched, ...row)} were ${DONE[verb]}; the others are unchanged. Continue with: leasehold ${name} --resume ${changeId}`
}

function described<Filter extends RowFilter, Count extends string>(
  { describe, row }: BulkCommand<Filter, Count>,
  result: BulkChangeResult<Count>,
): string {
  return describe?.(result) ?? counted(result.matched, ...row)
}

function progressLine({ matched, changed }: ChangeProgress): string {
  return `\r${grouped(changed)} of ${grouped(matched)}${changed >= matched ? '\n' : ''}`
}

function capitalized(word: string): string {
  return `${word.charAt(0).toUpperCase()}${word.slice(1)}`
}
