import { unblock, type Unblocked } from '../../outbox/admin/unblock.ts'
import type { Run } from '../command.ts'
import { withOutbox } from '../database.ts'
import { isSet, principalOf, reasonOf } from '../flags.ts'
import { counted, printable, printableJson } from '../output.ts'

/** `leasehold outbox unblock <key>`; the exit code is 1 when nothing held the key up. */
export async function unblockCommand(run: Run): Promise<number> {
  const { print, flags, args } = run
  const [orderingKey = ''] = args
  const replay = isSet(flags, 'replay')
  const request = { orderingKey, replay, reason: reasonOf(flags), principal: principalOf(run) }
  const unblocked = await withOutbox(run, async (db, schema) => unblock(db, { schema, ...request }))
  if (isSet(flags, 'json')) print(`${printableJson({ orderingKey, replay, ...unblocked })}\n`)
  else print(`${told(printable(orderingKey), unblocked, replay)}\n`)
  return unblocked.parked + unblocked.failing === 0 ? 1 : 0
}

function told(key: string, { parked, failing }: Unblocked, replay: boolean): string {
  if (parked + failing === 0) {
    return `No event holds up the key ${key}. \`leasehold status\` shows the keys that are held up, and why.`
  }
  const events = parked > 0 ? counted(parked, 'parked event') : 'event that kept failing'
  const fate = parked > 1 ? 'They stay dead' : parked === 1 ? 'It stays dead' : 'It is dead now'
  return replay
    ? `The key ${key} goes on, with its ${events} first.`
    : `The key ${key} goes on without its ${events}. ${fate}; \`leasehold outbox replay\` brings back what is dead.`
}
