/** What only the flags and arguments of `leasehold sync` hold. */
import { isRowId } from '../../admin/request-checks.ts'
import { SYNC_STATES, type SyncState } from '../../sync/transitions.ts'
import type { Run } from '../command.ts'
import { invalidArgument, textFlag } from '../flags.ts'

export const JSON_FLAG = ['--json', 'one JSON document instead of text, for scripts'] as const
export const STATES = SYNC_STATES.join(', ').toLowerCase()

/** The job that a command names. */
export function jobArgument(args: readonly string[]): string {
  const [jobId = ''] = args
  if (!isRowId(jobId))
    throw invalidArgument('<job>', jobId, 'give the number of a job; `leasehold sync list` has them.')
  return jobId
}

export function statesFlag(flags: Run['flags']): readonly SyncState[] | undefined {
  const given = textFlag(flags, 'state')
  return given?.split(',').map((name) => {
    const found = SYNC_STATES.find((state) => state === name.trim().toUpperCase())
    if (found === undefined) throw invalidArgument('state', given, `the states are ${STATES}.`)
    return found
  })
}

const UNITS: ReadonlyMap<string, number> = new Map([
  ['ms', 1],
  ['s', 1_000],
  ['m', 60_000],
  ['h', 3_600_000],
  ['d', 86_400_000],
])

/** How long, in milliseconds. */
export function durationFlag(flags: Run['flags'], name: string): number | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  const [, number, unit = ''] = /^(\d{1,9})(ms|s|m|h|d)$/.exec(value) ?? []
  const ms = UNITS.get(unit)
  if (number === undefined || ms === undefined)
    throw invalidArgument(name, value, 'say how long: 90s, 15m, 2h or 7d.')
  return Number(number) * ms
}
