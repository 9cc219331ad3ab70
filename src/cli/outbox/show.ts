import { showEvent, type EventDetails, type WaitedFor } from '../../outbox/admin/browse.ts'
import type { Run } from '../command.ts'
import { withOutbox } from '../database.ts'
import { isSet } from '../flags.ts'
import { printable, printableJson, relative } from '../output.ts'

/** `leasehold outbox show <id>` */
export async function showCommand(run: Run): Promise<number> {
  const { print, flags, args } = run
  const [id = ''] = args
  const event = await withOutbox(run, async (db, schema) => showEvent(db, id, { schema }))
  print(isSet(flags, 'json') ? `${printableJson(event)}\n` : `${described(event, new Date())}\n`)
  return 0
}

function described(event: EventDetails, now: Date): string {
  const at = (moment: Date | null): string | undefined =>
    moment === null ? undefined : `${moment.toISOString()} (${relative(moment, now)})`
  const { maxAttempts, attempts, claimedBy, waitsFor } = event
  const lines: readonly (readonly [string, string | undefined])[] = [
    ['Event', event.id],
    ['Event id', event.eventId],
    ['Type', event.type],
    ['Key', event.orderingKey ?? 'none'],
    ['Status', event.parked ? `${event.status}, parked: its key waits for an operator` : event.status],
    ['Waits for', waitsFor === null ? undefined : waiting(waitsFor)],
    ['Failed', `${attempts} of ${maxAttempts ?? 'any number of'} attempts`],
    ['Last error', event.lastError ?? undefined],
    ['Written', at(event.createdAt)],
    ['Expired leases', event.expiries === 0 ? undefined : String(event.expiries)],
    ['Due', event.status === 'PENDING' ? at(event.availableAt) : undefined],
    ['Claimed', event.claimedAt === null ? undefined : `${at(event.claimedAt)} by ${claimedBy}`],
    ['Leased until', at(event.lockedUntil)],
    ['Published', at(event.publishedAt)],
    ['Dead', at(event.deadAt)],
    ['Token', String(event.token)],
  ]
  const facts = lines.flatMap(([name, text]) =>
    text === undefined ? [] : [`${name.padEnd(13)} ${printable(text)}`],
  )
  const headers = Object.keys(event.headers).length === 0 ? '' : `\nHeaders\n${indented(event.headers)}\n`
  return `${facts.join('\n')}\n${headers}\nPayload\n${indented(event.payload)}`
}

function waiting({ id, status, parked, lastError }: WaitedFor): string {
  const why = lastError === null ? '' : `: ${lastError}`
  return `event ${id} of the same key, which is ${parked ? 'parked' : status}${why}`
}

function indented(value: unknown): string {
  return printableJson(value).replaceAll(/^/gm, '  ')
}
