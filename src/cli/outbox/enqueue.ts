import { createOutbox, type NewEvent } from '../../outbox/index.ts'
import { type Run, UsageError } from '../run.ts'
import { printable, printableJson } from '../text-columns.ts'
import { isSet, momentFlag, textFlag, textsFlag, wrong } from '../flag-values.ts'
import { withOutbox } from './with-outbox.ts'

/** `leasehold outbox enqueue <type> [payload]` */
export async function enqueueCommand(run: Run): Promise<number> {
  const { print, flags, args, terminal } = run
  const [type = '', given = '{}'] = args
  if (type.trim() === '') throw wrong('<type>', type, 'say what happened, for example order.paid.')
  const eventId = textFlag(flags, 'eventId')
  if (eventId !== undefined && !UUID.test(eventId)) throw wrong('eventId', eventId, 'give a uuid.')
  const payload = checkedJson(given === '-' ? await terminal.input() : given)
  const written: NewEvent = {
    type,
    payload,
    eventId,
    orderingKey: textFlag(flags, 'key'),
    headers: headers(textsFlag(flags, 'header')),
    availableAt: momentFlag(flags, 'availableAt'),
  }
  const event = await withOutbox(run, async (db, schema) => createOutbox({ schema }).enqueue(db, written))
  if (isSet(flags, 'json')) print(`${printableJson(event)}\n`)
  else if (event.written)
    print(`Written: event ${event.id}, ${printable(type)}, with the event id ${event.eventId}.\n`)
  else print(`Nothing written: event ${event.id} has the event id ${event.eventId} already.\n`)
  return 0
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

function checkedJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    const start = printable(text.length > 60 ? `${text.slice(0, 60)}…` : text)
    const problem = error instanceof Error ? printable(error.message) : String(error)
    throw new UsageError(
      `the payload is not JSON: ${start}\n  ${problem}\n  Give it as '{"id": 1}', a text as '"text"', or - to read it from stdin.`,
    )
  }
}

function headers(given: readonly string[]): Record<string, string> {
  return Object.fromEntries(
    given.map((header) => {
      const [, name = '', value = ''] = /^([^=]+)=(.*)$/s.exec(header) ?? []
      if (name.trim() === '') throw wrong('header', header, 'give it as name=value.')
      return [name.trim(), value]
    }),
  )
}
