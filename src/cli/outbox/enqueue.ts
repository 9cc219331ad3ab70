import { quoteQualified, type Database } from '../../postgres/index.ts'
import { type Run, UsageError } from '../run.ts'
import { printable, printableJson } from '../text-columns.ts'
import { isSet, momentFlag, textFlag, textsFlag, wrong } from './flag-values.ts'
import { withOutbox } from './with-outbox.ts'

interface Written {
  readonly id: string
  readonly eventId: string
  /** False: an event with this event id was there already. */
  readonly written: boolean
}

/** `leasehold outbox enqueue <type> [payload]` */
export async function enqueueCommand(run: Run): Promise<number> {
  const { print, flags, args, terminal } = run
  const [type = '', given = '{}'] = args
  if (type.trim() === '') throw wrong('<type>', type, 'say what happened, for example order.paid.')
  const eventId = textFlag(flags, 'eventId')
  if (eventId !== undefined && !UUID.test(eventId)) throw wrong('eventId', eventId, 'give a uuid.')
  const values = [
    type,
    checkedJson(given === '-' ? await terminal.input() : given),
    textFlag(flags, 'key') ?? null,
    JSON.stringify(headers(textsFlag(flags, 'header'))),
    momentFlag(flags, 'availableAt') ?? null,
    eventId ?? null,
  ]
  const event = await withOutbox(run, async (db, schema) => enqueue(db, schema, values, eventId))
  if (isSet(flags, 'json')) print(`${printableJson(event)}\n`)
  else if (event.written)
    print(`Written: event ${event.id}, ${printable(type)}, with the event id ${event.eventId}.\n`)
  else print(`Nothing written: event ${event.id} has the event id ${event.eventId} already.\n`)
  return 0
}

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

/** By the SQL function, the same that producers in other languages call. */
async function enqueue(
  db: Database,
  schema: string,
  values: readonly unknown[],
  eventId: string | undefined,
): Promise<Written> {
  const outbox = quoteQualified(schema, 'outbox')
  return db.transaction(async (tx) => {
    const known = await tx.query<{ id: string }>({
      text: `select id::text as id from ${outbox} where bucket = 0 and event_id = $1::uuid`,
      values: [eventId ?? null],
    })
    const { rows } = await tx.query<{ id: string }>({
      text: `select ${quoteQualified(schema, 'enqueue')}($1, $2::jsonb, $3, $4::jsonb, $5::timestamptz, $6::uuid)::text as id`,
      values,
    })
    const id = rows[0]?.id ?? ''
    const found = await tx.query<{ event_id: string }>({
      text: `select event_id from ${outbox} where bucket = 0 and id = $1::bigint`,
      values: [id],
    })
    return { id, eventId: found.rows[0]?.event_id ?? '', written: known.rows.length === 0 }
  })
}

function checkedJson(text: string): string {
  try {
    JSON.parse(text)
    return text
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
