// `npm run audit`: known vulnerabilities of the packages that users install. Fails on high and critical ones. Where the
// registry does not answer, or knows no audits, it says so and does not fail. Not a part of the tests, which run offline.
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'

/** What the report of `npm audit --json` means: its vulnerabilities by severity, or why there is no report. */
export function readReport(stdout) {
  let report
  try {
    report = JSON.parse(stdout)
  } catch {
    return { unanswered: 'npm printed no report' }
  }
  const counts = report?.metadata?.vulnerabilities
  if (counts === undefined)
    return { unanswered: report?.error?.summary || report?.message || 'the registry did not answer' }
  return { serious: (counts.high ?? 0) + (counts.critical ?? 0), all: counts.total ?? 0 }
}

function run() {
  const { stdout } = spawnSync('npm', ['audit', '--omit=dev', '--json'], { encoding: 'utf8' })
  const { unanswered, serious, all } = readReport(stdout ?? '')
  if (unanswered !== undefined) {
    process.stdout.write(`No audit: ${unanswered}.\n`)
    return
  }
  process.stdout.write(`${all} known vulnerabilities, ${serious} of them high or critical.\n`)
  if (serious === 0) return
  process.stdout.write('Run `npm audit --omit=dev` for the list.\n')
  process.exitCode = 1
}

if (process.argv[1] === fileURLToPath(import.meta.url)) run()
