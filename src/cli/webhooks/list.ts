import { type DeliverySummary, listDeliveries } from '../../webhooks/admin/browse.ts'
import type { DeliveryStatus } from '../../webhooks/transitions.ts'
import type { Run } from '../command.ts'
import { withWebhooks } from '../database.ts'
import { beforeFlag, limitFlag } from '../flags.ts'
import { duration, printList, relative } from '../output.ts'
import { readFilter } from './deliveries-flags.ts'

/** `leasehold webhooks list` */
export async function listCommand(run: Run): Promise<number> {
  const { flags } = run
  const now = new Date()
  const filter = readFilter(flags, now)
  const limit = limitFlag(flags)
  const before = beforeFlag(flags, 'the id of a delivery')
  const { deliveries, next } = await withWebhooks(run, async (db, schema) =>
    listDeliveries(db, filter, { schema, limit, before }),
  )
  return printList(run, {
    what: 'deliveries',
    items: deliveries,
    next,
    nextFlag: '--before',
    chosenBy: { ...filter, before },
    none: 'There are no deliveries.',
    headings: ['ID', 'STATUS', 'TYPE', 'ENDPOINT', 'FAILED', 'SENT', 'NOTE'],
    line: (delivery) => line(delivery, now),
  })
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
