/** What requeue, recover and cancel have in common: they ask, follow, can be stopped, and say what was left out. */
import { isUuid } from '../../admin/request-checks.ts'
import type { Database } from '../../postgres/index.ts'
import { type DeliverySummary, listDeliveries } from '../../webhooks/admin/browse.ts'
import type { ChangeProgress, Following } from '../../webhooks/admin/change.ts'
import { isEmptyFilter, type DeliveryFilter } from '../../webhooks/admin/filter.ts'
import { type Run, UsageError } from '../command.ts'
import { withWebhooks } from '../database.ts'
import { isSet, principalOf, reasonOf } from '../flags.ts'
import { counted, grouped } from '../output.ts'
import { withProgress } from '../process.ts'

/** A delivery that was named, and is not changed. */
export interface LeftOut {
  readonly id: string
  readonly why: string
}

/** More ids than this are not looked up one by one to say what became of each. */
const MOST_LOOKED_UP = 1_000

/** Does it, and can be stopped. */
export async function followed(
  run: Run,
  act: (db: Database, following: Following) => Promise<number>,
): Promise<number> {
  return withProgress<ChangeProgress>(run, { line: progressLine, halfWay }, async (given) =>
    withWebhooks(run, async (db) => act(db, given)),
  )
}

/** What a change that did not come to its end has done, and how to go on. */
export function halfWay({ matched, changed }: ChangeProgress): string {
  return `${grouped(changed)} of ${counted(matched, 'delivery', 'deliveries')} were changed, the rest is as it was. The same command once more does the rest.`
}

/** Who and why; a dry run needs neither. */
export function who(run: Run): { readonly reason?: string; readonly principal?: string } {
  return isSet(run.flags, 'dryRun') ? {} : { reason: reasonOf(run.flags), principal: principalOf(run) }
}

/** Asks the person at the terminal before a change by filter; undefined: there is nothing to ask. */
export function asking(
  { flags, terminal }: Run,
  named: boolean,
): ((question: string) => Promise<boolean>) | undefined {
  if (isSet(flags, 'dryRun') || isSet(flags, 'yes') || named) return undefined
  const { ask } = terminal
  if (ask === undefined) {
    throw new UsageError(
      '--yes is missing: a change by filter asks before it is made, and nobody is at this terminal. ' +
        'Count with --dry-run, then add --yes.',
    )
  }
  return async (question) => {
    const agreed = /^y(es)?$/i.test((await ask(`${question} [y/N] `)).trim())
    if (!agreed) terminal.err('Nothing was changed.\n')
    return agreed
  }
}

export function refuseUnclear(ids: readonly string[], filter: DeliveryFilter, all: string): void {
  if (ids.length > 0 || !isEmptyFilter(filter)) return
  throw new UsageError(
    'say which deliveries: by their ids, or with --endpoint, --tenant, --status, --type, --event, --from, --to, ' +
      `--failed-since or --error. ${all}`,
  )
}

/**
 * Those that were named and are not changed, as they are before anything happens. Of an event, one delivery that is
 * changed is enough.
 */
export async function leftOut(
  db: Database,
  schema: string,
  ids: readonly string[],
  why: (delivery: DeliverySummary) => string | undefined,
): Promise<LeftOut[]> {
  if (ids.length === 0 || ids.length > MOST_LOOKED_UP) return []
  const { deliveries } = await listDeliveries(db, { ids }, { schema, limit: MOST_LOOKED_UP })
  return ids.flatMap((id) => {
    const named = deliveries.filter((delivery) =>
      isUuid(id) ? delivery.eventId === id.toLowerCase() : delivery.id === String(BigInt(id)),
    )
    const reasons = named.map(why)
    if (reasons.includes(undefined)) return []
    return [{ id, why: reasons[0] ?? 'there is no such delivery' }]
  })
}

function progressLine({ matched, changed }: ChangeProgress): string {
  return `\r${grouped(changed)} of ${grouped(matched)}${changed >= matched ? '\n' : ''}`
}
