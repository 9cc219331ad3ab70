import { defineConfig } from 'vitest/config'

import { currentPart } from './parts.mjs'

const { tests, database } = currentPart()

export default defineConfig({
  test: {
    include: tests,
    globalSetup: database ? ['test/support/cluster.ts'] : [],
    // A mutant that stops a worker is noticed when this is over. Stryker adds 20 s to the time of the unchanged code.
    testTimeout: 20_000,
    hookTimeout: 300_000,
    teardownTimeout: 120_000,
    expect: { poll: { timeout: 10_000, interval: 20 } },
  },
})
