/**
 * `leasehold migrate` and `leasehold roles`: apply the migrations, and the grants of the roles, to the given database or to
 * the embedded one that runs in the directory.
 */
import type { LoadedSettings } from '../config/load.ts'
import { LeaseholdError } from '../errors.ts'
import {
  applyRoles,
  migrate,
  type Migrated,
  migrationsSql,
  missingRoles,
  rolesSql,
} from '../postgres/index.ts'
import { type Run, UsageError } from './command.ts'
import { withRegistry, withRunningDatabase } from './database.ts'
import { isSet, wholeFlag } from './flags.ts'
import { printableJson } from './output.ts'

export async function runMigrate({ loaded, flags, log, print }: Run): Promise<number> {
  const { schema } = loaded.settings
  refuseGuess(loaded)
  const after = wholeFlag(flags, 'after', Number.MAX_SAFE_INTEGER)
  if (isSet(flags, 'print')) {
    if (flags['buckets'] !== undefined || isSet(flags, 'citus') || isSet(flags, 'json'))
      throw new UsageError(
        '--print prints the migrations alone: give --buckets, --citus or --json without it',
      )
    print(await migrationsSql({ schema, ...(after === undefined ? {} : { after }) }))
    return 0
  }
  if (after !== undefined) throw new UsageError('--after belongs to --print')
  const buckets = bucketsIn(flags)
  const { migrated, missing } = await withRunningDatabase(
    loaded,
    log,
    async (db) => ({
      migrated: await migrate(db, {
        schema,
        citus: isSet(flags, 'citus'),
        ...(buckets === undefined ? {} : { buckets }),
      }),
      missing: await missingRoles(db, schema),
    }),
    { neededRole: 'owner' },
  )
  if (isSet(flags, 'json')) {
    print(`${printableJson({ schema, ...migrated, missingRoles: missing })}\n`)
    return 0
  }
  print(report(migrated, schema))
  if (migrated.applied.length > 0 && missing.length > 0) print(adviceOnRoles(missing))
  return 0
}

function bucketsIn({ buckets }: Run['flags']): number | undefined {
  if (buckets === undefined) return undefined
  const count = Number(buckets)
  if (Number.isInteger(count) && count >= 1) return count
  throw new LeaseholdError('SETTING_INVALID', `--buckets is ${JSON.stringify(buckets)}.`, {
    remedy: 'Give a whole number from 1 to 1024, such as --buckets 64.',
  })
}

/** Not an error: the owner of the schema can do everything that the roles can. */
function adviceOnRoles(missing: readonly string[]): string {
  return `The roles ${missing.join(', ')} do not exist, and this database role may not create them. The owner of the schema needs none of them. For other users, let an administrator run what \`leasehold roles --print\` prints.\n`
}

/** The file that could not be read may name another schema, and this command would create the default one as well. */
function refuseGuess({ settings, sources, ignoredFile }: LoadedSettings): void {
  if (ignoredFile === undefined || sources.schema.kind !== 'default') return
  throw new LeaseholdError(
    'SETTING_INVALID',
    `schema is not given, and ${ignoredFile}, which may name one, cannot be read.`,
    { remedy: `Correct the file, or name the schema: --schema ${settings.schema}.` },
  )
}

function report({ applied, version, ahead, distributedBy }: Migrated, schema: string): string {
  const done = applied.length === 0 ? 'Nothing to apply.' : `Applied ${applied.join(', ')}.`
  const newer =
    ahead.length === 0 ? '' : ` It is ahead of this release, which does not have ${ahead.join(', ')}.`
  const distributed =
    distributedBy === undefined ? '' : ` Its tables are distributed by ${distributedBy} buckets.`
  return `${done} The schema ${schema} is at version ${version}.${newer}${distributed}\n`
}

export async function runRoles(run: Run): Promise<number> {
  const { loaded, flags, print } = run
  const { schema } = loaded.settings
  const prefix = typeof flags['rolePrefix'] === 'string' ? flags['rolePrefix'] : undefined
  if (isSet(flags, 'print')) {
    print(await rolesSql({ schema, prefix }))
    return 0
  }
  const names = await withRegistry(run, async (db) => applyRoles(db, { schema, prefix }))
  if (isSet(flags, 'json')) print(`${printableJson({ schema, roles: names })}\n`)
  else print(`The roles ${names.join(', ')} exist, with their privileges on the schema ${schema}.\n`)
  return 0
}
