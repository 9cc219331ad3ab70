import type { DeliverySummary } from '../../webhooks/admin/browse.ts'
import { cancel, type Cancelled } from '../../webhooks/admin/cancel.ts'
import type { Run } from '../command.ts'
import { isSet, wholeFlag } from '../flags.ts'
import { counted, printableJson } from '../output.ts'
import { asking, followed, halfWay, type LeftOut, leftOut, refuseUnclear, who } from './deliveries-change.ts'
import { readFilter, readIds } from './deliveries-flags.ts'

/** `leasehold webhooks cancel`; the exit code is 1 when it was stopped, or a delivery that was named was not cancelled. */
export async function cancelCommand(run: Run): Promise<number> {
  const { flags, args, loaded, print } = run
  const filter = readFilter(flags, new Date())
  const ids = readIds(args, flags)
  refuseUnclear(ids, filter, '`--status pending` means all that is pending.')
  const limit = wholeFlag(flags, 'limit', Number.MAX_SAFE_INTEGER)
  const { schema } = loaded.settings
  const options = { schema, filter, limit, ...who(run), ...(ids.length === 0 ? {} : { ids }) }
  const agreed = asking(run, ids.length > 0)
  return followed(run, async (db, follow) => {
    const left = await leftOut(db, schema, ids, whyNot)
    if (agreed !== undefined) {
      const found = await cancel(db, { ...options, dryRun: true, signal: follow.signal })
      if (found.matched > 0 && !(await agreed(`Cancel ${deliveries(found.matched)}?`))) return 1
    }
    const done = await cancel(db, { ...options, dryRun: isSet(flags, 'dryRun'), ...follow })
    print(`${isSet(flags, 'json') ? asJson(done, left) : asText(done, left)}\n`)
    return done.finished && left.length === 0 ? 0 : 1
  })
}

function whyNot({ status, leaseUntil, leaseOwner }: DeliverySummary): string | undefined {
  if (status !== 'pending') return `it is ${status} already`
  if (leaseUntil === null || leaseUntil <= new Date()) return undefined
  return `it is in flight: ${leaseOwner ?? 'a dispatcher'} delivers it at this moment`
}

function asJson({ cancel: name, ...rest }: Cancelled, left: readonly LeftOut[]): string {
  return printableJson({ ...rest, cancel: name ?? null, leftOut: left })
}

function asText(done: Cancelled, left: readonly LeftOut[]): string {
  const { inFlight } = done
  return [
    summary(done),
    ...(inFlight > 0 ? [`${deliveries(inFlight)} in flight: left alone.`] : []),
    ...left.map(({ id, why }) => `${id} was not cancelled: ${why}.`),
  ].join('\n')
}

function summary({ dryRun, matched, cancelled, cancel: name, finished }: Cancelled): string {
  if (!finished && name === undefined) return 'Stopped before anything was changed.'
  if (matched === 0)
    return dryRun ? 'Nothing would be cancelled.' : 'Nothing was cancelled: no delivery matches.'
  if (dryRun) return `Would cancel ${deliveries(matched)}. Nothing was changed.`
  if (name === undefined) return 'Nothing was cancelled: dispatchers were faster.'
  if (!finished) return `Stopped. ${halfWay({ matched, changed: cancelled })}`
  const missed = matched - cancelled
  const rest = missed > 0 ? ` ${deliveries(missed)} more were taken up by dispatchers meanwhile.` : ''
  return `Cancelled ${deliveries(cancelled)}.${rest} In the audit it is ${name}.`
}

function deliveries(count: number): string {
  return counted(count, 'delivery', 'deliveries')
}
