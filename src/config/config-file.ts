/** Finds, judges and imports `leasehold.config.{js,mjs,cjs,ts}`. Whoever can write the file can run code as its reader. */
import { execFile } from 'node:child_process'
import { lstat, readFile, realpath, stat } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join, relative, sep } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { hasCode, LeaseholdError, messageOf, sentence } from '../errors.ts'
import { distrust } from '../file-trust.ts'
import { describeValue, isRecord } from '../rules.ts'

/** TypeScript only where Node itself removes the types: from 22.18 on. */
export const CONFIG_FILES = [
  'leasehold.config.js',
  'leasehold.config.mjs',
  'leasehold.config.cjs',
  'leasehold.config.ts',
] as const

export interface ConfigFile {
  /** The file name, for messages. */
  readonly name: string
  readonly values: Readonly<Record<string, unknown>>
  /** The file with the line of a setting, where exactly one line looks like it: `leasehold.config.mjs:3`. */
  readonly positionOf: (setting: string) => string
}

/** The file is there and may be read, but importing it failed: for a command that can do without. */
export class ConfigFileBroken extends LeaseholdError {
  readonly file: string

  constructor(file: string, message: string, remedy: string | undefined, cause: unknown) {
    super('SETTING_INVALID', message, remedy === undefined ? { cause } : { remedy, cause })
    this.file = file
  }
}

/** Reads the config file of a directory. Two of them are refused, because it would be unclear which one applies. */
export async function readConfigFile(directory: string): Promise<ConfigFile | undefined> {
  const present: string[] = []
  for (const name of CONFIG_FILES) {
    if (await exists(join(directory, name))) present.push(name)
  }
  const [name, ...others] = present
  if (name === undefined) {
    await refuseOtherFormats(directory)
    return undefined
  }
  if (others.length > 0)
    throw invalid(
      `The directory ${directory} contains ${present.join(' and ')}.`,
      'Keep one of them and remove the others.',
    )
  await refuseUntrusted(join(directory, name), name)
  const values = await settingsIn(directory, name)
  const text = await readFile(join(directory, name), 'utf8')
  return { name, values, positionOf: (setting) => withLine(name, lineOfSetting(text, setting)) }
}

/** What somebody may take for a config file. Silence would be taken for consent. */
const OTHER_FORMATS = ['json', 'mts', 'cts', 'yaml', 'yml', 'toml'].map(
  (ending) => `leasehold.config.${ending}`,
)

async function refuseOtherFormats(directory: string): Promise<void> {
  for (const name of OTHER_FORMATS) {
    if (await exists(join(directory, name)))
      throw invalid(
        `${name} is not read: the config file is code.`,
        'Write it as leasehold.config.mjs: `export default { port: 7400 }`, or remove it.',
      )
  }
}

async function refuseUntrusted(path: string, name: string): Promise<void> {
  // Windows has neither owners nor modes of this kind.
  const user = process.geteuid?.()
  if (user === undefined) return
  refuseIf(distrust(await stat(path), user), name, 'it', path)
  // Whoever made a link chose the file. The mode of a link says nothing.
  const { uid, gid } = await lstat(path)
  refuseIf(distrust({ uid, gid, mode: 0 }, user), name, 'the link to it', path)
  // Whoever can write the directory could replace the file before it is imported.
  for (const directory of new Set([dirname(path), dirname(await realpath(path))])) {
    const found = await stat(directory)
    // In a directory like /tmp only the owner of a file can replace it.
    const mode = (found.mode & STICKY) === 0 ? found.mode : 0
    refuseIf(distrust({ uid: found.uid, gid: found.gid, mode }, user), name, 'its directory', directory)
  }
}

const STICKY = 0o1000

function refuseIf(problem: ReturnType<typeof distrust>, name: string, what: string, path: string): void {
  if (problem === undefined) return
  throw invalid(
    `${name} is not read, because ${what} ${problem.what}: it is code that runs as this user.`,
    `Check what is in it, and run: ${problem.command} '${path.replaceAll("'", String.raw`'\''`)}'`,
  )
}

interface ConfigModule {
  readonly default?: unknown
  readonly workers?: unknown
}

async function settingsIn(directory: string, name: string): Promise<Readonly<Record<string, unknown>>> {
  const path = join(directory, name)
  let module: ConfigModule
  try {
    module = await import(pathToFileURL(path).href)
  } catch (error) {
    throw await broken(directory, name, error)
  }
  const exported = settingsOf(module)
  // Node also offers what a CommonJS file exports under its names.
  if (module.workers !== undefined && !(isRecord(exported) && exported['workers'] === module.workers)) {
    throw invalid(
      `${name} exports "workers" by name, but only its default export is read.`,
      'Put them into the default export: `export default { workers: [ … ] }`.',
    )
  }
  if (isRecord(exported)) return exported
  throw invalid(
    `The default export of ${name} is ${exported === undefined ? 'missing' : describeValue(exported)}.`,
    'Export an object of settings: `export default { port: 7400 }`, or in CommonJS `module.exports = { port: 7400 }`.',
  )
}

/** `module.exports`, or where a compiler made CommonJS of an ES module, its `exports.default`. */
function settingsOf({ default: exported }: ConfigModule): unknown {
  const isCompiled = isRecord(exported) && exported['__esModule'] === true
  return isCompiled ? exported['default'] : exported
}

async function broken(directory: string, name: string, error: unknown): Promise<ConfigFileBroken> {
  if (hasCode(error, 'ERR_UNKNOWN_FILE_EXTENSION') && name.endsWith('.ts')) {
    return new ConfigFileBroken(
      name,
      `${name} cannot be imported, because Node ${process.versions.node} does not run TypeScript.`,
      'Use Node 22.18 or later, or write the file as JavaScript and name it leasehold.config.mjs.',
      error,
    )
  }
  const at = await whereItFailed(await realpath(directory), name, error)
  const where = at === undefined ? '' : `, because of ${at}`
  const remedy = error instanceof LeaseholdError ? undefined : 'Correct the file, or remove it.'
  return new ConfigFileBroken(
    name,
    `${name} cannot be imported${where}: ${sentence(reasonOf(error))}`,
    remedy,
    error,
  )
}

/** Our own errors say everything; of others the kind is worth knowing, and what caused them. */
function reasonOf(error: unknown): string {
  if (error instanceof LeaseholdError || !(error instanceof Error)) return messageOf(error)
  // Of a file that `require` does not find, Node lists who required it in further lines; where it failed is said already.
  const [message = ''] = error.message.split('\nRequire stack:')
  const own = message === '' ? messageOf(error) : `${error.name}: ${message}`
  return error.cause === undefined ? own : `${own.replace(/\.$/, '')}, caused by ${reasonOf(error.cause)}`
}

/** The file and line at which the import failed, as far as Node says so: `handlers/emails.mjs:12`. */
async function whereItFailed(directory: string, name: string, error: unknown): Promise<string | undefined> {
  if (!(error instanceof Error)) return undefined
  const importer = / imported from (.+)$/.exec(error.message)?.[1]
  if (hasCode(error, 'ERR_MODULE_NOT_FOUND') && importer !== undefined) {
    const path = asPath(importer)
    const missing = /^Cannot find \w+ '([^']+)'/.exec(error.message)?.[1] ?? ''
    const line = await lineWith(path, basename(missing))
    return withLine(shownPath(directory, path), line)
  }
  const { stack = '' } = error
  const header = /^(.+):(\d+)$/m.exec(stack.split('\n', 1)[0] ?? '')
  const first = header ?? framesOf(stack).find(([, file = '']) => isWithin(directory, asPath(file)))
  if (first?.[1] !== undefined) return withLine(shownPath(directory, asPath(first[1])), Number(first[2]))
  return error instanceof SyntaxError ? syntaxErrorIn(directory, name) : undefined
}

function framesOf(stack: string): RegExpExecArray[] {
  return [...stack.matchAll(/^\s+at (?:.* \()?((?:file:|\/|[A-Za-z]:\\).+):(\d+):\d+\)?$/gm)]
}

/** Node 20 does not say where the syntax error in an imported ES module is; when it only checks the file, it does. */
async function syntaxErrorIn(directory: string, name: string): Promise<string | undefined> {
  const output = await new Promise<string>((resolve) => {
    execFile(process.execPath, ['--check', name], { cwd: directory }, (_, _stdout, stderr) => resolve(stderr))
  })
  const line = /^(?:.+):(\d+)$/m.exec(output)?.[1]
  return line === undefined ? undefined : withLine(name, Number(line))
}

async function lineWith(path: string, text: string): Promise<number | undefined> {
  const lines = await readFile(path, 'utf8').then(
    (content) => content.split('\n'),
    () => [],
  )
  const index = lines.findIndex(
    (line) => text !== '' && /import|require|from/.test(line) && line.includes(text),
  )
  return index < 0 ? undefined : index + 1
}

function lineOfSetting(text: string, setting: string): number | undefined {
  const assigned = new RegExp(`(?<![\\w.$])['"]?${setting.replaceAll(/\W/g, String.raw`\$&`)}['"]?\\s*[:,]`)
  const found = [...text.split('\n').entries()].filter(([, line]) => assigned.test(line))
  const [only, ...others] = found
  return only === undefined || others.length > 0 ? undefined : only[0] + 1
}

function withLine(file: string, line: number | undefined): string {
  return line === undefined ? file : `${file}:${line}`
}

function asPath(file: string): string {
  return file.startsWith('file:') ? fileURLToPath(file) : file
}

/** In the directory of the config file, and not in a package it uses. */
function isWithin(directory: string, path: string): boolean {
  const inside = relative(directory, path)
  return !inside.startsWith('..') && !isAbsolute(inside) && !inside.split(sep).includes('node_modules')
}

function shownPath(directory: string, path: string): string {
  return isWithin(directory, path) ? relative(directory, path) : path
}

async function exists(path: string): Promise<boolean> {
  try {
    await stat(path)
    return true
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return false
    throw error
  }
}

function invalid(message: string, remedy: string): LeaseholdError {
  return new LeaseholdError('SETTING_INVALID', message, { remedy })
}
