import { BaseSequencer, type TestSpecification } from 'vitest/node'

/**
 * The files that take longest, so that none of them begins when the others have ended. `SlowestFiles` prints them. A
 * file that is missing here is only run later than it could be.
 */
const SLOW_FILES = [
  'test/installed-examples.test.ts',
  'test/roles.test.ts',
  'test/tutorial.test.ts',
  'test/documents.test.ts',
  'test/docs-site.test.ts',
  'test/package.test.ts',
  'src/cli/supervisor.test.ts',
  'src/outbox/publishers/rabbitmq.test.ts',
  'src/lease/model.test.ts',
  'faults/short.test.mjs',
  'src/sync/expiries.test.ts',
  'test/topology.test.ts',
  'src/cli/work.test.ts',
  'test/two-commands.test.ts',
  'src/reconcile/process.test.ts',
  'model/model.test.ts',
  'src/webhooks/dispatcher/many-crashes.test.ts',
  'test/dashboard/workers.test.ts',
  'test/many-processes.test.ts',
  'src/doctor/schema/drift.test.ts',
  'src/outbox/poison.test.ts',
  'test/dashboard/webhooks.test.ts',
  'test/dashboard/accessibility.test.ts',
  'src/webhooks/dispatcher/many-dispatchers.test.ts',
  'src/doctor/doctor.test.ts',
  'test/citus.test.ts',
  'src/sync/storm.test.ts',
  'src/cli/up.test.ts',
  'test/idle.test.ts',
  'test/plain-role.test.ts',
  'src/outbox/smoke.test.ts',
  'test/failover.test.ts',
  'src/lease/one-bucket.test.ts',
  'src/webhooks/dispatcher/renewal.test.ts',
  'test/dashboard/admin.test.ts',
  'test/metrics.test.ts',
  'test/support/brokers/brokers.test.ts',
  'src/embedded/server.test.ts',
  'src/worker/reaper/crash.test.ts',
  'test/dashboard/outbox.test.ts',
  'faults/unfenced.test.mjs',
  'src/outbox/large-events.test.ts',
  'src/worker/heartbeat/blocked-event-loop.test.ts',
  'src/embedded/owner.test.ts',
  'src/server/api/fuzz.test.ts',
  'test/dashboard/frame.test.ts',
  'src/webhooks/dispatcher/crash.test.ts',
  'test/dashboard/portal.test.ts',
  'src/worker/shutdown.test.ts',
  'test/poolers.test.ts',
  'src/reconcile/replicas.test.ts',
  'src/lease/plans.test.ts',
  'src/cli/serve.test.ts',
  'test/dashboard/leases.test.ts',
  'src/outbox/crash.test.ts',
  'src/outbox/writing.test.ts',
  'src/webhooks/dispatcher/dispatcher.test.ts',
  'src/sync/zombie.test.ts',
  'src/worker/memory.test.ts',
  'src/outbox/stuck-key.test.ts',
  'src/cli/fuzz.test.ts',
  'src/outbox/publishers/rabbitmq-relay.test.ts',
  'test/steady-state.test.ts',
  'src/admin/explain.test.ts',
  'src/testing/conformance.test.ts',
  'src/webhooks/dispatcher/endpoint-down.test.ts',
  'src/postgres/faults.test.ts',
  'src/worker/database-restart.test.ts',
  'src/cli/webhooks/deliveries-ended.test.ts',
  'src/worker/registry/changed-settings.test.ts',
  'test/sync-example.test.ts',
  'test/dashboard/reconcile.test.ts',
  'src/outbox/buckets.test.ts',
  'test/examples.test.ts',
]

/** Runs the slow files first and the others by their size. Vitest knows durations only where it has run before. */
export class SlowFilesFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification): number => {
      const found = SLOW_FILES.findIndex((path) => moduleId.endsWith(`/${path}`))
      return found === -1 ? SLOW_FILES.length : found
    }
    return (await super.sort(files)).toSorted((a, b) => rank(a) - rank(b))
  }
}
