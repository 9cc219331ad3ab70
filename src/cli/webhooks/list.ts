import { type DeliverySummary, listDeliveries } from '../../webhooks/operator/browse.ts'
import type { DeliveryStatus } from '../../webhooks/transitions.ts'
import { isSet, textFlag, wholeFlag, wrong } from '../flag-values.ts'
import type { Run } from '../run.ts'
import { columns, duration, printableJson, relative } from '../text-columns.ts'
import { readFilter } from './deliveries-flags.ts'
import { withWebhooks } from './with-webhooks.ts'

const LARGEST_PAGE = 1_000

/** `leasehold webhooks list` */
export async function listCommand(run: Run): Promise<number> {
  const { print, flags, terminal } = run
  const now = new Date()
  const filter = readFilter(flags, now)
  const limit = wholeFlag(flags, 'limit', LARGEST_PAGE)
  const before = textFlag(flags, 'before')
  if (before !== undefined && !/^\d{1,18}$/.test(before))
    throw wrong('before', before, 'give the id of a delivery.')
  const { deliveries, next } = await withWebhooks(run, async (db, schema) =>
    listDeliveries(db, filter, { schema, limit, before }),
  )
  if (isSet(flags, 'json')) {
    print(`${printableJson({ deliveries, next })}\n`)
    return 0
  }
  if (deliveries.length === 0) {
    const all = Object.keys(filter).length === 0 && before === undefined
    print(all ? 'There are no deliveries.\n' : 'No such deliveries.\n')
    return 0
  }
  const lines = deliveries.map((delivery) => line(delivery, now))
  print(
    `${columns([['ID', 'STATUS', 'TYPE', 'ENDPOINT', 'FAILED', 'SENT', 'NOTE'], ...lines], terminal.width)}\n`,
  )
  if (next !== null) print(`There are more: --before ${next} shows the next ones.\n`)
  return 0
}

function line(delivery: DeliverySummary, now: Date): string[] {
  const { id, status, type, endpointId, endpointUrl, attempts, createdAt } = delivery
  const sent = `${duration(now.getTime() - createdAt.getTime())} ago`
  return [
    id,
    status,
    type,
    endpointUrl ?? `${endpointId} (deleted)`,
    String(attempts),
    sent,
    note(delivery, now),
  ]
}

/** The one thing that matters about it in its state. */
function note(delivery: DeliverySummary, now: Date): string {
  const { status, nextAttemptAt, leaseOwner, deliveredAt, failedAt, attempts } = delivery
  const due =
    leaseOwner !== null
      ? `in flight, by ${leaseOwner}`
      : nextAttemptAt > now
        ? `due ${relative(nextAttemptAt, now)}`
        : undefined
  const notes: Readonly<Record<DeliveryStatus, readonly (string | null | undefined)[]>> = {
    pending: [due, attempts > 0 ? problem(delivery) : null],
    delivered: [deliveredAt === null ? null : `delivered ${relative(deliveredAt, now)}`],
    failed: [failedAt === null ? null : `failed ${relative(failedAt, now)}`, problem(delivery)],
  }
  return notes[status].filter(Boolean).join(': ')
}

function problem({ lastErrorCode, lastError }: DeliverySummary): string | null {
  return lastError ?? lastErrorCode
}
