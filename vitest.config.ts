import { configDefaults, defineConfig } from 'vitest/config'
import { LONG_TESTS } from './test/support/long-tests.ts'
import { OWN_PROCESS } from './test/support/own-process.ts'
import { SlowFilesFirst } from './test/support/slow-files-first.ts'
import { SlowestFiles } from './test/support/slowest-files.ts'

const onGitHub = process.env['GITHUB_ACTIONS'] === 'true'

const common = {
  // Tests wait for events; these only bound a hang, also on a machine under a load of 15 for each core.
  testTimeout: 300_000,
  hookTimeout: 300_000,
  expect: { poll: { timeout: 120_000, interval: 20 } },
  setupFiles: 'test/support/bounded-waiting.ts',
  pool: 'forks',
  // More than cores, because a file that waits for a lease or a process leaves its core to the others.
  maxWorkers: 5,
} as const

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          ...common,
          name: 'shared',
          include: [
            'src/**/*.test.ts',
            'test/**/*.test.ts',
            'model/*.test.ts',
            'bench/*.test.mjs',
            'bench/report/*.test.mjs',
            'bench/survival/*.test.mjs',
            'faults/*.test.mjs',
          ],
          exclude: [...configDefaults.exclude, ...OWN_PROCESS, ...LONG_TESTS],
          isolate: false,
        },
      },
      { test: { ...common, name: 'own', include: OWN_PROCESS } },
      { test: { ...common, name: 'long', include: LONG_TESTS } },
    ],
    // Once for all projects.
    globalSetup: ['test/support/cluster.ts'],
    // The global teardown stops PostgreSQL with a checkpoint. After the default of 10 s Vitest would end the process
    // before that, with "close timed out".
    teardownTimeout: 120_000,
    sequence: { sequencer: SlowFilesFirst },
    reporters: ['default', ...(onGitHub ? ['github-actions'] : []), new SlowestFiles()],
  },
})
