import { BaseSequencer, type TestSpecification } from 'vitest/node'

/**
 * The files that take longest, so that none of them begins when the others have ended. `SlowestFiles` prints them. A
 * file that is missing here is only run later than it could be.
 */
const SLOW_FILES = [
  'test/roles.test.ts',
  'test/tutorial.test.ts',
  'test/documents.test.ts',
  'src/sync/expiries.test.ts',
  'src/outbox/poison.test.ts',
  'test/two-commands.test.ts',
  'test/package.test.ts',
  'src/cli/work.test.ts',
  'src/cli/supervisor.test.ts',
  'src/reconcile/process.test.ts',
  'src/webhooks/dispatcher/many-crashes.test.ts',
  'src/lease/plans.test.ts',
  'src/sync/storm.test.ts',
  'src/lease/model.test.ts',
  'src/outbox/publishers/rabbitmq-relay.test.ts',
  'src/worker/heartbeat/blocked-event-loop.test.ts',
  'src/doctor/doctor.test.ts',
  'src/webhooks/dispatcher/renewal.test.ts',
  'test/idle.test.ts',
  'test/poolers.test.ts',
  'test/topology.test.ts',
  'src/webhooks/dispatcher/many-dispatchers.test.ts',
  'test/many-processes.test.ts',
  'src/outbox/publishers/rabbitmq.test.ts',
  'src/outbox/large-events.test.ts',
  'src/cli/outbox/replay.test.ts',
  'src/webhooks/dispatcher/crash.test.ts',
  'src/worker/reaper/crash.test.ts',
  'test/sync-example.test.ts',
  'test/release.test.ts',
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
