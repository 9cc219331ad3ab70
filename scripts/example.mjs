// The examples: `npm run example` lists them, `npm run example express` starts one. Without DATABASE_URL it has an
// embedded PostgreSQL of its own in .leasehold/examples. Ctrl-C stops everything.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { cp, lstat, readdir, readFile, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { startEmbedded } from 'leasehold/embedded'

const PROJECT = fileURLToPath(new URL('..', import.meta.url))
const EXAMPLES = join(PROJECT, 'examples')
const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP']
const [name, ...args] = process.argv.slice(2)
const names = (await readdir(EXAMPLES)).filter((folder) => existsSync(join(EXAMPLES, folder, 'main.mjs')))

if (name === undefined) await list()
else if (names.includes(name)) process.exitCode = await run(name)
else {
  process.stderr.write(
    `There is no example ${JSON.stringify(name)}. The examples are: ${names.join(', ')}.\n`,
  )
  process.exitCode = 2
}

async function list() {
  const width = Math.max(...names.map(({ length }) => length))
  for (const example of names) {
    const readme = await readFile(join(EXAMPLES, example, 'README.md'), 'utf8')
    const [, sentence = ''] = readme.split('\n\n')
    process.stdout.write(`${example.padEnd(width)}  ${sentence}\n`)
  }
  process.stdout.write('\nStart one: npm run example <name>\n')
}

/** Returns the exit code. */
async function run(example) {
  const directory = join(EXAMPLES, example)
  let child
  let isStopping = false
  for (const signal of SIGNALS) {
    process.on(signal, () => {
      isStopping = true
      child?.kill(signal)
    })
  }

  /** Returns the exit code. Of a signal the process hears from here and once, because it is in a group of its own. */
  async function call(command, commandArgs, variables = {}) {
    const env = { ...process.env, NEXT_TELEMETRY_DISABLED: '1', CHECKPOINT_DISABLE: '1', ...variables }
    child = spawn(command, commandArgs, { env, cwd: directory, stdio: 'inherit', detached: true })
    const [code] = await once(child, 'exit')
    child = undefined
    return code ?? 1
  }

  if (existsSync(join(directory, 'package.json'))) {
    const install = ['ci', '--no-audit', '--no-fund', '--ignore-scripts']
    const code = (await isInstalled(directory)) ? 0 : await call('npm', install)
    if (code !== 0 || isStopping) return code
    await refreshCopy(directory)
    const built = await call('npm', ['run', '--silent', '--if-present', 'build'])
    if (built !== 0 || isStopping) return built
  }

  const { DATABASE_URL } = process.env
  const server = DATABASE_URL
    ? undefined
    : await startEmbedded({ directory: join('.leasehold/examples', example) })
  try {
    if (isStopping) return 0
    return await call(process.execPath, ['main.mjs', ...args], { DATABASE_URL: DATABASE_URL || server.url })
  } finally {
    await server?.stop()
  }
}

/** Whether npm has installed what the lock file names. */
async function isInstalled(directory) {
  const written = await stat(join(directory, 'node_modules/.package-lock.json')).catch(() => undefined)
  return (
    written !== undefined && written.mtimeMs >= (await stat(join(directory, 'package-lock.json'))).mtimeMs
  )
}

/** An example whose npm copies this package, instead of linking it, gets the present build of it. */
async function refreshCopy(directory) {
  const copy = join(directory, 'node_modules/leasehold')
  if (!(await lstat(copy)).isDirectory()) return
  for (const part of ['dist', 'migrations', 'package.json']) {
    await rm(join(copy, part), { recursive: true, force: true })
    await cp(join(PROJECT, part), join(copy, part), { recursive: true })
  }
}
