/**
 * The test files that `npm test` leaves to `npm run test:long`, so that it takes minutes. They cost much processor time and
 * rarely find what no other test finds: a file belongs here if it repeats at a large scale what others prove at a small one,
 * measures costs, or concerns a release only. No requirement and no guarantee is proved here alone
 * (`test/requirements.test.ts`, `test/guarantees.test.ts`).
 */
export const LONG_TESTS = [
  // The package and its release, with npm itself.
  'test/package.test.ts',
  'test/tutorial.test.ts',
  'test/release.test.ts',
  'test/docs-build.test.ts',
  'test/nextjs-example.test.ts',
  'test/prisma-example.test.ts',
  // The model of the lease against its specification: whoever changes one of them changes both.
  'model/tla.test.ts',
  // Many processes, or many crashes.
  'test/many-processes.test.ts',
  'src/outbox/many-relays.test.ts',
  'faults/storm.test.mjs',
  'src/reconcile/replicas.test.ts',
  'src/sync/expiries.test.ts',
  'src/sync/storm.test.ts',
  'src/webhooks/dispatcher/many-crashes.test.ts',
  'src/webhooks/dispatcher/many-dispatchers.test.ts',
  'test/support/brokers/brokers.test.ts',
  // Many or large rows.
  'src/outbox/admin/replay-many.test.ts',
  'src/outbox/large-events.test.ts',
  'src/outbox/publishers/nats-relay.test.ts',
  'src/outbox/publishers/rabbitmq-relay.test.ts',
  'src/outbox/publishers/redis-relay.test.ts',
  'src/outbox/stuck-key.test.ts',
  'src/webhooks/admin/browse-plans.test.ts',
  'src/webhooks/admin/replay-many.test.ts',
  'src/worker/memory.test.ts',
  'test/steady-state.test.ts',
  // Every plan, every drift of a schema, every page, every pooler; and input at random.
  'src/lease/plans.test.ts',
  'src/doctor/schema/drift.test.ts',
  'test/dashboard/accessibility.test.ts',
  'test/citus.test.ts',
  'test/poolers.test.ts',
  'src/server/fuzz.test.ts',
  'src/cli/fuzz.test.ts',
  // What rows and statements cost.
  'src/lease/one-bucket.test.ts',
  'src/outbox/cost.test.ts',
  'src/outbox/smoke.test.ts',
]
