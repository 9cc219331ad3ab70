// Follows the quick start of README.md and docs/tutorial.md, and nothing else, as somebody would who has just found the
// project: in an empty directory, with the packed package, and with npm itself. Prints what was seen, and when. The pages
// become one script for bash, by the convention of CONTRIBUTING.md.
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

const ROOT = fileURLToPath(new URL('../', import.meta.url))
/** Only bounds a hang. */
const HANG_SECONDS = 300
const SHOWN_OUTPUT = 6_000

const PRELUDE = `set -e -o pipefail
exec < /dev/null >> "$LOG" 2>&1
position() { wc -c < "$LOG"; }
expect() {
  local deadline=$((SECONDS + ${HANG_SECONDS}))
  until grep -qF -- "$2" < <(tail -c "+$(($1 + 1))" "$LOG"); do
    [ $SECONDS -lt $deadline ] || { echo "never written: $2"; exit 1; }
    sleep 0.05
  done
  echo "seen $2" >&3
}
`

/** Only bounds a hang: what the pages start stops within its shutdown timeout. */
const STOP_MS = 60_000
const STOP_POLL_MS = 50

/** The processes that a script has started and left running, each with the process that started it. */
function processesOf(group) {
  const table = execFileSync('ps', ['-A', '-o', 'pid=,ppid=,pgid='], { encoding: 'utf8' })
  return table
    .split('\n')
    .map((line) => line.trim().split(/\s+/).map(Number))
    .filter(([, , of]) => of === group)
    .map(([pid, parent]) => ({ pid, parent }))
}

/**
 * Stops what a script has left running, as Ctrl-C would: the programs themselves, and not npx, which would tell them a
 * second time. A second signal makes `leasehold up` exit at once, without stopping its PostgreSQL.
 */
async function stopGroup(group, project) {
  const left = processesOf(group)
  for (const { pid } of left) if (!left.some(({ parent }) => parent === pid)) signal(pid, 'SIGTERM')
  const deadline = performance.now() + STOP_MS
  while (processesOf(group).length > 0) {
    if (performance.now() > deadline) {
      signal(-group, 'SIGKILL')
      for (const folder of [project, join(project, 'shop')]) {
        const pidFile = await readFile(join(folder, '.leasehold/data/postmaster.pid'), 'utf8').catch(() => '')
        if (pidFile !== '') signal(Number.parseInt(pidFile, 10), 'SIGQUIT')
      }
      throw new Error(`processes of ${project} did not stop within ${STOP_MS / 1_000} s, and were killed`)
    }
    await delay(STOP_POLL_MS)
  }
}

function signal(pid, name) {
  try {
    process.kill(pid, name)
  } catch {
    // It has ended meanwhile.
  }
}

/** Turns the blocks of a page, or of one section of it, into commands. */
function script(text) {
  const commands = []
  const blocks = /((?:^<!-- .* -->\n)*)^```(\w+)(.*)\n([^]*?)^```$/gm
  for (const [, comments = '', language, info = '', code = ''] of text.matchAll(blocks)) {
    if (/\bno-run\b/.test(info)) continue
    const file = /\[([^\]]+)\]/.exec(info)?.[1]
    if (file !== undefined)
      commands.push(
        `mkdir -p "$(dirname "$PROJECT/${file}")"\ncat > "$PROJECT/${file}" <<'END OF FILE'\n${code}END OF FILE`,
      )
    else if (language === 'sh') {
      const expected = [...comments.matchAll(/^<!-- expect: (.+) -->$/gm)].map(([, seen]) => seen)
      commands.push(
        'from=$(position)',
        `${code.trimEnd()}${comments.includes('<!-- background -->') ? ' &' : ''}`.replace(
          /\bnpm install leasehold\b/,
          'npm install --no-audit --no-fund "$TARBALL"',
        ),
        ...expected.map((seen) => `expect "$from" '${seen.replaceAll(`'`, `'\\''`)}'`),
      )
    }
  }
  return commands.join('\n')
}

/** Runs a script in an empty project. Prints what it has seen, and returns when that was, in seconds. */
async function follow(title, commands, { directory, tarball }) {
  const project = join(directory, title)
  await mkdir(project)
  const log = join(directory, `${title}.log`)
  const path = join(directory, `${title}.sh`)
  await writeFile(log, '')
  await writeFile(path, `${PRELUDE}${commands}\n`)
  const kept = Object.entries(process.env).filter(
    ([name]) => !/^(LEASEHOLD_|npm_|DATABASE_URL|VITEST)/.test(name),
  )
  const started = performance.now()
  const bash = spawn('bash', ['--noprofile', '--norc', path], {
    cwd: project,
    env: { ...Object.fromEntries(kept), PROJECT: project, LOG: log, TARBALL: tarball },
    stdio: ['ignore', 'inherit', 'inherit', 'pipe'],
    detached: true,
  })
  const seen = []
  createInterface({ input: bash.stdio[3] }).on('line', (line) => {
    const seconds = (performance.now() - started) / 1_000
    seen.push({ text: line.replace(/^seen /, ''), seconds })
    process.stdout.write(`${title}: ${seconds.toFixed(1)} s: ${line}\n`)
  })
  running = { group: bash.pid, project }
  // Not 'close': what runs in the background has the same streams.
  const [code, ended] = await once(bash, 'exit')
  await stopGroup(bash.pid, project)
  running = undefined
  if (code !== 0)
    throw new Error(
      `${title} ended with ${code ?? ended}:\n${(await readFile(log, 'utf8')).slice(-SHOWN_OUTPUT)}`,
    )
  return seen
}

async function output(command, args, cwd) {
  const child = spawn(command, args, { cwd, stdio: ['ignore', 'pipe', 'inherit'] })
  let text = ''
  child.stdout.setEncoding('utf8').on('data', (part) => (text += part))
  const [code] = await once(child, 'close')
  if (code !== 0) throw new Error(`${command} ${args.join(' ')} ended with ${code}`)
  return text.trim()
}

/** The script that runs at the moment. */
let running
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'])
  process.once(name, () => {
    const stopped = running === undefined ? Promise.resolve() : stopGroup(running.group, running.project)
    stopped.catch(() => {}).finally(() => process.exit(1))
  })

const directory = await mkdtemp(join(tmpdir(), 'leasehold-first-'))
// PostgreSQL runs under another account where this is root, and its data belong here.
await chmod(directory, 0o755)
try {
  // Without its scripts: the package was built already.
  const packed = await output(
    'npm',
    ['pack', '--ignore-scripts', '--silent', '--pack-destination', directory],
    ROOT,
  )
  const context = { directory, tarball: join(directory, packed) }
  const readme = await readFile(join(ROOT, 'README.md'), 'utf8')
  const quickStart = /^## Quick start\n([^]*?)(?=^## )/m.exec(readme)?.[1]
  if (quickStart === undefined) throw new Error('README.md has no section "Quick start"')
  await follow('quick-start', script(quickStart), context)
  const tutorial = script(await readFile(join(ROOT, 'docs/tutorial.md'), 'utf8'))
  const seen = await follow('tutorial', tutorial, context)
  const delivered = seen.find(({ text }) => text.includes('sent to'))
  const total = seen.at(-1)
  process.stdout.write(
    `An event was delivered ${delivered.seconds.toFixed(1)} s after the first command, npm install included. ` +
      `All of the tutorial took ${total.seconds.toFixed(1)} s.\n`,
  )
} finally {
  await rm(directory, { recursive: true, force: true })
}
