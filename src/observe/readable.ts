import { inspect } from 'node:util'

/** Turns a line of JSON from pino into a line for a person: `08:15:02 warn  lost a connection  attempt=2`. */
export function readable(line: string): string {
  const { level, time, msg, err, ...rest } = JSON.parse(line) as Record<string, unknown>
  const head = [clockTime(time), String(level).padEnd(5), text(msg)].join(' ').trimEnd()
  const fields = Object.entries(rest).map(([name, value]) => `${name}=${text(value)}`)
  return `${[head, ...fields].join('  ')}${described(err)}\n`
}

function clockTime(time: unknown): string {
  return new Date(String(time)).toTimeString().slice(0, 8)
}

function text(value: unknown): string {
  if (value === undefined) return ''
  return typeof value === 'string' ? value : inspect(value, { breakLength: Infinity })
}

function described(error: unknown): string {
  if (typeof error !== 'object' || error === null) return ''
  const { message, stack } = error as Readonly<Record<string, unknown>>
  return stack === undefined ? `: ${text(message)}` : `\n${text(stack)}`
}
