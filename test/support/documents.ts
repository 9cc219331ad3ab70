import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdir, open, readdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Client } from 'pg'
import { parseAst } from 'rolldown/parseAst'
import { parse as parseYaml } from 'yaml'
import { filesOf } from './project-files.ts'

/** One fenced code block of a page. */
export interface Block {
  readonly line: number
  readonly language: string
  /** The name in brackets: the block is this file of the page's project. */
  readonly file: string | undefined
  readonly isRun: boolean
  /** What the output must contain, from `<!-- expect: … -->`. */
  readonly expected: readonly string[]
  readonly code: string
}

export interface Page {
  /** Its path in the repository. */
  readonly path: string
  /** It uses the embedded server of its own directory: `embedded: true` in its front matter. */
  readonly isEmbedded: boolean
  readonly blocks: readonly Block[]
  /** What breaks the convention, as `path:line: problem`. */
  readonly problems: readonly string[]
}

const ROOT = fileURLToPath(new URL('../../', import.meta.url))
/** Only bounds a hang. */
const OUTPUT_TIMEOUT_MS = 120_000
const OUTPUT_POLL_MS = 20
const SHOWN_OUTPUT = 4_000
const DEFAULT_PORT = '7400'

/** Languages that are shown only. Their files are written if they have a name. */
const SHOWN = new Set(['text', 'mermaid', 'dockerfile', 'ini', 'diff', 'promql', 'html'])
const LANGUAGES = new Set([...SHOWN, 'js', 'ts', 'sh', 'sql', 'json', 'yaml'])

// ---- Reading pages

/** README.md and the pages in docs, without decisions and generated pages. */
export async function readPages(): Promise<Page[]> {
  const found = (await filesOf('docs')).filter(
    (path) => path.endsWith('.md') && !/^docs\/(\.|decisions\/|sql\/)/.test(path),
  )
  return Promise.all(
    ['README.md', ...found.toSorted()].map(async (path) =>
      readPage(path, await readFile(join(ROOT, path), 'utf8')),
    ),
  )
}

export function readPage(path: string, text: string): Page {
  const lines = text.split('\n')
  const { settings, end } = frontMatter(lines)
  const blocks: Block[] = []
  const problems: string[] = []
  /** The comments since the last line of another kind: they belong to the block that follows. */
  let comments: string[] = []
  for (let index = end; index < lines.length; index += 1) {
    const line = lines[index] ?? ''
    const fence = /^( *)(`{3,}|~{3,})(.*)$/.exec(line)
    if (fence !== null) {
      const [, indent = '', marks = '', info = ''] = fence
      const close = lines.findIndex((other, at) => at > index && other.trim() === marks)
      if (close === -1) {
        problems.push(`${path}:${index + 1}: the code block has no end`)
        break
      }
      const code = lines.slice(index + 1, close).map((each) => each.slice(indent.length))
      const block = readBlock({ line: index + 1, info, comments, code: `${code.join('\n')}\n` })
      problems.push(...block.problems.map((problem) => `${path}:${index + 1}: ${problem}`))
      blocks.push(block)
      comments = []
      index = close
      continue
    }
    if (/^ {4}/.test(line) && /^\s*$/.test(lines[index - 1] ?? '') && !isInList(lines, index))
      problems.push(`${path}:${index + 1}: an indented code block; use a fence with a language`)
    const comment = /^ *<!-- (.*) -->$/.exec(line)?.[1]
    if (comment !== undefined) comments.push(comment)
    else if (line.trim() !== '' && line !== '<!-- setup') comments = []
  }
  return { path, isEmbedded: settings['embedded'] === true, blocks, problems }
}

function frontMatter(lines: readonly string[]): { settings: Record<string, unknown>; end: number } {
  const close = lines[0] === '---' ? lines.indexOf('---', 1) : -1
  if (close === -1) return { settings: {}, end: 0 }
  const settings: unknown = parseYaml(lines.slice(1, close).join('\n'))
  // Front matter is our own, and each setting is compared with what it may be.
  return { settings: (settings ?? {}) as Record<string, unknown>, end: close + 1 }
}

/** Whether an indented line continues an item of a list, and is not code. */
function isInList(lines: readonly string[], index: number): boolean {
  for (let at = index - 1; at >= 0; at -= 1) {
    const line = lines[at] ?? ''
    if (/^\s*([-*]|\d+\.) /.test(line)) return true
    if (/^\S/.test(line)) return false
  }
  return false
}

function readBlock(found: {
  line: number
  info: string
  comments: readonly string[]
  code: string
}): Block & { readonly problems: readonly string[] } {
  const { line, comments } = found
  // A reader sees a command in the foreground of its own terminal.
  const code = comments.includes('background') ? `${found.code.trimEnd()} &\n` : found.code
  const [, language = '', rest = ''] = /^\s*(\S*)(.*)$/.exec(found.info) ?? []
  const file = /\[([^\]]+)\]/.exec(rest)?.[1]
  const isRun = !/(^|\s)no-run(\s|$)/.test(rest)
  const expected = comments.flatMap((comment) => /^expect: (.+)$/.exec(comment)?.[1] ?? [])
  const problems: string[] = []
  if (language === '') problems.push('the code block has no language; use `text` for output')
  else if (!LANGUAGES.has(language))
    problems.push(`the language ${language} is unknown to test/support/documents.ts`)
  if (!isRun && !comments.some((comment) => /^no-run: \S/.test(comment)))
    problems.push('no-run needs a reason in the line before: <!-- no-run: reason -->')
  if (file !== undefined && /^\/|(^|\/)\.\.(\/|$)/.test(file)) problems.push(`${file} is outside the project`)
  if (language === 'sh' && isRun && / &$/m.test(code) && expected.length === 0)
    problems.push(
      'a command in the background needs <!-- expect: a part of its output --> in the line before',
    )
  return { line, language, file, isRun, expected, code, problems }
}

// ---- Checking what needs no process

/** Code that is a file of examples/, or a marked part of one: those have tests of their own. */
export async function exampleCode(): Promise<ReadonlySet<string>> {
  const code = new Set<string>()
  for (const path of await filesOf('examples')) {
    if (!/\.(ts|mjs|cjs|js|sql)$/.test(path)) continue
    const text = await readFile(join(ROOT, path), 'utf8')
    code.add(text.trim())
    for (const [, indent = '', part = ''] of text.matchAll(
      /^( *)(?:\/\/|--) begin\n(.*?)^\1(?:\/\/|--) end$/gms,
    ))
      code.add(part.replaceAll(new RegExp(`^${indent}`, 'gm'), '').trim())
  }
  return code
}

/** Parses JSON, YAML, and the code that is not run. */
export function parseBlocks({ path, blocks }: Page, examples: ReadonlySet<string>): string[] {
  return blocks.flatMap(({ line, language, code, isRun }) => {
    try {
      if (language === 'json') JSON.parse(code)
      else if (language === 'yaml') parseYaml(code)
      else if ((language === 'ts' || language === 'js') && !isRun && !examples.has(code.trim()))
        parseAst(code, { lang: 'ts' })
      return []
    } catch (error) {
      return [`${path}:${line}: ${String(error)}`]
    }
  })
}

/**
 * Type-checks the TypeScript of all pages in one program, strictly, and their JavaScript in another, where a parameter
 * may have no type. Returns the errors by page.
 */
export async function checkTypes(
  pages: readonly Page[],
  examples: ReadonlySet<string>,
  directory: string,
): Promise<Map<string, string[]>> {
  const origins = new Map<string, { readonly page: Page; readonly line: number }>()
  const files: Record<'js' | 'ts', string[]> = { js: [], ts: [] }
  await installPackages(directory)
  for (const page of pages) {
    const project = join(directory, projectName(page))
    await createProject(project)
    for (const block of page.blocks) {
      const { language, file, line, code, isRun } = block
      const isCode = language === 'js' || language === 'ts'
      if (file !== undefined) await writeProjectFile(project, file, code)
      if (!isCode || !isRun || (file === undefined && examples.has(code.trim()))) continue
      const name = file ?? `block-${line}.${language}`
      if (file === undefined) await writeProjectFile(project, name, code)
      const path = `${projectName(page)}/${name}`
      origins.set(path, { page, line })
      if (!files[language].includes(path)) files[language].push(path)
    }
  }
  const output = await Promise.all([
    compile(directory, 'ts', files.ts, { strict: true }),
    compile(directory, 'js', files.js, { strict: false, allowJs: true, checkJs: true }),
  ])
  const errors = new Map<string, string[]>()
  for (const text of output.join('\n').split('\n')) {
    const [, path = '', line = '0', message = ''] = /^(\S+)\((\d+),\d+\): error (.*)$/.exec(text) ?? []
    const origin = origins.get(path)
    if (origin === undefined) {
      if (/error TS/.test(text)) throw new Error(text)
      continue
    }
    // JavaScript cannot say what a payload, or a row of a result, is.
    if (/\.[cm]?js$/.test(path) && /type '(unknown|object)'/.test(message)) continue
    const found = errors.get(origin.page.path) ?? []
    found.push(`${origin.page.path}:${origin.line + Number(line)}: ${message}`)
    errors.set(origin.page.path, found)
  }
  return errors
}

async function compile(
  directory: string,
  language: 'js' | 'ts',
  files: readonly string[],
  strictness: Readonly<Record<string, boolean>>,
): Promise<string> {
  if (files.length === 0) return ''
  const compilerOptions = {
    target: 'ES2023',
    lib: ['ES2023'],
    module: 'NodeNext',
    moduleDetection: 'force',
    types: ['node'],
    noEmit: true,
    skipLibCheck: true,
    allowImportingTsExtensions: true,
    resolveJsonModule: true,
    ...strictness,
  }
  const project = join(directory, `tsconfig.${language}.json`)
  await writeFile(project, JSON.stringify({ compilerOptions, files }))
  const tsc = join(ROOT, 'node_modules/.bin/tsc')
  const args = ['--project', project, '--pretty', 'false']
  return new Promise((resolve, reject) => {
    execFile(tsc, args, { cwd: directory, maxBuffer: 64 * 1024 * 1024 }, (error, stdout, stderr) => {
      // It exits with 1 or 2 if there are errors, and prints them.
      if (error === null || /error TS/.test(stdout)) resolve(stdout)
      else reject(new Error(`tsc failed: ${stdout}${stderr}`, { cause: error }))
    })
  })
}

// ---- Running pages

export interface RunOptions {
  /** Where the project is created. Packages are installed in it or above it. */
  readonly directory: string
  /** Of a migrated database; undefined if the page uses the embedded server. */
  readonly databaseUrl: string | undefined
  /** What the port 7400 is replaced by, in commands and files. */
  readonly port: number
}

/** Whether a page has anything to run, and so needs a project. */
export function hasSteps({ blocks }: Page): boolean {
  return blocks.some(({ language, isRun }) => isRun && (language === 'sh' || language === 'sql'))
}

/** Runs a page from top to bottom, as a reader would. Throws at the first block that fails. */
export async function runPage(page: Page, options: RunOptions): Promise<void> {
  const project = join(options.directory, projectName(page))
  await createProject(project)
  // Without a given port, `up` takes a free one only where it needs no keys: on the embedded server.
  const usesPort = page.blocks.some(
    ({ code }) => code.includes(DEFAULT_PORT) || (!page.isEmbedded && /^npx leasehold up\b/m.test(code)),
  )
  const withPort = (code: string): string => code.replaceAll(DEFAULT_PORT, String(options.port))
  const shell = await openShell(project, {
    ...cleanEnvironment(options.directory),
    ...(options.databaseUrl === undefined ? {} : { DATABASE_URL: options.databaseUrl }),
    ...(usesPort ? { LEASEHOLD_PORT: String(options.port) } : {}),
  })
  try {
    for (const block of page.blocks) {
      const { language, file, isRun, line, expected } = block
      const code = withPort(block.code)
      try {
        if (file !== undefined) await writeProjectFile(project, file, code)
        else if (!isRun) continue
        else if (language === 'sh') await shell.run(code, expected)
        else if (language === 'sql') await runSql(code, options.databaseUrl)
      } catch (error) {
        const message = error instanceof Error ? error.message : String(error)
        throw new Error(`${page.path}:${line}: ${message}`, { cause: error })
      }
    }
    await shell.close()
  } finally {
    await shell.kill()
    if (page.isEmbedded) await killServers(project)
  }
}

/** Kills the embedded servers of a page that failed before it had stopped them. */
async function killServers(project: string): Promise<void> {
  const files = await readdir(project, { recursive: true })
  for (const path of files.filter((each) => each.endsWith('/postmaster.pid'))) {
    const [pid] = (await readFile(join(project, path), 'utf8')).split('\n')
    try {
      // The immediate shutdown of PostgreSQL.
      process.kill(Number(pid), 'SIGQUIT')
    } catch {
      // It has ended.
    }
  }
}

async function runSql(code: string, url: string | undefined): Promise<void> {
  if (url === undefined) throw new Error('a page with the embedded server cannot have SQL blocks')
  const client = new Client({ connectionString: url, application_name: 'documents' })
  await client.connect()
  try {
    await client.query(code)
  } finally {
    await client.end()
  }
}

interface Shell {
  /** Runs commands and waits until they have ended, and until all processes of the page have written what is expected. */
  run(code: string, expected: readonly string[]): Promise<void>
  /** Terminates what runs in the background, and throws if it does not end in an orderly way. */
  close(): Promise<void>
  kill(): Promise<void>
}

/** One session of bash for a page, so that variables, `$!` and the working directory stay as they are between blocks. */
async function openShell(project: string, env: Readonly<Record<string, string>>): Promise<Shell> {
  const logPath = join(project, '..', `${project.split('/').at(-1) ?? ''}.log`)
  const log = await open(logPath, 'a')
  const bash = spawn('bash', ['--noprofile', '--norc', '-o', 'pipefail', '-e'], {
    cwd: project,
    env,
    stdio: ['pipe', log.fd, log.fd, 'pipe'],
    // A process group of its own, so that nothing of it remains.
    detached: true,
  })
  await log.close()
  const { stdin, stdio, pid } = bash
  if (stdin === null || pid === undefined) throw new Error('bash could not be started')
  stdin.on('error', () => {})
  // A pipe that this process reads, as declared above.
  const control = createInterface({ input: stdio[3] as Readable })
  const answers: string[] = []
  let waiting: (() => void) | undefined
  let exit: string | undefined
  control.on('line', (answer) => {
    answers.push(answer)
    waiting?.()
  })
  bash.once('exit', (code, signal) => {
    exit = signal ?? `exit code ${code}`
    waiting?.()
  })
  const exited = once(bash, 'exit')
  const output = async (from = 0): Promise<string> => (await readFile(logPath)).subarray(from).toString()
  const fail = async (problem: string, from: number): Promise<never> => {
    throw new Error(`${problem}\n${(await output(from)).slice(-SHOWN_OUTPUT)}`)
  }
  let steps = 0

  /** Returns what bash answers, or undefined if it has ended. */
  async function perform(code: string): Promise<string | undefined> {
    steps += 1
    const script = `${project}.step-${steps}.sh`
    await writeFile(script, code)
    const answer = new Promise<void>((resolve) => {
      waiting = resolve
    })
    // Commands do not read what bash itself reads.
    stdin?.write(`. '${script}' < /dev/null\necho "done" >&3\n`)
    const timer = new AbortController()
    const late = delay(OUTPUT_TIMEOUT_MS, undefined, { signal: timer.signal }).catch(() => {})
    if (exit === undefined && answers.length === 0) await Promise.race([answer, late])
    timer.abort()
    waiting = undefined
    return answers.shift() ?? (exit === undefined ? 'does not end' : undefined)
  }

  return {
    async run(code, expected) {
      const from = (await readFile(logPath)).length
      const answer = await perform(code)
      if (answer === undefined) await fail(`failed with ${exit}`, from)
      if (answer !== 'done') await fail('the commands do not end', from)
      const deadline = performance.now() + OUTPUT_TIMEOUT_MS
      for (const text of expected) {
        while (!(await output(from)).includes(text)) {
          if (performance.now() > deadline) await fail(`did not write "${text}", but:`, from)
          await delay(OUTPUT_POLL_MS)
        }
      }
    },
    async close() {
      const from = (await readFile(logPath)).length
      // 143 is the end of a program that does not handle SIGTERM.
      const code = `for job in $(jobs -p); do kill "$job" 2> /dev/null || continue
status=0; wait "$job" || status=$?
[ $status = 0 ] || [ $status = 143 ] || { echo "a command in the background ended with exit code $status"; false; }
done\n`
      const answer = await perform(code)
      if (answer !== 'done') await fail('background commands did not end in an orderly way', from)
    },
    async kill() {
      stdin.end()
      try {
        process.kill(-pid, 'SIGKILL')
      } catch {
        // Everything has ended.
      }
      await exited
    },
  }
}

// ---- The project of a page

function projectName({ path }: Page): string {
  return path.replace(/\.md$/, '').replaceAll('/', '-')
}

async function createProject(directory: string): Promise<void> {
  await mkdir(directory, { recursive: true })
  await writeFile(join(directory, 'package.json'), '{ "private": true, "type": "module" }\n')
}

async function writeProjectFile(project: string, file: string, code: string): Promise<void> {
  const path = join(project, file)
  await mkdir(dirname(path), { recursive: true })
  await writeFile(path, code)
}

/**
 * Links this package, as built, and the packages of this repository into a directory above the projects. `npx` and
 * `npm install` are replaced: they find what is linked, and never ask the registry. `test/tutorial.test.ts` uses npm's.
 */
export async function installPackages(directory: string): Promise<void> {
  const modules = join(directory, 'node_modules')
  await mkdir(join(modules, '.bin'), { recursive: true })
  await symlink(ROOT, join(modules, 'leasehold'))
  await symlink(join(ROOT, 'bin/leasehold.cjs'), join(modules, '.bin/leasehold'))
  const packages = await readdir(join(ROOT, 'node_modules'))
  const programs = await readdir(join(ROOT, 'node_modules/.bin'))
  for (const name of packages)
    if (!name.startsWith('.')) await symlink(join(ROOT, 'node_modules', name), join(modules, name))
  for (const name of programs)
    await symlink(join(ROOT, 'node_modules/.bin', name), join(modules, '.bin', name))

  await mkdir(join(directory, 'bin'))
  const npx = `#!/bin/sh
[ -x '${modules}/.bin/'"$1" ] || { echo "npx: $1 is not installed" >&2; exit 1; }
program="$1"; shift
exec '${modules}/.bin/'"$program" "$@"
`
  const npm = `#!/bin/sh
case "$1" in
init) exit 0 ;;
install | i) shift ;;
*) echo "npm $1 cannot be run here" >&2; exit 1 ;;
esac
for name in "$@"; do
  case "$name" in -*) continue ;; esac
  [ -e '${modules}/'"$name" ] || { echo "npm: $name is not a package of this repository" >&2; exit 1; }
done
`
  for (const [name, script] of Object.entries({ npx, npm })) {
    await writeFile(join(directory, 'bin', name), script)
    await chmod(join(directory, 'bin', name), 0o755)
  }
}

function cleanEnvironment(directory: string): Record<string, string> {
  const kept = ['HOME', 'TMPDIR', 'LANG', 'USER', 'LOGNAME'].flatMap((name) => {
    const value = process.env[name]
    return value === undefined ? [] : [[name, value] as const]
  })
  const path = [
    join(directory, 'bin'),
    join(directory, 'node_modules/.bin'),
    dirname(process.execPath),
    process.env['PATH'] ?? '',
  ]
  return { ...Object.fromEntries(kept), PATH: path.join(':') }
}
