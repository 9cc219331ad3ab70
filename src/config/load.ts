/**
 * The settings of one call of the command line: flags over environment over config file over defaults. A refusal lists
 * every problem at once, each with the setting, its source, its value and the rule, and never shows a password.
 */
import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import type { z } from 'zod'
import { isLeaseholdError, LeaseholdError, messageOf, sentence } from '../errors.ts'
import { timing, type Timing } from '../lease/timing.ts'
import { suggestion } from '../nearest.ts'
import { describeValue } from '../rules.ts'
import type { WorkDeclaration } from '../worker/index.ts'
import { workProblems } from '../worker/work-declaration.ts'
import { type ConfigFile, ConfigFileBroken, readConfigFile } from './config-file.ts'
import {
  DESCRIPTIONS,
  FILE_SETTINGS,
  fileVariableOf,
  flagOf,
  isOfKubernetes,
  SECRET_SETTINGS,
  SETTING_NAMES,
  type ParsedSettings,
  type SettingName,
  settingsSchema,
  shownValue,
  TIMING_NAMES,
  timingSchema,
  unknownVariables,
  variableOf,
} from './schema.ts'

export interface Settings {
  readonly databaseUrl: string | undefined
  /** Undefined: the database URL. */
  readonly listenUrl: string | undefined
  /** Absolute. */
  readonly directory: string
  readonly schema: string
  readonly host: string
  readonly port: number
  /** Where probes and scrapes are answered as well. */
  readonly metricsHost: string | undefined
  readonly metricsPort: number
  /** How the dashboard names this installation, and the colour by which it is told from others. */
  readonly instanceName: string | undefined
  readonly instanceColor: string | undefined
  /** Whose pages may show the portal in a frame. */
  readonly portalOrigins: readonly string[] | undefined
  readonly logLevel: ParsedSettings['logLevel']
  readonly logFormat: 'pretty' | 'json'
  /** Never shown. Undefined: the embedded PostgreSQL has a key in its directory; with another database there is none. */
  readonly secretKey: string | undefined
  /** Private networks that webhooks may be sent to. */
  readonly webhookAllow: readonly string[]
  /** Networks that webhooks may not be sent to. */
  readonly webhookRefuse: readonly string[]
  /** The only ports that webhooks may be sent to; undefined: any. */
  readonly webhookPorts: readonly number[] | undefined
  readonly webhookProxy: string | undefined
  readonly webhookEndpointsPerTenant: number
  readonly databaseWaitMs: number
  /** Undefined: made from host, process id and a random part. */
  readonly workerId: string | undefined
  /** Of the pool of the workers. Undefined: the default of `startRuntime`. */
  readonly maxConnections: number | undefined
  readonly auditRetentionMs: number | undefined
  readonly timing: Timing
  /** The timings that were set explicitly. A worker with its own lease duration derives the others from that. */
  readonly givenTiming: Partial<Timing>
  /** The workers that the config file declares. */
  readonly workers: readonly WorkDeclaration[]
}

export interface Source {
  readonly kind: 'flag' | 'environment' | 'file' | 'default'
  /** `--port`, `LEASEHOLD_PORT`, `leasehold.config.mjs:3`, or `default`. */
  readonly name: string
}

export interface LoadedSettings {
  readonly settings: Settings
  readonly sources: Readonly<Record<SettingName, Source>>
  /** What was wrong with the config file, where the command can do without it or without its workers. */
  readonly warnings: readonly string[]
  /** The config file, if none of its settings apply because it could not be imported. */
  readonly ignoredFile: string | undefined
}

export interface SettingsInput {
  readonly flags: Readonly<Record<string, unknown>>
  readonly environment: Readonly<Record<string, string | undefined>>
  /** The directory of the config file; relative paths are relative to it. */
  readonly workingDirectory: string
  /** Whether a person reads the log. */
  readonly terminal: boolean
  /** Default true. Otherwise a file that cannot be imported, or whose workers are invalid, is only worth a warning. */
  readonly needsWorkers?: boolean
}

/** Only the config file can declare workers, because their handlers are functions. */
const WORKERS = 'workers'
const NAMES_IN_FILE: readonly string[] = [...SETTING_NAMES, WORKERS]

interface Given {
  readonly value: unknown
  readonly source: Source
}

export async function loadSettings(input: SettingsInput): Promise<LoadedSettings> {
  const { file, broken } = await fileFor(input)
  const given = collect(input, file)
  const set = SETTING_NAMES.filter((name) => given[name].value !== undefined)
  const values = Object.fromEntries(set.map((name) => [name, given[name].value]))
  const parsed = settingsSchema.safeParse(values)

  const problems = [
    ...unknownVariables(input.environment),
    ...(file === undefined ? [] : unknownNames(file)),
    ...(parsed.success ? [] : brokenRules(parsed.error, given)),
  ]
  const times = checkTiming(values, given)
  if (times.problem !== undefined) problems.push(times.problem)
  const givenTiming = times.given ?? {}
  const work = readWorkers(file, givenTiming)
  if (input.needsWorkers !== false) problems.push(...work.problems)
  if (problems.length > 0 || !parsed.success || times.timing === undefined) throw refusal(problems)

  return {
    settings: {
      ...complete(parsed.data, input),
      timing: times.timing,
      givenTiming,
      workers: work.workers,
    },
    sources: eachSetting((name) => given[name].source),
    warnings: [
      ...(broken === undefined ? [] : [`The settings of ${broken.file} do not apply: ${broken.message}`]),
      ...(work.problems.length === 0
        ? []
        : [`The workers of ${file?.name} are left out: ${refusal(work.problems).message}`]),
    ],
    ignoredFile: broken?.file,
  }
}

interface FileFor {
  readonly file?: ConfigFile | undefined
  readonly broken?: ConfigFileBroken
}

async function fileFor({ workingDirectory, needsWorkers = true }: SettingsInput): Promise<FileFor> {
  try {
    return { file: await readConfigFile(workingDirectory) }
  } catch (error) {
    if (needsWorkers || !(error instanceof ConfigFileBroken)) throw error
    return { broken: error }
  }
}

function complete(
  parsed: ParsedSettings,
  { workingDirectory, terminal }: SettingsInput,
): Omit<Settings, 'timing' | 'givenTiming' | 'workers'> {
  const { databaseUrl, directory, schema, host, port, logLevel, secretKey, databaseWaitMs } = parsed
  return {
    databaseUrl,
    listenUrl: parsed.listenUrl,
    metricsHost: parsed.metricsHost,
    instanceName: parsed.instanceName,
    instanceColor: parsed.instanceColor,
    portalOrigins: parsed.portalOrigins,
    metricsPort: parsed.metricsPort,
    directory: resolve(workingDirectory, directory),
    schema,
    host,
    port,
    logLevel,
    logFormat: parsed.logFormat ?? (terminal ? 'pretty' : 'json'),
    secretKey,
    webhookAllow: parsed.webhookAllow,
    webhookRefuse: parsed.webhookRefuse,
    webhookPorts: parsed.webhookPorts,
    webhookProxy: parsed.webhookProxy,
    webhookEndpointsPerTenant: parsed.webhookEndpointsPerTenant,
    databaseWaitMs,
    workerId: parsed.workerId,
    maxConnections: parsed.maxConnections,
    auditRetentionMs: parsed.auditRetentionMs,
  }
}

function collect(
  { flags, environment }: SettingsInput,
  file: ConfigFile | undefined,
): Readonly<Record<SettingName, Given>> {
  return eachSetting((name): Given => {
    const flag = SECRET_SETTINGS.includes(name) ? undefined : flags[name]
    if (flag !== undefined) return { value: flag, source: { kind: 'flag', name: flagOf(name) } }
    const variable = variableOf(name)
    const text = environment[variable]
    // `DATABASE_URL= leasehold up` is how a shell unsets a variable for one command.
    if (text !== undefined && text !== '' && !isOfKubernetes(variable, text))
      return { value: text, source: { kind: 'environment', name: variable } }
    const content = FILE_SETTINGS.includes(name) ? secretFile(environment, fileVariableOf(name)) : undefined
    if (content !== undefined)
      return { value: content, source: { kind: 'environment', name: fileVariableOf(name) } }
    const inFile = file?.values[name]
    if (file !== undefined && inFile !== undefined) {
      return { value: inFile, source: { kind: 'file', name: file.positionOf(name) } }
    }
    return { value: undefined, source: { kind: 'default', name: 'default' } }
  })
}

/** What is in the file that a variable such as `DATABASE_URL_FILE` names, without the end of its line. */
function secretFile(environment: SettingsInput['environment'], variable: string): string | undefined {
  const path = environment[variable]
  if (path === undefined || path === '') return undefined
  try {
    return readFileSync(path, 'utf8').trimEnd()
  } catch (error) {
    throw refusal([`${variable} (environment) is ${path}, which cannot be read: ${messageOf(error)}`])
  }
}

function eachSetting<Value>(of: (name: SettingName) => Value): Readonly<Record<SettingName, Value>> {
  // Object.fromEntries forgets which keys it was given.
  return Object.fromEntries(SETTING_NAMES.map((name) => [name, of(name)])) as Record<SettingName, Value>
}

function unknownNames({ positionOf, values }: ConfigFile): string[] {
  return Object.keys(values)
    .filter((name) => !NAMES_IN_FILE.includes(name))
    .map(
      (name) =>
        `${name} (${positionOf(name)}) is not a setting: ${suggestion(name, NAMES_IN_FILE, 'settings')}`,
    )
}

function brokenRules(error: z.ZodError, given: Readonly<Record<SettingName, Given>>): string[] {
  const broken = SETTING_NAMES.filter((name) => error.issues.some(({ path }) => path[0] === name))
  return broken.map((name) => {
    const { value, source } = given[name]
    return `${name} (${source.name}) is ${shownValue(name, value)}, but must be ${DESCRIPTIONS[name].rule}`
  })
}

/** By the kernel's own rules, so that the command line accepts exactly what the library accepts. */
function checkTiming(
  values: Readonly<Record<string, unknown>>,
  given: Readonly<Record<SettingName, Given>>,
): { readonly timing?: Timing; readonly given?: Partial<Timing>; readonly problem?: string } {
  const set = TIMING_NAMES.filter((name) => name in values)
  const parsed = timingSchema.safeParse(Object.fromEntries(set.map((name) => [name, values[name]])))
  // A timing that is invalid by itself is reported with the other settings.
  if (!parsed.success) return {}
  try {
    return { timing: timing(parsed.data), given: parsed.data }
  } catch (error) {
    if (!isLeaseholdError(error, 'SETTING_INVALID')) throw error
    const sources = set.map((name) => `${name} from ${given[name].source.name}`).join(', ')
    return { problem: `${error.message.replace(/\.$/, '')} (${sources})` }
  }
}

/** By the rules of `startRuntime`. `timing` holds the timings that apply to all workers. */
function readWorkers(
  file: ConfigFile | undefined,
  timing: Partial<Timing>,
): { readonly workers: readonly WorkDeclaration[]; readonly problems: readonly string[] } {
  const value = file?.values[WORKERS]
  if (file === undefined || value === undefined) return { workers: [], problems: [] }
  if (!Array.isArray(value)) {
    const problem = `workers (${file.positionOf(WORKERS)}) is ${describeValue(value)}, but must be a list of { name, table, handle }`
    return { workers: [], problems: [problem] }
  }
  const problems = workProblems(value, timing, ` (${file.name})`)
  // Every field of every entry has been checked.
  return { workers: problems.length > 0 ? [] : (value as readonly WorkDeclaration[]), problems }
}

function refusal(problems: readonly string[]): LeaseholdError {
  const [only = '', ...others] = problems
  const message =
    others.length === 0
      ? sentence(only)
      : `${problems.length} settings are invalid:\n${problems.map((problem) => `  - ${problem}`).join('\n')}`
  return new LeaseholdError('SETTING_INVALID', message)
}
