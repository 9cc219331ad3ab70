// `npm run audit`: known vulnerabilities of the packages that users get. Fails on high and critical ones. Where the registry
// does not answer, or knows no audits, it says that nothing was audited, and fails with `-- --required` only, because the
// tests also run offline.
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

/** They are development dependencies, and a part of the published dashboard. */
export const BUNDLED = ['openapi-fetch', 'preact', 'uplot']

const SERIOUS = new Set(['high', 'critical'])

/** What the report of `npm audit --json` means: the names of vulnerable packages, or why there is no report. */
export function readReport(stdout) {
  let report
  try {
    report = JSON.parse(stdout)
  } catch {
    return { unanswered: 'npm printed no report' }
  }
  const found = report?.vulnerabilities
  // Both are there in every report, and neither in an error.
  if (found === undefined || report?.metadata?.vulnerabilities === undefined)
    return { unanswered: report?.error?.summary || report?.message || 'the registry did not answer' }
  const names = Object.keys(found)
  return { all: names, serious: names.filter((name) => SERIOUS.has(found[name].severity)) }
}

/**
 * What to print, and whether to fail. `production` is the report about the dependencies of the package, `everything` also
 * has the tools that it is developed with, of which those that users get count as well.
 */
export function judge(production, everything, { shipped, isRequired }) {
  const unanswered = production.unanswered ?? everything.unanswered
  if (unanswered !== undefined)
    return { text: `NOT AUDITED, so vulnerabilities are not known: ${unanswered}.`, failed: isRequired }
  const serious = new Set([
    ...production.serious,
    ...everything.serious.filter((name) => shipped.includes(name)),
  ])
  const others = everything.serious.filter((name) => !serious.has(name))
  const lines = [
    `Audited: ${serious.size} packages that users get have a high or critical vulnerability${listed([...serious])}.`,
    ...(others.length === 0 ? [] : [`Of the tools for development: ${others.length}${listed(others)}.`]),
    ...(serious.size === 0 ? [] : ['Run `npm audit` for the details.']),
  ]
  return { text: lines.join('\n'), failed: serious.size > 0 }
}

function listed(names) {
  return names.length === 0 ? '' : `: ${names.join(', ')}`
}

function run() {
  const audit = (...flags) =>
    readReport(spawnSync('npm', ['audit', '--json', ...flags], { encoding: 'utf8' }).stdout ?? '')
  const { peerDependencies = {} } = JSON.parse(
    readFileSync(new URL('../package.json', import.meta.url), 'utf8'),
  )
  const shipped = [...BUNDLED, ...Object.keys(peerDependencies)]
  const isRequired = process.argv.includes('--required')
  const { text, failed } = judge(audit('--omit=dev'), audit(), { shipped, isRequired })
  process.stderr.write(`${text}\n`)
  if (failed) process.exitCode = 1
}

if (process.argv[1] === fileURLToPath(import.meta.url)) run()
