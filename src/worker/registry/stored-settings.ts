/** Settings that workers apply while they run, stored in the `settings` table and announced by its trigger. */
import { LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { type WorkerSettings, workerSettings } from '../settings.ts'

/** `null` removes a setting. */
export type SettingsPatch = { readonly [Name in keyof WorkerSettings]?: WorkerSettings[Name] | null }

/** What is stored under the name, unchecked: the reader checks it with `workerSettings`. */
export async function readSettings(
  db: Queryable,
  schema: string,
  name: string,
): Promise<Partial<WorkerSettings> | undefined> {
  const { rows } = await db.query<{ value: Partial<WorkerSettings> }>({
    text: `select value from ${quoteQualified(schema, 'settings')} where name = $1`,
    values: [name],
  })
  return rows[0]?.value
}

/**
 * Changes the settings named in the patch, and returns all of them. When the result could not work, the whole patch is
 * refused and nothing is written. Concurrent changes wait for each other, so that each is checked against the other.
 */
export async function changeSettings(
  db: Database,
  schema: string,
  name: string,
  patch: SettingsPatch,
  principal: string,
): Promise<WorkerSettings> {
  refuseBlank('name', name)
  refuseBlank('principal', principal)
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
    const complete = workerSettings(after)
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

function patched(stored: Partial<WorkerSettings>, patch: SettingsPatch): Partial<WorkerSettings> {
  const removed = new Set(Object.entries(patch).flatMap(([name, value]) => (value === null ? [name] : [])))
  const given = Object.entries({ ...stored, ...patch })
  // `workerSettings` checks the result.
  return Object.fromEntries(given.filter(([name, value]) => !removed.has(name) && value !== undefined))
}

function refuseBlank(what: string, value: string): void {
  if (value.trim() !== '') return
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The ${what} of a change of settings is ${JSON.stringify(value)}.`,
    {
      remedy: 'Say whose settings they are, and who changes them.',
    },
  )
}
