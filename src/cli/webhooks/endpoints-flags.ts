/** The flags that say what an endpoint is like. */
import type { Command } from 'commander'
import type { Run } from '../command.ts'
import { collect, headersOf, invalidArgument, textFlag, textsFlag } from '../flags.ts'
import type { EndpointChanges } from '../../webhooks/endpoints/endpoint.ts'

type Flags = Run['flags']

/** Those that create and update have in common. */
export function addEndpointFlags(command: Command): Command {
  return command
    .option('--description <text>', 'for people')
    .option('--types <list>', 'which events it gets, separated by commas: order.paid, user.* (default: all)')
    .option('--header <name=value>', 'sent with every delivery; can be repeated', collect)
    .option('--rate <n>', 'at most so many deliveries per second (default: no limit)')
    .option('--concurrency <n>', 'at most so many deliveries at once (default: 10)')
    .option('--timeout-ms <n>', 'how long a delivery may take (default: 15000)')
    .option('--ordered', 'events of one ordering key one at a time, in order')
}

/** Those that take something away again. */
export function addRemovingFlags(command: Command): Command {
  return command
    .option('--url <url>', 'where deliveries are POSTed to')
    .option('--no-types', 'it gets all events')
    .option('--no-header', 'no headers of its own')
    .option('--no-rate', 'no limit')
    .option('--no-ordered', 'in no order')
}

/** What the flags say; whether it can be is judged where endpoints are changed. */
export function readFields(flags: Flags): EndpointChanges {
  const { ordered } = flags
  return {
    description: textFlag(flags, 'description'),
    eventTypes: flags['types'] === false ? [] : list(textFlag(flags, 'types')),
    headers: headers(flags),
    ratePerSecond: flags['rate'] === false ? null : number(flags, 'rate'),
    concurrency: number(flags, 'concurrency'),
    timeoutMs: number(flags, 'timeoutMs'),
    ordered: typeof ordered === 'boolean' ? ordered : undefined,
  }
}

const UNITS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const

/** `24h`, or 0 for not at all. */
export function windowFlag(flags: Flags, name: string): number | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  if (value === '0') return 0
  const [, count, unit] = /^(\d{1,6})([smhd])$/.exec(value) ?? []
  if (count === undefined) throw invalidArgument(name, value, 'give a time such as 30m, 24h or 7d, or 0.')
  // The pattern lets no other unit through.
  return Number(count) * UNITS[unit as keyof typeof UNITS]
}

function headers(flags: Flags): Record<string, string> | undefined {
  if (flags['header'] === false) return {}
  const given = textsFlag(flags, 'header')
  return given.length === 0 ? undefined : headersOf(given)
}

function list(text: string | undefined): readonly string[] | undefined {
  return text?.split(',').map((part) => part.trim())
}

function number(flags: Flags, name: string): number | undefined {
  const value = textFlag(flags, name)
  if (value === undefined) return undefined
  if (/^\d{1,12}(\.\d{1,6})?$/.test(value)) return Number(value)
  throw invalidArgument(name, value, 'give a number.')
}
