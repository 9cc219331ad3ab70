import { createOutbox, type NewEvent } from '../../outbox/index.ts'
import type { Run } from '../command.ts'
import { withOutbox } from '../database.ts'
import { headersOf, invalidArgument, isSet, jsonArgument, momentFlag, textFlag, textsFlag } from '../flags.ts'
import { printable, printableJson } from '../output.ts'

/** `leasehold outbox enqueue <type> [payload]` */
export async function enqueueCommand(run: Run): Promise<number> {
  const { print, flags, args, terminal } = run
  const [type = '', given = '{}'] = args
  if (type.trim() === '') throw invalidArgument('<type>', type, 'say what happened, for example order.paid.')
  const eventId = textFlag(flags, 'eventId')
  if (eventId !== undefined && !UUID.test(eventId)) throw invalidArgument('eventId', eventId, 'give a uuid.')
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

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i
