import type { Database } from '../../postgres/index.ts'
import type { DeliverySummary } from '../../webhooks/admin/browse.ts'
import { type DeliveryFilter, statusesOf } from '../../webhooks/admin/filter.ts'
import { requeue, type Requeued, type RequeueOptions } from '../../webhooks/admin/requeue.ts'
import type { Run } from '../command.ts'
import { isSet, positiveFlag, wholeFlag } from '../flags.ts'
import { counted, grouped, printableJson, relative } from '../output.ts'
import { asking, followed, halfWay, type LeftOut, leftOut, refuseUnclear, who } from './deliveries-change.ts'
import { readFilter, readIds } from './deliveries-flags.ts'

/** `leasehold webhooks requeue`; the exit code is 1 when it was stopped, or a delivery that was named was not requeued. */
export async function requeueCommand(run: Run): Promise<number> {
  const { flags, args, loaded } = run
  const filter = readFilter(flags, new Date())
  const ids = readIds(args, flags)
  refuseUnclear(ids, filter, '`--status failed` means all that has failed.')
  const { schema } = loaded.settings
  const options = { schema, filter, ...requeueFlags(run), ...(ids.length === 0 ? {} : { ids }) }
  return runRequeue(run, {
    named: ids.length > 0,
    act: async (db, more) => requeue(db, { ...options, ...more }),
    leftOut: async (db) => leftOut(db, schema, ids, (delivery) => whyNot(delivery, filter)),
  })
}

/** How fast, how many, who and why. */
export function requeueFlags(run: Run): Pick<RequeueOptions, 'rate' | 'limit' | 'reason' | 'principal'> {
  const { flags } = run
  return {
    rate: positiveFlag(flags, 'rate', 'give the deliveries per second, above 0.'),
    limit: wholeFlag(flags, 'limit', Number.MAX_SAFE_INTEGER),
    ...who(run),
  }
}

export interface RequeueRun {
  /** By their ids: then nobody is asked. */
  readonly named: boolean
  readonly act: (
    db: Database,
    more: Pick<RequeueOptions, 'dryRun' | 'signal' | 'onProgress'>,
  ) => Promise<Requeued>
  readonly leftOut: (db: Database) => Promise<readonly LeftOut[]>
}

export async function runRequeue(run: Run, { named, act, leftOut: look }: RequeueRun): Promise<number> {
  const { flags, print } = run
  const dryRun = isSet(flags, 'dryRun')
  const agreed = asking(run, named)
  return followed(run, async (db, follow) => {
    const left = await look(db)
    if (agreed !== undefined) {
      const found = await act(db, { dryRun: true, signal: follow.signal })
      if (found.matched > 0 && !(await agreed(`Requeue ${deliveries(found.matched)}?`))) return 1
    }
    const done = await act(db, { dryRun, ...follow })
    print(`${isSet(flags, 'json') ? asJson(done, left) : asText(done, left, new Date())}\n`)
    return done.finished && left.length === 0 ? 0 : 1
  })
}

function whyNot({ status, endpointUrl }: DeliverySummary, filter: DeliveryFilter): string | undefined {
  const wanted = filter.status === undefined ? ['failed'] : statusesOf(filter)
  if (status === 'pending') return 'it is pending, and on its way anyhow'
  if (endpointUrl === null) return 'its endpoint was deleted'
  if (wanted.includes(status)) return undefined
  return status === 'delivered'
    ? 'it was delivered; --status delivered sends it once more'
    : `it is ${status}, and --status names another state`
}

function asJson(done: Requeued, left: readonly LeftOut[]): string {
  const { requeue: name, lastDueAt, ...rest } = done
  return printableJson({ ...rest, requeue: name ?? null, lastDueAt: lastDueAt ?? null, leftOut: left })
}

function asText(done: Requeued, left: readonly LeftOut[], now: Date): string {
  const { endpointGone, endpointDisabled, matched } = done
  return [
    summary(done, now),
    ...(endpointDisabled > 0 && matched > 0 ? [waiting(endpointDisabled)] : []),
    ...(endpointGone > 0 ? [staying(endpointGone)] : []),
    ...left.map(({ id, why }) => `${id} was not requeued: ${why}.`),
  ].join('\n')
}

function summary(done: Requeued, now: Date): string {
  const { dryRun, matched, requeued, requeue: name, lastDueAt, finished } = done
  if (!finished && name === undefined) return 'Stopped before anything was changed.'
  if (matched === 0)
    return dryRun ? 'Nothing would be requeued.' : 'Nothing was requeued: no delivery matches.'
  if (dryRun) return `Would requeue ${deliveries(matched)}. Nothing was changed.`
  if (name === undefined) return 'Nothing was requeued: somebody else was faster.'
  if (!finished) return `Stopped. ${halfWay({ matched, changed: requeued })}`
  const due =
    lastDueAt !== undefined && lastDueAt.getTime() - now.getTime() > 1_000
      ? ` The last is due ${relative(lastDueAt, now)}, at ${lastDueAt.toISOString()}.`
      : ''
  return `Requeued ${deliveries(requeued)}.${due} In the audit it is ${name}.`
}

function deliveries(count: number): string {
  return counted(count, 'delivery', 'deliveries')
}

/** With a limit, of all that match. */
function waiting(count: number): string {
  return count === 1
    ? '1 of what matches goes to a disabled endpoint, and waits until it is enabled.'
    : `${grouped(count)} of what matches go to a disabled endpoint, and wait until it is enabled.`
}

function staying(count: number): string {
  return count === 1
    ? '1 delivery stays as it is: its endpoint was deleted.'
    : `${deliveries(count)} stay as they are: their endpoint was deleted.`
}
