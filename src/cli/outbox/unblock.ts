import { unblock } from '../../outbox/operator/unblock.ts'
import type { Run } from '../run.ts'
import { counted, printable, printableJson } from '../text-columns.ts'
import { isSet } from './flag-values.ts'
import { principalOf, reasonOf } from './principal.ts'
import { withOutbox } from './with-outbox.ts'

/** `leasehold outbox unblock <key>`; the exit code is 1 when nothing held the key up. */
export async function unblockCommand(run: Run): Promise<number> {
  const { print, flags, args } = run
  const [orderingKey = ''] = args
  const replay = isSet(flags, 'replay')
  const request = { orderingKey, replay, reason: reasonOf(flags), principal: principalOf(run) }
  const { parked } = await withOutbox(run, async (db, schema) => unblock(db, { schema, ...request }))
  if (isSet(flags, 'json')) print(`${printableJson({ orderingKey, replay, parked })}\n`)
  else print(`${told(printable(orderingKey), parked, replay)}\n`)
  return parked === 0 ? 1 : 0
}

function told(key: string, parked: number, replay: boolean): string {
  if (parked === 0) {
    return `No parked event holds up the key ${key}. \`leasehold status\` shows the keys that are held up, and why.`
  }
  const events = counted(parked, 'parked event')
  const fate = parked === 1 ? 'It stays dead' : 'They stay dead'
  return replay
    ? `The key ${key} goes on, with its ${events} first.`
    : `The key ${key} goes on without its ${events}. ${fate}; \`leasehold outbox replay\` brings back what is dead.`
}
