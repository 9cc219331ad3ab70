/** The commands of `leasehold outbox`: what they read from flags, and what they print. */
import type { Command } from 'commander'
import { isUuid } from '../../operations/request-checks.ts'
import {
  type EventDetails,
  type EventSummary,
  listEvents,
  showEvent,
  type WaitedFor,
} from '../../outbox/admin/browse.ts'
import { explainEvent } from '../../outbox/admin/explain.ts'
import type { EventFilter } from '../../outbox/admin/filter.ts'
import { giveUp, resumeGiveUp } from '../../outbox/admin/give-up.ts'
import { replay, type ReplayResult, resumeReplay } from '../../outbox/admin/replay.ts'
import { resumeRetryNow, retryNow } from '../../outbox/admin/retry-now.ts'
import type { HistoryEntry } from '../../outbox/history.ts'
import { createOutbox, type NewEvent } from '../../outbox/index.ts'
import { STATUSES, type Status } from '../../outbox/transitions.ts'
import { readNames, runBulkCommand } from '../bulk-change.ts'
import type { Run } from '../command.ts'
import { withOutbox } from '../database.ts'
import { runExplain } from '../explain.ts'
import {
  addPeriodFlags,
  headersOf,
  invalidArgument,
  isSet,
  jsonArgument,
  momentFlag,
  readPeriod,
  textFlag,
  textsFlag,
} from '../flags.ts'
import { runListCommand } from '../list.ts'
import {
  columns,
  counted,
  duration,
  type Fact,
  factLines,
  grouped,
  momentFact,
  printable,
  printableJson,
  relative,
} from '../output.ts'

/** `leasehold outbox enqueue <type> [payload]` */
export async function enqueueCommand(run: Run): Promise<number> {
  const { print, flags, args, terminal } = run
  const [type = '', given = '{}'] = args
  if (type.trim() === '') throw invalidArgument('<type>', type, 'say what happened, for example order.paid.')
  const eventId = textFlag(flags, 'eventId')
  if (eventId !== undefined && !isUuid(eventId)) throw invalidArgument('eventId', eventId, 'give a uuid.')
  const payload = jsonArgument(given === '-' ? await terminal.input() : given)
  const written: NewEvent = {
    type,
    payload,
    eventId,
    orderingKey: textFlag(flags, 'key'),
    headers: headersOf(textsFlag(flags, 'header')),
    availableAt: momentFlag(flags, 'availableAt'),
  }
  const event = await withOutbox(run, async (db, schema) => createOutbox({ schema }).enqueue(db, written))
  if (isSet(flags, 'json')) print(`${printableJson(event)}\n`)
  else if (!event.duplicate)
    print(`Written: event ${event.id}, ${printable(type)}, with the event id ${event.eventId}.\n`)
  else print(`Nothing written: event ${event.id} has the event id ${event.eventId} already.\n`)
  return 0
}

/** The flags by which list and replay choose events. */
export function addFilterFlags(command: Command, statuses: string): Command {
  command
    .option('--status <names>', `only events in these states, separated by commas: ${statuses}`)
    .option('--type <type>', 'only events of this type')
    .option('--key <key>', 'only events of this ordering key')
  return addPeriodFlags(command, 'events written').option(
    '--error <text>',
    'only events whose last error contains this text',
  )
}

function readFilter(flags: Run['flags'], now: Date): EventFilter {
  const status = readNames(flags, 'status', STATUSES)
  const type = textFlag(flags, 'type')
  const orderingKey = textFlag(flags, 'key')
  const error = textFlag(flags, 'error')
  return {
    status,
    type,
    orderingKey,
    ...readPeriod(flags, now),
    error,
  }
}

/** `leasehold outbox list` */
export async function listCommand(run: Run): Promise<number> {
  return runListCommand(run, {
    what: 'events',
    before: 'the id of an event',
    readFilter,
    list: listEvents,
    withTables: withOutbox,
    none: 'The outbox is empty.',
    headings: ['ID', 'STATUS', 'TYPE', 'KEY', 'FAILED', 'WRITTEN', 'DETAILS'],
    line: (event: EventSummary, now) => [
      event.id,
      event.status,
      event.type,
      event.orderingKey ?? '-',
      String(event.attempts),
      `${duration(now.getTime() - event.createdAt.getTime())} ago`,
      details(event, now),
    ],
  })
}

/** What matters most about an event in its state. */
function details(event: EventSummary, now: Date): string {
  const { status, availableAt, claimedBy, publishedAt, lastError, parked, attempts } = event
  const due = availableAt > now ? `due ${relative(availableAt, now)}` : undefined
  const parts: Readonly<Record<Status, readonly (string | null | undefined)[]>> = {
    PENDING: [due, attempts > 0 ? lastError : null],
    CLAIMED: [`by ${claimedBy}`],
    PUBLISHED: [publishedAt === null ? null : `published ${relative(publishedAt, now)}`],
    DEAD: [parked ? 'parked' : null, lastError],
  }
  return parts[status].filter(Boolean).join(': ')
}

/** `leasehold outbox show <id>` */
export async function showCommand(run: Run): Promise<number> {
  const { print, flags, args, terminal } = run
  const [id = ''] = args
  const event = await withOutbox(run, async (db, schema) => showEvent(db, id, { schema }))
  if (isSet(flags, 'json')) print(`${printableJson(event)}\n`)
  else print(`${described(event, new Date(), terminal.width)}\n`)
  return 0
}

/** `leasehold outbox explain <id>` */
export async function explainCommand(run: Run): Promise<number> {
  const [id = ''] = run.args
  return runExplain(run, withOutbox, async (db, options) => explainEvent(db, id, options))
}

function described(event: EventDetails, now: Date, width: number | undefined): string {
  const at = (moment: Date | null): string | undefined => momentFact(moment, now)
  const { maxAttempts, attempts, claimedBy, publishedBy, waitsFor } = event
  const facts: readonly Fact[] = [
    ['Event', event.id],
    ['Event id', event.eventId],
    ['Type', event.type],
    ['Key', event.orderingKey ?? 'none'],
    ['Status', event.parked ? `${event.status}, parked: its key waits for an operator` : event.status],
    ['Waits for', waitsFor === null ? undefined : waiting(waitsFor)],
    ['Failed', `${attempts} of ${maxAttempts ?? 'any number of'} attempts`],
    ['Last error', event.lastError ?? undefined],
    ['Written', at(event.createdAt)],
    ['Expired leases', event.expiries === 0 ? undefined : String(event.expiries)],
    ['Due', event.status === 'PENDING' ? at(event.availableAt) : undefined],
    [
      'Claimed',
      event.claimedAt === null ? undefined : `${at(event.claimedAt)} by ${claimedBy ?? publishedBy}`,
    ],
    ['Leased until', at(event.lockedUntil)],
    ['Published', at(event.publishedAt)],
    ['Dead', at(event.deadAt)],
    ['Token', String(event.token)],
  ]
  const headers = Object.keys(event.headers).length === 0 ? '' : `\nHeaders\n${indented(event.headers)}\n`
  const history = event.history.length === 0 ? '' : `\n${historyText(event.history, now, width)}\n`
  return `${factLines(facts)}\n${history}${headers}\nPayload\n${indented(event.payload)}`
}

/** What became of each attempt, and what operators did, as a table, the newest last. */
function historyText(history: readonly HistoryEntry[], now: Date, width: number | undefined): string {
  const lines = history.map(({ attempt, token, outcome, owner, claimedAt, endedAt, by, error }) => [
    attempt === null ? '-' : String(attempt),
    token === null ? '-' : String(token),
    outcome === 'givenUp' ? 'given up' : outcome,
    claimedAt === null ? '-' : relative(claimedAt, now),
    relative(endedAt, now),
    owner ?? by ?? '-',
    error ?? '',
  ])
  return columns([['ATTEMPT', 'TOKEN', 'RESULT', 'CLAIMED', 'ENDED', 'BY', 'DETAILS'], ...lines], width)
}

function waiting({ id, status, parked, lastError }: WaitedFor): string {
  const why = lastError === null ? '' : `: ${lastError}`
  return `event ${id} of the same key, which is ${parked ? 'parked' : status}${why}`
}

function indented(value: unknown): string {
  return printableJson(value).replaceAll(/^/gm, '  ')
}

const ROW = ['event', 'events'] as const

/** `leasehold outbox replay` */
export async function replayCommand(run: Run): Promise<number> {
  return runBulkCommand(run, {
    name: 'outbox replay',
    verb: 'replay',
    row: ROW,
    choices: '--status, --type, --key, --from, --to or --error. `--status dead` means all dead events.',
    hasEventIds: true,
    readFilter,
    change: replay,
    resume: resumeReplay,
    withTables: withOutbox,
    describe: byState,
  })
}

/** `leasehold outbox retry` */
export async function retryCommand(run: Run): Promise<number> {
  return runBulkCommand(run, {
    name: 'outbox retry',
    verb: 'retry',
    row: ROW,
    choices:
      '--status, --type, --key, --from, --to or --error. `--status pending` means all that wait for a retry.',
    hasEventIds: true,
    readFilter,
    change: retryNow,
    resume: resumeRetryNow,
    withTables: withOutbox,
  })
}

/** `leasehold outbox give-up` */
export async function giveUpCommand(run: Run): Promise<number> {
  return runBulkCommand(run, {
    name: 'outbox give-up',
    verb: 'give up',
    row: ROW,
    choices:
      '--status, --type, --key, --from, --to or --error. `--status pending` means all that wait for a retry.',
    hasEventIds: true,
    readFilter,
    change: giveUp,
    resume: resumeGiveUp,
    withTables: withOutbox,
  })
}

/** `12,000 dead events`, `12,000 events (11,990 dead, 10 published)`. */
function byState({ matched, counts: { dead, published } }: ReplayResult): string {
  const all = dead + published
  // The states are those of all events that match, of which a limit takes only some.
  const of = matched < all ? `the oldest ${grouped(matched)} of ` : ''
  if (published === 0) return `${of}${counted(all, 'dead event')}`
  if (dead === 0) return `${of}${counted(all, 'published event')}`
  return `${of}${counted(all, 'event')} (${grouped(dead)} dead, ${grouped(published)} published)`
}
