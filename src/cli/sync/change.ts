import { cancelJob, type CancelledJob } from '../../sync/admin/cancel.ts'
import { retryFailed, type RetriedJob } from '../../sync/admin/retry.ts'
import type { Run } from '../command.ts'
import { withSync } from '../database.ts'
import { isSet, principalOf, reasonOf } from '../flags.ts'
import { counted, printableJson } from '../output.ts'
import { jobArgument } from './flags.ts'

/** `leasehold sync cancel <job>` */
export async function cancelCommand(run: Run): Promise<number> {
  const { flags, args, print } = run
  const change = { jobId: jobArgument(args), reason: reasonOf(flags), principal: principalOf(run) }
  const done = await withSync(run, async (db, schema) => cancelJob(db, { ...change, schema }))
  print(`${isSet(flags, 'json') ? printableJson(done) : cancelledText(done)}\n`)
  return 0
}

/** `leasehold sync retry <job>` */
export async function retryCommand(run: Run): Promise<number> {
  const { flags, args, print } = run
  const change = { jobId: jobArgument(args), reason: reasonOf(flags), principal: principalOf(run) }
  const done = await withSync(run, async (db, schema) => retryFailed(db, { ...change, schema }))
  print(`${isSet(flags, 'json') ? printableJson(done) : retriedText(done)}\n`)
  return 0
}

export function cancelledText({ jobId, dropped, inFlight }: CancelledJob): string {
  const chunks = dropped === 0 ? '' : ` ${counted(dropped, 'chunk')} dropped`
  const flight =
    inFlight === 0 ? '' : `, of which ${counted(inFlight, 'is', 'are')} in flight and will be finished`
  return `Job ${jobId} is cancelled.${chunks}${flight}${chunks === '' ? '' : '.'}`
}

export function retriedText({ jobId, failed, dropped, planned }: RetriedJob): string {
  const parts = [
    ...(failed > 0 ? [`${counted(failed, 'failed chunk')} tried again`] : []),
    ...(dropped > 0
      ? [`${counted(dropped, 'chunk')} that ${dropped === 1 ? 'was' : 'were'} dropped wanted again`]
      : []),
    ...(planned ? ['it is planned again'] : []),
  ]
  return `Job ${jobId} is open again${parts.length === 0 ? '' : `: ${parts.join(', ')}`}.`
}
