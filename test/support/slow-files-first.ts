import { BaseSequencer, type TestSpecification } from 'vitest/node'

/**
 * The files that take longest, so that none of them begins when the others have ended. `SlowestFiles` prints them. A
 * file that is missing here is only run later than it could be.
 */
const SLOW_FILES = [
  'src/cli/supervisor.test.ts',
  'src/outbox/poison.test.ts',
  'test/two-commands.test.ts',
  'src/lease/model.test.ts',
  'src/cli/work.test.ts',
  'src/outbox/publishers/rabbitmq.test.ts',
  'src/doctor/doctor.test.ts',
  'model/model.test.ts',
  'faults/short.test.mjs',
  'test/dashboard/workers.test.ts',
  'src/reconcile/process.test.ts',
  'test/dashboard/webhooks.test.ts',
  'test/roles.test.ts',
  'test/documents.test.ts',
  'src/cli/serve.test.ts',
  'test/metrics.test.ts',
  'src/embedded/server.test.ts',
  'test/topology.test.ts',
  'src/testing/conformance.test.ts',
  'test/examples.test.ts',
  'test/plain-role.test.ts',
  'src/worker/reaper/crash.test.ts',
  'test/idle.test.ts',
  'src/webhooks/dispatcher/renewal.test.ts',
  'src/worker/shutdown.test.ts',
  'src/cli/up.test.ts',
  'src/outbox/crash.test.ts',
  'test/dashboard/admin.test.ts',
  'src/worker/heartbeat/blocked-event-loop.test.ts',
  'test/monitoring.test.ts',
  'src/webhooks/dispatcher/crash.test.ts',
  'faults/unfenced.test.mjs',
  'src/worker/heartbeat/listening.test.ts',
  'src/webhooks/dispatcher/dispatcher.test.ts',
  'src/testing/database.test.ts',
  'test/dashboard/embedding.test.ts',
  'src/server/api/fuzz.test.ts',
  'src/cli/demo/demo.test.ts',
  'src/operations/explain/explain.test.ts',
  'test/dashboard/portal.test.ts',
  'test/dashboard/leases.test.ts',
  'test/dashboard/outbox.test.ts',
  'src/worker/database-restart.test.ts',
  'src/outbox/buckets.test.ts',
  'test/dashboard/frame.test.ts',
  'src/sync/zombie.test.ts',
  'test/sync-example.test.ts',
  'src/outbox/enqueue/enqueue.test.ts',
  'src/webhooks/dispatcher/endpoint-down.test.ts',
  'src/postgres/faults.test.ts',
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
