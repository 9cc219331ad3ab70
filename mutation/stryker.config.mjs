import { currentPart } from './parts.mjs'

const { name, mutate, excluded } = currentPart()

export default {
  packageManager: 'npm',
  testRunner: 'vitest',
  plugins: ['@stryker-mutator/vitest-runner'],
  vitest: { configFile: 'mutation/vitest.config.mjs', related: false },
  mutate,
  coverageAnalysis: 'perTest',
  // Evaluated once, when the module is loaded: each would need all tests.
  ignoreStatic: true,
  // Texts are those of errors and events: a test that repeats them proves nothing. In statements they are SQL, and are mutated.
  mutator: { excludedMutations: excluded },
  concurrency: 1,
  timeoutMS: 20_000,
  reporters: ['clear-text', 'json', 'progress-append-only'],
  clearTextReporter: { allowColor: false, logTests: false, reportTests: false },
  jsonReporter: { fileName: `node_modules/.cache/mutation/${name}.json` },
  tempDirName: `node_modules/.cache/stryker-${name}`,
  ignorePatterns: ['/dist', '/bench', '/dashboard', '/docs/benchmarks'],
  // Stryker rewrites tsconfig.json by the API of TypeScript, which version 7 does not have. Nothing needs that here.
  tsconfigFile: 'none',
  allowEmpty: false,
}
