import type { Command } from 'commander'
import { isUuid } from '../../admin/request-checks.ts'
import type { DeliveryFilter } from '../../webhooks/admin/filter.ts'
import { DELIVERY_STATUSES, type DeliveryStatus } from '../../webhooks/transitions.ts'
import { type Run, UsageError } from '../command.ts'
import { invalidArgument, pastFlag, textFlag } from '../flags.ts'

const AGO = '2026-03-01T12:00:00Z, or 2h for two hours ago'

/** Which endpoints: what recover takes as well. */
export function addEndpointFilterFlags(command: Command): Command {
  return command
    .option('--endpoint <id>', 'only deliveries to this endpoint')
    .option('--tenant <name>', 'only deliveries to endpoints of this tenant')
}

/** The flags by which list, requeue and cancel choose deliveries. */
export function addFilterFlags(command: Command, statuses: string): Command {
  return addEndpointFilterFlags(command)
    .option('--status <names>', `only these states, separated by commas: ${statuses}`)
    .option('--type <type>', 'only events of this type')
    .option('--event <id>', 'only deliveries of this event, by its event id')
    .option('--from <moment>', `sent at this moment or later: ${AGO}`)
    .option('--to <moment>', 'sent before this moment')
    .option('--failed-since <moment>', 'failed at this moment or later')
    .option('--error <text>', 'only those whose last error contains this text, or has this code')
}

export function readFilter(flags: Run['flags'], now: Date): DeliveryFilter {
  const status = statuses(textFlag(flags, 'status'))
  const type = textFlag(flags, 'type')
  const error = textFlag(flags, 'error')
  const event = textFlag(flags, 'event')
  if (event !== undefined && !isUuid(event))
    throw invalidArgument('event', event, 'give an event id, a uuid.')
  const from = pastFlag(flags, 'from', now)
  const to = pastFlag(flags, 'to', now)
  if (from !== undefined && to !== undefined && from >= to) {
    const given = textFlag(flags, 'to') ?? ''
    throw invalidArgument('to', given, `it must be later than --from, which is ${from.toISOString()}.`)
  }
  const failedSince = pastFlag(flags, 'failedSince', now)
  return {
    ...readEndpoints(flags),
    ...(status === undefined ? {} : { status }),
    ...(type === undefined ? {} : { type }),
    ...(event === undefined ? {} : { ids: [event] }),
    ...(from === undefined ? {} : { from }),
    ...(to === undefined ? {} : { to }),
    ...(failedSince === undefined ? {} : { failedSince }),
    ...(error === undefined ? {} : { error }),
  }
}

export function readEndpoints(flags: Run['flags']): Pick<DeliveryFilter, 'endpoint' | 'tenant'> {
  const endpoint = textFlag(flags, 'endpoint')
  if (endpoint !== undefined && !isUuid(endpoint)) {
    throw invalidArgument('endpoint', endpoint, 'give the id of an endpoint, a uuid.')
  }
  // An empty one is a tenant, too: nobody in particular.
  const { tenant } = flags
  return {
    ...(endpoint === undefined ? {} : { endpoint }),
    ...(typeof tenant === 'string' ? { tenant } : {}),
  }
}

/** The deliveries that a command names. */
export function readIds(args: readonly string[], flags: Run['flags']): readonly string[] {
  for (const id of args) {
    if (/^\d{1,18}$/.test(id) || isUuid(id)) continue
    throw new UsageError(
      `${JSON.stringify(id)} is no delivery: give the number of a delivery, or an event id, a uuid.`,
    )
  }
  if (args.length > 0 && flags['event'] !== undefined) {
    throw new UsageError('--event and ids do not go together: give the event id among the ids.')
  }
  return args
}

function statuses(given: string | undefined): DeliveryStatus[] | undefined {
  return given?.split(',').map((name) => {
    const found = DELIVERY_STATUSES.find((status) => status === name.trim().toLowerCase())
    if (found === undefined)
      throw invalidArgument('status', given, `the states are ${DELIVERY_STATUSES.join(', ')}.`)
    return found
  })
}
