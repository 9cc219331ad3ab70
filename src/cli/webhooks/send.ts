import type { Run } from '../command.ts'
import { withWebhooks } from '../database.ts'
import { isSet, jsonArgument, momentFlag, textFlag } from '../flags.ts'
import { counted, printable, printableJson } from '../output.ts'
import { createWebhooks } from '../../webhooks/send/send.ts'

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
      `Sent to nobody: no endpoint wants ${printable(type)}, or those that do were sent ${eventId} before.\n`,
    )
  }
  return 0
}
