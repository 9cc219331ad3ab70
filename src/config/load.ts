import { resolve } from 'node:path'
import { inspect } from 'node:util'
import type { z } from 'zod'
import { LeaseholdError, isLeaseholdError } from '../errors.ts'
import { timing, type Timing } from '../lease/timing.ts'
import type { WorkDeclaration } from '../worker/index.ts'
import { readConfigFile, type ConfigFile } from './config-file.ts'
import { withoutPassword } from './database-url.ts'
import { nearest } from '../nearest.ts'
import {
  DESCRIPTIONS,
  flagOf,
  SECRET_SETTINGS,
  SETTING_NAMES,
  type ParsedSettings,
  type SettingName,
  settingsSchema,
  TIMING_NAMES,
  timingSchema,
  variableOf,
} from './schema.ts'
import { readWorkDeclarations } from './work-declarations.ts'

export interface Settings {
  readonly databaseUrl: string | undefined
  /** Absolute. */
  readonly directory: string
  readonly schema: string
  readonly host: string
  readonly port: number
  readonly logLevel: ParsedSettings['logLevel']
  readonly logFormat: 'pretty' | 'json'
  /** Never shown. Undefined: with the embedded server, the one that is kept in its directory. */
  readonly secretKey: string | undefined
  /** Networks that webhooks may go to although they are not public. */
  readonly webhookAllow: readonly string[]
  readonly webhookProxy: string | undefined
  readonly databaseWaitMs: number
  readonly timing: Timing
  /** As much of the timing as somebody has set: a worker with a lease of its own completes it in its own way. */
  readonly givenTiming: Partial<Timing>
  /** What the config file declares. */
  readonly workers: readonly WorkDeclaration[]
}

export interface Source {
  readonly kind: 'flag' | 'environment' | 'file' | 'default'
  /** `--port`, `LEASEHOLD_PORT`, `leasehold.config.mjs`, or `default`. */
  readonly name: string
}

export interface LoadedSettings {
  readonly settings: Settings
  readonly sources: Readonly<Record<SettingName, Source>>
}

export interface Surroundings {
  readonly flags: Readonly<Record<string, unknown>>
  readonly environment: Readonly<Record<string, string | undefined>>
  /** Where the config file is looked for, and what relative paths are relative to. */
  readonly workingDirectory: string
  /** Whether a person reads the log. */
  readonly terminal: boolean
}

/** Functions cannot be flags: the workers stand in the config file only. */
const WORKERS = 'workers'
const IN_FILE: readonly string[] = [...SETTING_NAMES, WORKERS]

interface Given {
  readonly value: unknown
  readonly source: Source
}

/** Flags over environment over config file over defaults; what is wrong is reported all at once. */
export async function loadSettings(surroundings: Surroundings): Promise<LoadedSettings> {
  const file = await readConfigFile(surroundings.workingDirectory)
  const given = collect(surroundings, file)
  const set = SETTING_NAMES.filter((name) => given[name].value !== undefined)
  const values = Object.fromEntries(set.map((name) => [name, given[name].value]))
  const parsed = settingsSchema.safeParse(values)

  const problems = [
    ...(file === undefined ? [] : unknownNames(file)),
    ...(parsed.success ? [] : brokenRules(parsed.error, given)),
  ]
  const times = checkTiming(values, given)
  if (times.problem !== undefined) problems.push(times.problem)
  const givenTiming = times.given ?? {}
  const work = readWorkDeclarations(file?.values[WORKERS], file?.name ?? '', givenTiming)
  problems.push(...work.problems)
  if (problems.length > 0 || !parsed.success || times.timing === undefined) throw refusal(problems)

  return {
    settings: {
      ...complete(parsed.data, surroundings),
      timing: times.timing,
      givenTiming,
      workers: work.workers,
    },
    sources: eachSetting((name) => given[name].source),
  }
}

function complete(
  parsed: ParsedSettings,
  { workingDirectory, terminal }: Surroundings,
): Omit<Settings, 'timing' | 'givenTiming' | 'workers'> {
  const { databaseUrl, directory, schema, host, port, logLevel, secretKey, databaseWaitMs } = parsed
  return {
    databaseUrl,
    directory: resolve(workingDirectory, directory),
    schema,
    host,
    port,
    logLevel,
    logFormat: parsed.logFormat ?? (terminal ? 'pretty' : 'json'),
    secretKey,
    webhookAllow: parsed.webhookAllow,
    webhookProxy: parsed.webhookProxy,
    databaseWaitMs,
  }
}

function collect(
  { flags, environment }: Surroundings,
  file: ConfigFile | undefined,
): Readonly<Record<SettingName, Given>> {
  return eachSetting((name): Given => {
    const flag = SECRET_SETTINGS.includes(name) ? undefined : flags[name]
    if (flag !== undefined) return { value: flag, source: { kind: 'flag', name: flagOf(name) } }
    const variable = variableOf(name)
    const text = environment[variable]
    // `DATABASE_URL= leasehold up` is how a shell says "not set".
    if (text !== undefined && text !== '')
      return { value: text, source: { kind: 'environment', name: variable } }
    const inFile = file?.values[name]
    if (file !== undefined && inFile !== undefined) {
      return { value: inFile, source: { kind: 'file', name: file.name } }
    }
    return { value: undefined, source: { kind: 'default', name: 'default' } }
  })
}

function eachSetting<Value>(of: (name: SettingName) => Value): Readonly<Record<SettingName, Value>> {
  // Object.fromEntries forgets which keys it was given.
  return Object.fromEntries(SETTING_NAMES.map((name) => [name, of(name)])) as Record<SettingName, Value>
}

function unknownNames({ name: file, values }: ConfigFile): string[] {
  return Object.keys(values)
    .filter((name) => !IN_FILE.includes(name))
    .map((name) => {
      const meant = nearest(name, IN_FILE)
      const hint = meant === undefined ? `the settings are ${IN_FILE.join(', ')}` : `did you mean ${meant}?`
      return `${name} (${file}) is not a setting: ${hint}`
    })
}

function brokenRules(error: z.ZodError, given: Readonly<Record<SettingName, Given>>): string[] {
  const broken = SETTING_NAMES.filter((name) => error.issues.some(({ path }) => path[0] === name))
  return broken.map((name) => {
    const { value, source } = given[name]
    return `${name} (${source.name}) is ${shown(name, value)}, but must be ${DESCRIPTIONS[name].rule}`
  })
}

function shown(name: SettingName, value: unknown): string {
  if (SECRET_SETTINGS.includes(name)) return 'set (and not shown)'
  if (name === 'databaseUrl')
    return typeof value === 'string' ? withoutPassword(value) : `of type ${typeof value}`
  return inspect(value, { depth: 1, breakLength: Infinity })
}

/** The kernel's own rules, so that the command line cannot be laxer than the library. */
function checkTiming(
  values: Readonly<Record<string, unknown>>,
  given: Readonly<Record<SettingName, Given>>,
): { readonly timing?: Timing; readonly given?: Partial<Timing>; readonly problem?: string } {
  const set = TIMING_NAMES.filter((name) => name in values)
  const parsed = timingSchema.safeParse(Object.fromEntries(set.map((name) => [name, values[name]])))
  // What is wrong with one of them alone is reported with the other settings.
  if (!parsed.success) return {}
  try {
    return { timing: timing(parsed.data), given: parsed.data }
  } catch (error) {
    if (!isLeaseholdError(error, 'SETTING_INVALID')) throw error
    const sources = set.map((name) => `${name} from ${given[name].source.name}`).join(', ')
    return { problem: `${error.message.replace(/\.$/, '')} (${sources})` }
  }
}

function refusal(problems: readonly string[]): LeaseholdError {
  const [only, ...others] = problems
  const message =
    others.length === 0
      ? `${only}.`
      : `${problems.length} settings are invalid:\n${problems.map((problem) => `  - ${problem}`).join('\n')}`
  return new LeaseholdError('SETTING_INVALID', message)
}
