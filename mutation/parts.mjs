/**
 * What is mutated, and by which tests the mutants are to be killed. Parts, because a test that needs a database takes a
 * hundred times as long as one that does not, and must not run for code that a faster one checks.
 */
export const PARTS = {
  /** Decisions that need no database. */
  logic: {
    mutate: [
      'src/lease/lease.ts',
      'src/lease/retry-policy.ts',
      'src/lease/timing.ts',
      'src/worker/completion/outcome.ts',
      'src/worker/completion/finished-rows.ts',
      'src/worker/heartbeat/held-rows.ts',
      'src/worker/slots/limits.ts',
      'src/worker/slots/prefetch.ts',
      'src/worker/slots/slots.ts',
    ],
    tests: [
      'src/lease/lease.test.ts',
      'src/lease/retry-policy.test.ts',
      'src/lease/timing.test.ts',
      'src/worker/completion/outcome.test.ts',
      'src/worker/completion/finished-rows.test.ts',
      'src/worker/heartbeat/held-rows.test.ts',
      'src/worker/heartbeat/renewal.test.ts',
      'src/worker/slots/limits.test.ts',
      'src/worker/slots/prefetch.test.ts',
      'src/worker/slots/slots.test.ts',
    ],
    excluded: ['StringLiteral'],
    database: false,
  },
  /** What a worker writes for a row, and what it does not: trust, loss, and the answers to settlements. */
  writes: {
    mutate: [
      'src/worker/completion/completion.ts',
      'src/worker/completion/settle.ts',
      'src/worker/heartbeat/lease-watch.ts',
    ],
    tests: ['src/worker/fenced-writes.test.ts'],
    excluded: ['StringLiteral'],
    database: false,
  },
  /** The statements, by what they do in PostgreSQL: not by the comparison of their text with docs/sql, which kills anything. */
  statements: {
    mutate: ['src/lease/renew.ts', 'src/lease/settle.ts', 'src/lease/reap.ts', 'src/lease/claim-rows.ts'],
    tests: ['src/lease/store.test.ts', 'src/lease/outcomes.test.ts', 'src/outbox/conformance.test.ts'],
    excluded: [],
    database: true,
  },
}

/** The part that this process works on. */
export function currentPart() {
  const name = process.env['MUTATION_PART']
  if (name === undefined || !Object.hasOwn(PARTS, name))
    throw new Error(`MUTATION_PART is ${name}, but must be one of ${Object.keys(PARTS).join(', ')}`)
  return { name, ...PARTS[name] }
}
