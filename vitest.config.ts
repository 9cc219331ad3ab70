import { defineConfig } from 'vitest/config'
import { SlowestFiles } from './test/support/slowest-files.ts'

const onGitHub = process.env['GITHUB_ACTIONS'] === 'true'

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts', 'bench/*.test.mjs', 'bench/report/*.test.mjs'],
    globalSetup: ['test/support/cluster.ts'],
    // Tests wait for events; these only bound a hang, also on a machine under a load of 15 for each core.
    testTimeout: 300_000,
    hookTimeout: 300_000,
    // The global teardown stops PostgreSQL with a checkpoint. After the default of 10 s Vitest would end the process
    // before that, with "close timed out".
    teardownTimeout: 120_000,
    expect: { poll: { timeout: 120_000, interval: 20 } },
    pool: 'forks',
    maxWorkers: 4,
    reporters: ['default', ...(onGitHub ? ['github-actions'] : []), new SlowestFiles()],
  },
})
