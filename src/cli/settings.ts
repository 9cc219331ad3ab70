/** `leasehold settings …`: settings that workers follow while they run, in all processes. */
import type { Command } from 'commander'
import { changeSettings, type SettingsPatch, storedSettings, type WorkerSettings } from '../worker/index.ts'
import { DATABASE_SETTINGS, type Define, type Run, UsageError } from './command.ts'
import { withRegistry } from './database.ts'
import { isSet, JSON_FLAG, PRINCIPAL_FLAG, principalOf } from './flags.ts'
import { columns, printableJson, relative } from './output.ts'

export function addSettingsCommands(settings: Command, define: Define): void {
  const changing = (command: Command): Command => command.option(...PRINCIPAL_FLAG).option(...JSON_FLAG)
  define(settings, 'list', 'show the settings that were changed', DATABASE_SETTINGS, list, (command) =>
    command.option(...JSON_FLAG),
  )
  define(
    settings,
    'set <worker> <settings...>',
    'change settings of a worker, such as concurrency=20 leaseMs=60000; concurrency= removes the change',
    DATABASE_SETTINGS,
    set,
    changing,
  )
  define(
    settings,
    'pause <worker>',
    'claim nothing more, in all processes',
    DATABASE_SETTINGS,
    pause(true),
    changing,
  )
  define(
    settings,
    'resume <worker>',
    'claim again, in all processes',
    DATABASE_SETTINGS,
    pause(false),
    changing,
  )
}

async function list(run: Run): Promise<number> {
  const { flags, print } = run
  const stored = await withRegistry(run, async (db, schema) => storedSettings(db, schema))
  if (isSet(flags, 'json')) {
    print(`${printableJson(stored)}\n`)
    return 0
  }
  const now = new Date()
  const rows = stored.map(({ name, value, changedAt, changedBy }) => [
    name,
    Object.entries(value)
      .map(([setting, given]) => `${setting}=${String(given)}`)
      .join(' '),
    relative(changedAt, now),
    changedBy,
  ])
  print(
    rows.length === 0
      ? 'No settings were changed: workers follow those that they were started with.\n'
      : `${columns([['WORKER', 'SETTINGS', 'CHANGED', 'BY'], ...rows])}\n`,
  )
  return 0
}

async function set(run: Run): Promise<number> {
  const [, ...given] = run.args
  return change(run, Object.fromEntries(given.map(settingOf)))
}

/** `concurrency=20` */
function settingOf(text: string): readonly [string, number | boolean | null] {
  const [, name, value] = /^(\w+)=(|-?\d+(?:\.\d+)?|true|false)$/.exec(text) ?? []
  if (name === undefined || value === undefined)
    throw new UsageError(
      `${JSON.stringify(text)} is not a setting: give its name and a number, true or false, such as concurrency=20.`,
    )
  if (value === '') return [name, null]
  return [name, value === 'true' || value === 'false' ? value === 'true' : Number(value)]
}

function pause(paused: boolean): (run: Run) => Promise<number> {
  return async (run) => change(run, { paused: paused ? true : null })
}

async function change(run: Run, patch: SettingsPatch): Promise<number> {
  const { flags, args, print } = run
  const [worker = ''] = args
  const principal = principalOf(run)
  const changed = await withRegistry(
    run,
    async (db, schema) => changeSettings(db, schema, worker, patch, principal),
    'operator',
  )
  print(isSet(flags, 'json') ? `${printableJson(changed)}\n` : `${changedText(worker, changed)}\n`)
  return 0
}

function changedText(worker: string, settings: WorkerSettings): string {
  const all = Object.entries(settings).map(([name, value]) => `${name}=${String(value)}`)
  return `The workers ${worker} of all processes follow: ${all.join(' ')}`
}
