import { defineConfig } from 'vitest/config'
import { SlowestFiles } from './test/support/slowest-files.ts'

const onGitHub = process.env['GITHUB_ACTIONS'] === 'true'

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    globalSetup: ['test/support/cluster.ts'],
    // Tests wait for events; this only bounds a hang.
    testTimeout: 180_000,
    hookTimeout: 120_000,
    expect: { poll: { timeout: 120_000, interval: 20 } },
    pool: 'forks',
    maxWorkers: 4,
    reporters: ['default', ...(onGitHub ? ['github-actions'] : []), new SlowestFiles()],
  },
})
