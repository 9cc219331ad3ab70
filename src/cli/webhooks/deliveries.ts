/** The commands of `leasehold webhooks` for deliveries: what they read from flags, and what they print. */
import type { Command } from 'commander'
import { isUuid } from '../../operations/request-checks.ts'
import {
  type DeliveryAttempt,
  type DeliveryDetails,
  type DeliverySummary,
  listDeliveries,
  showDelivery,
} from '../../webhooks/admin/browse.ts'
import { cancel, type CancelResult, resumeCancel } from '../../webhooks/admin/cancel.ts'
import { explainDelivery } from '../../webhooks/admin/explain.ts'
import type { DeliveryFilter } from '../../webhooks/admin/filter.ts'
import { replay, type ReplayResult, resumeReplay } from '../../webhooks/admin/replay.ts'
import { resumeRetryNow, retryNow, type RetryNowResult } from '../../webhooks/admin/retry-now.ts'
import { createWebhooks } from '../../webhooks/send/send.ts'
import { DELIVERY_STATUSES, type DeliveryStatus } from '../../webhooks/transitions.ts'
import { readNames, runBulkCommand } from '../bulk-change.ts'
import type { Run } from '../command.ts'
import { secretKeyOf, withWebhooks } from '../database.ts'
import { runExplain } from '../explain.ts'
import {
  addPeriodFlags,
  invalidArgument,
  isSet,
  jsonArgument,
  momentFlag,
  pastFlag,
  readPeriod,
  textFlag,
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

/** The flags by which list, replay and cancel choose deliveries. */
export function addFilterFlags(command: Command, statuses: string): Command {
  command
    .option('--endpoint <id>', 'only deliveries to this endpoint')
    .option('--tenant <name>', 'only deliveries to endpoints of this tenant')
    .option('--status <names>', `only deliveries in these states, separated by commas: ${statuses}`)
    .option('--type <type>', 'only deliveries of events of this type')
    .option('--event <id>', 'only deliveries of this event, by its event id')
  return addPeriodFlags(command, 'events sent').option(
    '--error <text>',
    'only deliveries whose last error contains this text or has this code',
  )
}

/** For list and replay: pending deliveries have no time of failure. */
export function addFailedSinceFlag(command: Command): Command {
  return command.option('--since <time>', 'only deliveries that failed at this time or later')
}

function readFilter(flags: Run['flags'], now: Date): DeliveryFilter {
  const endpoint = textFlag(flags, 'endpoint')
  if (endpoint !== undefined && !isUuid(endpoint)) {
    throw invalidArgument('endpoint', endpoint, 'give the id of an endpoint, a uuid.')
  }
  // An empty tenant is one too: endpoints that belong to no tenant in particular have it.
  const { tenant } = flags
  const status = readNames(flags, 'status', DELIVERY_STATUSES)
  const type = textFlag(flags, 'type')
  const error = textFlag(flags, 'error')
  const event = textFlag(flags, 'event')
  if (event !== undefined && !isUuid(event))
    throw invalidArgument('event', event, 'give an event id, a uuid.')
  const failedSince = pastFlag(flags, 'since', now)
  return {
    endpoint,
    ...(typeof tenant === 'string' ? { tenant } : {}),
    status,
    type,
    ...(event === undefined ? {} : { ids: [event] }),
    ...readPeriod(flags, now),
    failedSince,
    error,
  }
}

/** `leasehold webhooks send <type> [payload]` */
export async function sendCommand(run: Run): Promise<number> {
  const { print, flags, args, terminal } = run
  const [type = '', given = '{}'] = args
  const event = {
    type,
    payload: jsonArgument(given === '-' ? await terminal.input() : given),
    tenant: textFlag(flags, 'tenant'),
    orderingKey: textFlag(flags, 'key'),
    eventId: textFlag(flags, 'eventId'),
    availableAt: momentFlag(flags, 'availableAt'),
  }
  const sent = await withWebhooks(run, async (db, schema) => createWebhooks({ schema }).send(db, event))
  const { eventId, deliveries } = sent
  if (isSet(flags, 'json')) print(`${printableJson(sent)}\n`)
  else if (deliveries > 0) {
    print(`Sent: ${printable(type)} to ${counted(deliveries, 'endpoint')}, with the event id ${eventId}.\n`)
  } else {
    print(
      `Nothing sent: no endpoint is subscribed to ${printable(type)}, or those that are were sent ${eventId} before.\n`,
    )
  }
  return 0
}

/** `leasehold webhooks explain <id>` */
export async function explainCommand(run: Run): Promise<number> {
  const [id = ''] = run.args
  const secretKey = (await secretKeyOf(run.loaded.settings)) ?? ''
  return runExplain(run, withWebhooks, async (db, options) =>
    explainDelivery(db, id, { ...options, secretKey }),
  )
}

/** `leasehold webhooks list` */
export async function listCommand(run: Run): Promise<number> {
  return runListCommand(run, {
    what: 'deliveries',
    before: 'the id of a delivery',
    readFilter,
    list: listDeliveries,
    withTables: withWebhooks,
    none: 'There are no deliveries.',
    headings: ['ID', 'STATUS', 'TYPE', 'ENDPOINT', 'FAILED', 'SENT', 'DETAILS'],
    line: columnsOf,
  })
}

function columnsOf(delivery: DeliverySummary, now: Date): string[] {
  const { id, status, type, endpointId, endpointUrl, attempts, createdAt } = delivery
  const sent = `${duration(now.getTime() - createdAt.getTime())} ago`
  return [
    id,
    status,
    type,
    endpointUrl ?? `${endpointId} (deleted)`,
    String(attempts),
    sent,
    details(delivery, now),
  ]
}

/** What matters most about a delivery in its state. */
function details(delivery: DeliverySummary, now: Date): string {
  const { status, nextAttemptAt, leaseOwner, deliveredAt, failedAt, attempts } = delivery
  const due =
    leaseOwner !== null
      ? `in flight, by ${leaseOwner}`
      : nextAttemptAt > now
        ? `due ${relative(nextAttemptAt, now)}`
        : undefined
  const parts: Readonly<Record<DeliveryStatus, readonly (string | null | undefined)[]>> = {
    pending: [due, attempts > 0 ? problem(delivery) : null],
    delivered: [deliveredAt === null ? null : `delivered ${relative(deliveredAt, now)}`],
    failed: [failedAt === null ? null : `failed ${relative(failedAt, now)}`, problem(delivery)],
  }
  return parts[status].filter(Boolean).join(': ')
}

function problem({ lastErrorCode, lastError }: DeliverySummary): string | null {
  return lastError ?? lastErrorCode
}

/** `leasehold webhooks show <id>` */
export async function showCommand(run: Run): Promise<number> {
  const { print, flags, args, terminal } = run
  const [id = ''] = args
  const delivery = await withWebhooks(run, async (db, schema) => showDelivery(db, id, { schema }))
  if (isSet(flags, 'json')) print(`${printableJson(delivery)}\n`)
  else print(`${described(delivery, new Date(), terminal.width)}\n`)
  return 0
}

function described(delivery: DeliveryDetails, now: Date, width: number | undefined): string {
  const at = (moment: Date | null): string | undefined => momentFact(moment, now)
  const { status, lastError, lastErrorCode, tenant, leaseOwner, waitsFor, headers, body, history } = delivery
  const facts: readonly Fact[] = [
    ['Delivery', delivery.id],
    ['Event id', delivery.eventId],
    ['Type', delivery.type],
    ['Endpoint', `${delivery.endpointUrl ?? 'deleted'} (${delivery.endpointId})`],
    ['Tenant', tenant === '' ? undefined : (tenant ?? undefined)],
    ['Key', delivery.orderingKey ?? 'none'],
    ['Status', leaseOwner === null ? status : `${status}, in flight`],
    ['Waits for', waitsFor === null ? undefined : waiting(waitsFor)],
    ['Failed', failures(delivery)],
    ['Last error', lastErrorCode === null ? undefined : `${lastErrorCode}: ${lastError ?? ''}`],
    ['Sent', at(delivery.createdAt)],
    ['Next attempt', status === 'pending' ? at(delivery.nextAttemptAt) : undefined],
    ['Leased until', leaseOwner === null ? undefined : `${at(delivery.leaseUntil)} by ${leaseOwner}`],
    ['Delivered', at(delivery.deliveredAt)],
    ['Given up', at(delivery.failedAt)],
    ['Token', String(delivery.token)],
  ]
  const headerText =
    Object.keys(headers).length === 0 ? '' : `\nHeaders\n${indented(printableJson(headers))}\n`
  const attempts = history.length === 0 ? '' : `\n${attemptsText(history, now, width)}\n`
  return `${factLines(facts)}\n${attempts}${headerText}\nBody\n${indented(bodyText(body))}`
}

function failures({ attempts, expiries }: DeliveryDetails): string {
  const failed = `${attempts} ${attempts === 1 ? 'attempt' : 'attempts'}`
  return expiries === 0 ? failed : `${failed}, ${expiries} of them by an expired lease`
}

function waiting({ id, inFlight, lastError }: NonNullable<DeliveryDetails['waitsFor']>): string {
  const why = lastError === null ? '' : `: ${lastError}`
  return `delivery ${id} of the same key, which is ${inFlight ? 'in flight' : 'pending'}${why}`
}

/** Indented for people; what is signed is the text as it is, which `--json` shows. */
function bodyText(body: string): string {
  try {
    return printableJson(JSON.parse(body))
  } catch {
    return printable(body)
  }
}

function indented(text: string): string {
  return text.replaceAll(/^/gm, '  ')
}

/** The attempts as a table, the newest last, with the beginning of the answers. */
function attemptsText(attempts: readonly DeliveryAttempt[], now: Date, width: number | undefined): string {
  const lines = attempts.map(
    ({ attempt, startedAt, recordedAt, durationMs, status, errorCode, error, response }) => [
      String(attempt),
      relative(startedAt ?? recordedAt, now),
      durationMs === null ? '-' : `${durationMs} ms`,
      status === null ? '-' : String(status),
      errorCode ?? 'ok',
      [error, response].filter(Boolean).join(' · '),
    ],
  )
  return columns([['ATTEMPT', 'STARTED', 'TOOK', 'HTTP', 'RESULT', 'DETAILS'], ...lines], width)
}

const ROW = ['delivery', 'deliveries'] as const

const CHOICES = '--endpoint, --tenant, --type, --event, --from, --to, --error'

/** `leasehold webhooks replay` */
export async function replayCommand(run: Run): Promise<number> {
  return runBulkCommand(run, {
    name: 'webhooks replay',
    verb: 'replay',
    row: ROW,
    choices: `${CHOICES}, --status or --since. \`--status failed\` means all failed deliveries.`,
    hasEventIds: true,
    readFilter,
    change: replay,
    resume: resumeReplay,
    withTables: withWebhooks,
    remarks: endpointRemarks,
  })
}

/** `leasehold webhooks cancel` */
export async function cancelCommand(run: Run): Promise<number> {
  return runBulkCommand(run, {
    name: 'webhooks cancel',
    verb: 'cancel',
    row: ROW,
    choices: `${CHOICES} or --status. \`--status pending\` means all pending deliveries.`,
    hasEventIds: true,
    readFilter,
    change: cancel,
    resume: resumeCancel,
    withTables: withWebhooks,
    remarks: ({ counts: { inFlight } }: CancelResult) =>
      inFlight === 0 ? [] : [`${counted(inFlight, 'more is', 'more are')} in flight, and not cancelled.`],
  })
}

/** `leasehold webhooks retry` */
export async function retryCommand(run: Run): Promise<number> {
  return runBulkCommand(run, {
    name: 'webhooks retry',
    verb: 'retry',
    row: ROW,
    choices: `${CHOICES} or --status. \`--status pending\` means all that wait for a retry.`,
    hasEventIds: true,
    readFilter,
    change: retryNow,
    resume: resumeRetryNow,
    withTables: withWebhooks,
    remarks: ({ counts: { endpointDisabled, circuitOpen } }: RetryNowResult) => [
      ...(endpointDisabled > 0 ? [waitingAt(endpointDisabled, 'disabled', 'until it is enabled')] : []),
      ...(circuitOpen > 0 ? [waitingAt(circuitOpen, 'failing', 'for its next probe')] : []),
    ],
  })
}

function waitingAt(count: number, endpoint: string, until: string): string {
  return count === 1
    ? `1 of those that match goes to a ${endpoint} endpoint, and waits ${until}.`
    : `${grouped(count)} of those that match go to a ${endpoint} endpoint, and wait ${until}.`
}

/** With a limit, of all deliveries that match. */
function endpointRemarks({ matched, counts: { endpointDisabled, endpointDeleted } }: ReplayResult): string[] {
  return [
    ...(endpointDisabled > 0 && matched > 0
      ? [waitingAt(endpointDisabled, 'disabled', 'until it is enabled')]
      : []),
    ...(endpointDeleted > 0
      ? [`${counted(endpointDeleted, ...ROW)} cannot be replayed, because the endpoint was deleted.`]
      : []),
  ]
}
