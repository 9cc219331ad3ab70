/**
 * `npm run mutation [part…]`: mutates the code of each part, runs the tests that should notice, and prints the mutants that
 * survived. docs/mutation-testing.md has the results and what was found.
 */
import { spawnSync } from 'node:child_process'
import { readFile } from 'node:fs/promises'

import { PARTS } from './parts.mjs'

const chosen = process.argv.slice(2)
const unknown = chosen.filter((name) => !Object.hasOwn(PARTS, name))
if (unknown.length > 0)
  throw new Error(`there is no part ${unknown.join(', ')}: use ${Object.keys(PARTS).join(', ')}`)

const summaries = []
for (const name of chosen.length === 0 ? Object.keys(PARTS) : chosen) {
  const env = { ...process.env, MUTATION_PART: name }
  const { status } = spawnSync('npx', ['stryker', 'run', 'mutation/stryker.config.mjs'], {
    env,
    stdio: 'inherit',
  })
  if (status !== 0) process.exitCode = 1
  else
    summaries.push(
      ...summaryOf(JSON.parse(await readFile(`node_modules/.cache/mutation/${name}.json`, 'utf8'))),
    )
}
process.stdout.write(`
| file | mutants | killed | survived | not covered | score |
|---|---|---|---|---|---|
${summaries.join('\n')}
`)

/** Static mutants are ignored, and count nowhere. */
function summaryOf({ files }) {
  return Object.entries(files).map(([file, { mutants }]) => {
    const count = (...statuses) => mutants.filter(({ status }) => statuses.includes(status)).length
    const killed = count('Killed', 'Timeout', 'RuntimeError')
    const [survived, uncovered] = [count('Survived'), count('NoCoverage')]
    const all = killed + survived + uncovered
    return `| \`${file}\` | ${all} | ${killed} | ${survived} | ${uncovered} | ${((100 * killed) / all).toFixed(0)} % |`
  })
}
