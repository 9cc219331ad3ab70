import { recover } from '../../webhooks/admin/requeue.ts'
import { type Run, UsageError } from '../command.ts'
import { pastFlag } from '../flags.ts'
import { readEndpoints } from './deliveries-flags.ts'
import { requeueFlags, runRequeue } from './requeue.ts'

/** `leasehold webhooks recover --since <moment>`: requeues all that has failed since. */
export async function recoverCommand(run: Run): Promise<number> {
  const { flags, loaded } = run
  const since = pastFlag(flags, 'since', new Date())
  if (since === undefined) {
    throw new UsageError(
      '--since is missing: say since when, for example --since 2h, or --since 2026-03-01T12:00:00Z.',
    )
  }
  const options = { schema: loaded.settings.schema, since, ...readEndpoints(flags), ...requeueFlags(run) }
  return runRequeue(run, {
    named: false,
    act: async (db, more) => recover(db, { ...options, ...more }),
    leftOut: async () => Promise.resolve([]),
  })
}
