import { defineConfig } from 'vitest/config'
import { SlowFilesFirst } from './test/support/slow-files-first.ts'
import { SlowestFiles } from './test/support/slowest-files.ts'

const onGitHub = process.env['GITHUB_ACTIONS'] === 'true'

export default defineConfig({
  test: {
    include: [
      'src/**/*.test.ts',
      'test/**/*.test.ts',
      'model/*.test.ts',
      'bench/*.test.mjs',
      'bench/report/*.test.mjs',
      'bench/survival/*.test.mjs',
      'faults/*.test.mjs',
    ],
    globalSetup: ['test/support/cluster.ts'],
    // Tests wait for events; these only bound a hang, also on a machine under a load of 15 for each core.
    testTimeout: 300_000,
    hookTimeout: 300_000,
    // The global teardown stops PostgreSQL with a checkpoint. After the default of 10 s Vitest would end the process
    // before that, with "close timed out".
    teardownTimeout: 120_000,
    expect: { poll: { timeout: 120_000, interval: 20 } },
    pool: 'forks',
    // More than cores, because a file that waits for a lease or a process leaves its core to the others.
    maxWorkers: 5,
    sequence: { sequencer: SlowFilesFirst },
    reporters: ['default', ...(onGitHub ? ['github-actions'] : []), new SlowestFiles()],
  },
})
