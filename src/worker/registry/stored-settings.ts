/** Settings that workers apply while they run, stored in the `settings` table and announced by its trigger. */
import { isLeaseholdError, LeaseholdError, messageOf } from '../../errors.ts'
import { nearest } from '../../nearest.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { describeValue, isRecord, isText } from '../../rules.ts'
import { unstorableText } from '../../unstorable-text.ts'
import { type WorkerSettings, workerSettings } from '../settings.ts'

/** `null` removes a setting. */
export type SettingsPatch = { readonly [Name in keyof WorkerSettings]?: WorkerSettings[Name] | null }

/** What is stored under the name, unchecked: the reader checks it with `workerSettings`. */
export async function readSettings(
  db: Queryable,
  schema: string,
  name: string,
): Promise<Partial<WorkerSettings> | undefined> {
  const { rows } = await db.query<{ readonly value: Partial<WorkerSettings> }>({
    text: `select value from ${quoteQualified(schema, 'settings')} where name = $1`,
    values: [name],
  })
  return rows[0]?.value
}

export interface StoredSettings {
  /** The name of the worker. */
  readonly name: string
  readonly value: Partial<WorkerSettings>
  readonly changedAt: Date
  readonly changedBy: string
}

/** What is stored for all workers, by their names. */
export async function storedSettings(db: Queryable, schema: string): Promise<StoredSettings[]> {
  const { rows } = await db.query<StoredSettings>({
    text: `select name, value, changed_at as "changedAt", changed_by as "changedBy"
from ${quoteQualified(schema, 'settings')} order by name`,
  })
  return rows
}

/**
 * Changes the settings named in the patch, and returns all of them. They are checked against what the workers of this
 * name were started with, as the registry shows it. When the result could not work, the whole patch is refused and nothing
 * is written; a pause, or its end, is never refused. Concurrent changes wait for each other, so that each is checked
 * against the other.
 */
export async function changeSettings(
  db: Database,
  schema: string,
  name: string,
  patch: SettingsPatch,
  principal: string,
): Promise<WorkerSettings> {
  refuseUnless(isStorable(name) && name.length <= MAX_NAME_CHARACTERS, 'name', name)
  refuseUnless(isStorable(principal), 'principal', principal)
  refuseUnless(isRecord(patch), 'patch', patch)
  const settings = quoteQualified(schema, 'settings')
  return db.transaction(async (tx) => {
    // There has to be a row to lock.
    await tx.query({
      text: `insert into ${settings} (name, value, changed_by) values ($1, '{}', $2) on conflict (name) do nothing`,
      values: [name, principal],
    })
    const { rows } = await tx.query<{ value: Partial<WorkerSettings> }>({
      text: `select value from ${settings} where name = $1 for update`,
      values: [name],
    })
    const before = rows[0]?.value ?? {}
    const after = patched(before, patch)
    const complete = checked(name, patch, after, await declarations(tx, schema, name))
    await tx.query({
      text: `
        with changed as (
          update ${settings} set value = $2, changed_at = now(), changed_by = $3 where name = $1
        )
        insert into ${quoteQualified(schema, 'audit')} (principal, action, target, details)
        values ($3, 'settings.change', $1, jsonb_build_object('before', $4::jsonb, 'after', $2::jsonb))`,
      values: [name, JSON.stringify(after), principal, JSON.stringify(before)],
    })
    return complete
  })
}

/** What the workers of this name were started with: those that run or, if none does, the last one that did. */
async function declarations(
  tx: Queryable,
  schema: string,
  name: string,
): Promise<readonly Partial<WorkerSettings>[]> {
  const { rows } = await tx.query<{ name: string; declared: Partial<WorkerSettings>; running: boolean }>({
    text: `
select each.key as name, each.value - 'groups' as declared, stopped_at is null and died_at is null as running
from ${quoteQualified(schema, 'workers')}, jsonb_each(declared) as each
order by last_seen_at desc`,
  })
  const own = rows.filter((row) => row.name === name)
  const [last] = own
  if (last === undefined) throw unknownName(name, new Set(rows.map((row) => row.name)))
  const running = own.filter((row) => row.running)
  return (running.length > 0 ? running : [last]).map(({ declared }) => declared)
}

function unknownName(name: string, known: ReadonlySet<string>): LeaseholdError {
  const meant = nearest(name, [...known])
  const remedy =
    meant === undefined
      ? `Known are ${[...known].toSorted().join(', ') || 'none'}; a worker is known once a process has been started with it.`
      : `Did you mean ${meant}?`
  return new LeaseholdError('SETTING_INVALID', `There is no worker named ${JSON.stringify(name)}.`, {
    remedy,
  })
}

/** Throws if the patch makes settings that cannot work for one of the declarations. */
function checked(
  name: string,
  patch: SettingsPatch,
  after: Partial<WorkerSettings>,
  declared: readonly Partial<WorkerSettings>[],
): WorkerSettings {
  const isOnlyPause = Object.keys(patch).every((each) => each === 'paused')
  const [complete] = declared.map((each) => {
    try {
      return workerSettings({ ...each, ...after })
    } catch (error) {
      // What else is stored may not work, and a pause has to.
      if (isOnlyPause) return workerSettings({ ...each, ...patched({}, patch) })
      throw new LeaseholdError(
        'SETTING_INVALID',
        `The settings of the worker ${name}, which was started with ${JSON.stringify(each)}, cannot be changed so. ${messageOf(error)}`,
        isLeaseholdError(error) && error.problems !== undefined ? { problems: error.problems } : {},
      )
    }
  })
  return complete ?? workerSettings(after)
}

function patched(stored: Partial<WorkerSettings>, patch: SettingsPatch): Partial<WorkerSettings> {
  const removed = new Set(Object.entries(patch).flatMap(([name, value]) => (value === null ? [name] : [])))
  const given = Object.entries({ ...stored, ...patch })
  // `workerSettings` checks the result.
  return Object.fromEntries(given.filter(([name, value]) => !removed.has(name) && value !== undefined))
}

/** As long as the name of a worker may be. */
const MAX_NAME_CHARACTERS = 63

function isStorable(value: string): boolean {
  return isText(value) && unstorableText(value) === undefined
}

/** For callers without TypeScript as well. */
function refuseUnless(isValid: boolean, what: string, value: unknown): void {
  if (isValid) return
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The ${what} of a change of settings is ${describeValue(value)}.`,
    {
      remedy: 'Say whose settings they are, which ones, and who changes them.',
    },
  )
}
