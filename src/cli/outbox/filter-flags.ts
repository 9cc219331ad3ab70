import type { Command } from 'commander'
import type { EventFilter } from '../../outbox/admin/browse-filter.ts'
import { STATUSES, type Status } from '../../outbox/transitions.ts'
import type { Run } from '../command.ts'
import { invalidArgument, pastFlag, textFlag } from '../flags.ts'

/** The flags by which list and replay choose events. */
export function addFilterFlags(command: Command, statuses: string): Command {
  return command
    .option('--status <names>', `only these states, separated by commas: ${statuses}`)
    .option('--type <type>', 'only events of this type')
    .option('--key <key>', 'only events of this ordering key')
    .option(
      '--from <moment>',
      'written at this moment or later: 2026-03-01T12:00:00Z, or 2h for two hours ago',
    )
    .option('--to <moment>', 'written before this moment')
    .option('--error <text>', 'only events whose last error contains this text')
}

export function readFilter(flags: Run['flags'], now: Date): EventFilter {
  const status = statuses(textFlag(flags, 'status'))
  const type = textFlag(flags, 'type')
  const orderingKey = textFlag(flags, 'key')
  const error = textFlag(flags, 'error')
  const from = pastFlag(flags, 'from', now)
  const to = pastFlag(flags, 'to', now)
  if (from !== undefined && to !== undefined && from >= to) {
    throw invalidArgument(
      'to',
      textFlag(flags, 'to') ?? '',
      `it must be later than --from, which is ${from.toISOString()}.`,
    )
  }
  return {
    ...(status === undefined ? {} : { status }),
    ...(type === undefined ? {} : { type }),
    ...(orderingKey === undefined ? {} : { orderingKey }),
    ...(from === undefined ? {} : { from }),
    ...(to === undefined ? {} : { to }),
    ...(error === undefined ? {} : { error }),
  }
}

function statuses(given: string | undefined): Status[] | undefined {
  return given?.split(',').map((name) => {
    const found = STATUSES.find((status) => status === name.trim().toUpperCase())
    if (found === undefined)
      throw invalidArgument('status', given, `the states are ${STATUSES.join(', ').toLowerCase()}.`)
    return found
  })
}
