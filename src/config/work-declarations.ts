/** Checks the workers that the config file declares. */
import { isLeaseholdError } from '../errors.ts'
import type { Timing } from '../lease/timing.ts'
import { describeValue } from '../messages/validate.ts'
import { suggestion } from '../nearest.ts'
import type { WorkDeclaration } from '../worker/index.ts'
import { workerSettings } from '../worker/settings.ts'
import { isRecord } from './config-file.ts'

/** The role of the reaper. It needs no declaration, so no declared worker may have its name. */
export const REAPER = 'reaper'

/** Worker names are used on the command line (`--only`) and in the settings table. */
const NAME = /^[A-Za-z0-9][\w.-]{0,62}$/

interface Rule {
  readonly required: boolean
  readonly holds: (value: unknown) => boolean
  /** Completes the sentence "… but it must be". */
  readonly text: string
}

const RULES: Readonly<Record<keyof WorkDeclaration, Rule>> = {
  name: {
    required: true,
    holds: (value) => typeof value === 'string' && NAME.test(value) && value !== REAPER,
    text: `a name of at most 63 letters, digits, ".", "_" and "-", and not ${REAPER}`,
  },
  role: {
    required: false,
    holds: (value) => typeof value === 'string' && NAME.test(value) && value !== REAPER,
    text: `a name like that of a worker, and not ${REAPER}`,
  },
  table: { required: true, holds: isLeaseTable, text: 'a lease table, made with leaseTable()' },
  handle: {
    required: true,
    holds: (value) => typeof value === 'function',
    text: 'a function that gets the row and returns a promise',
  },
  settings: { required: false, holds: isRecord, text: 'an object of settings such as { concurrency: 10 }' },
  limits: {
    required: false,
    holds: (value) => isRecord(value) && typeof value['key'] === 'function',
    text: 'an object such as { key: (row) => row.customer, concurrency: 2 }',
  },
  groups: {
    required: false,
    holds: (value) => isRecord(value) && typeof value['open'] === 'function',
    text: 'an object that knows the groups of the table: { open, claimed, ended, onRoom }',
  },
  probe: {
    required: false,
    holds: (value) => isRecord(value) && Number(value['everyMs']) > 0 && typeof value['check'] === 'function',
    text: 'an object such as { everyMs: 1000, check: async (signal) => {} }',
  },
  wake: { required: false, holds: (value) => typeof value === 'boolean', text: 'true or false' },
  bucket: {
    required: false,
    holds: (value) => Number.isInteger(value) && Number(value) >= 0,
    text: 'a whole number from 0',
  },
  maintenance: {
    required: false,
    holds: (value) => isRecord(value) && Number(value['everyMs']) > 0 && typeof value['run'] === 'function',
    text: 'an object such as { everyMs: 60000, run: async (db, stop) => ({ removed: 0 }) }',
  },
  open: {
    required: false,
    holds: (value) => typeof value === 'function',
    text: 'a function that opens what the handler needs',
  },
  close: {
    required: false,
    holds: (value) => typeof value === 'function',
    text: 'a function that closes what the handler has opened',
  },
}

type Field = keyof typeof RULES

// Object.keys forgets which keys it was given.
const FIELDS = Object.keys(RULES) as readonly Field[]

export interface ReadWork {
  readonly workers: readonly WorkDeclaration[]
  readonly problems: readonly string[]
}

/** Checks the `workers` of the config file. `timing` holds the timings that apply to all of them. */
export function readWorkDeclarations(value: unknown, file: string, timing: Partial<Timing>): ReadWork {
  if (value === undefined) return { workers: [], problems: [] }
  if (!Array.isArray(value)) {
    const problem = `workers (${file}) is ${describeValue(value)}, but must be a list of { name, table, handle }`
    return { workers: [], problems: [problem] }
  }
  const entries: readonly unknown[] = value
  const problems = [
    ...entries.flatMap((entry, i) => problemsOf(entry, `${labelOf(entry, i)} (${file})`, timing)),
    ...repeatedNames(entries, file),
  ]
  // Every field of every entry has been checked.
  return { workers: problems.length > 0 ? [] : (entries as readonly WorkDeclaration[]), problems }
}

function problemsOf(entry: unknown, label: string, timing: Partial<Timing>): string[] {
  if (!isRecord(entry))
    return [`${label} is ${describeValue(entry)}, but must be an object { name, table, handle }`]
  const unknown = Object.keys(entry).filter((name) => !FIELDS.some((field) => field === name))
  const broken = FIELDS.filter((field) => {
    const { required, holds } = RULES[field]
    return entry[field] === undefined ? required : !holds(entry[field])
  })
  return [
    ...unknown.map((name) => `${label} has the unknown field ${name}: ${suggestion(name, FIELDS, 'fields')}`),
    ...broken.map(
      (field) =>
        `${label} has ${field} = ${describeValue(entry[field])}, but it must be ${ruleFor(field, entry)}`,
    ),
    ...(broken.includes('settings')
      ? []
      : refusalOf(label, () => workerSettings({ ...timing, ...asRecord(entry['settings']) }))),
  ]
}

/** Not by identity, because the config file may import `leaseTable` from another copy of the package. */
function isLeaseTable(value: unknown): boolean {
  return (
    isRecord(value) &&
    typeof value['schema'] === 'string' &&
    typeof value['name'] === 'string' &&
    Array.isArray(value['id']) &&
    isRecord(value['lease']) &&
    isRecord(value['writes']) &&
    isRecord(value['outcomes'])
  )
}

function ruleFor(field: Field, entry: Readonly<Record<string, unknown>>): string {
  const { table } = entry
  const isDeclaration = field === 'table' && isRecord(table) && 'claimable' in table
  return isDeclaration
    ? `${RULES.table.text}; this is only its declaration: wrap it in leaseTable(…)`
    : RULES[field].text
}

function refusalOf(label: string, check: () => unknown): string[] {
  try {
    check()
    return []
  } catch (error) {
    if (!isLeaseholdError(error, 'SETTING_INVALID')) throw error
    return [`${label}: ${error.message.replace(/\.$/, '')}`]
  }
}

function repeatedNames(entries: readonly unknown[], file: string): string[] {
  const names = entries.flatMap((entry) => (isRecord(entry) ? [entry['name']] : []))
  const repeated = new Set(names.filter((name, i) => typeof name === 'string' && names.indexOf(name) !== i))
  return [...repeated].map(
    (name) =>
      `workers (${file}) has the name ${describeValue(name)} twice, but each worker needs a name of its own`,
  )
}

function labelOf(entry: unknown, index: number): string {
  const name = isRecord(entry) ? entry['name'] : undefined
  return typeof name === 'string' ? `workers[${index}] ${describeValue(name)}` : `workers[${index}]`
}

function asRecord(value: unknown): Readonly<Record<string, unknown>> {
  return isRecord(value) ? value : {}
}
