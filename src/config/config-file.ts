/** Finds and imports `leasehold.config.{js,mjs,ts}`. */
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { LeaseholdError } from '../errors.ts'

export const CONFIG_FILES = ['leasehold.config.js', 'leasehold.config.mjs', 'leasehold.config.ts'] as const

export interface ConfigFile {
  /** The file name, for messages. */
  readonly name: string
  readonly values: Readonly<Record<string, unknown>>
}

/** Reads the config file of a directory. Two of them are refused, because it would be unclear which one applies. */
export async function readConfigFile(directory: string): Promise<ConfigFile | undefined> {
  const present: string[] = []
  for (const name of CONFIG_FILES) {
    if (await exists(join(directory, name))) present.push(name)
  }
  const [name, ...others] = present
  if (name === undefined) return undefined
  if (others.length > 0)
    throw invalid(
      `The directory ${directory} contains ${present.join(' and ')}.`,
      'Keep one of them and remove the others.',
    )
  return { name, values: await defaultExport(directory, name) }
}

async function defaultExport(directory: string, name: string): Promise<Readonly<Record<string, unknown>>> {
  let exported: unknown
  let isNamed = false
  try {
    const module: { default?: unknown; workers?: unknown } = await import(
      pathToFileURL(join(directory, name)).href
    )
    exported = module.default
    isNamed = module.workers !== undefined
  } catch (error) {
    throw unreadable(name, error)
  }
  if (isNamed) {
    throw invalid(
      `${name} exports "workers" by name, but only its default export is read.`,
      'Put them into the default export: `export default { workers: [ … ] }`.',
    )
  }
  if (isRecord(exported)) return exported
  throw invalid(
    `The default export of ${name} is ${exported === undefined ? 'missing' : `of type ${typeof exported}`}.`,
    'Export an object of settings: `export default { port: 7400 }`.',
  )
}

function unreadable(name: string, error: unknown): LeaseholdError {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  if (code === 'ERR_UNKNOWN_FILE_EXTENSION') {
    return invalid(
      `${name} cannot be imported, because Node ${process.versions.node} does not run TypeScript.`,
      'Rename it to leasehold.config.mjs and write it as JavaScript, or use Node 22.18 or later.',
      error,
    )
  }
  const reason = error instanceof Error ? `${error.name}: ${error.message}` : String(error)
  return invalid(`${name} cannot be imported: ${reason}.`, 'Correct the file, or remove it.', error)
}

export function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

async function exists(path: string): Promise<boolean> {
  try {
    await stat(path)
    return true
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return false
    throw error
  }
}

function invalid(message: string, remedy: string, cause?: unknown): LeaseholdError {
  return new LeaseholdError('SETTING_INVALID', message, { remedy, cause })
}
