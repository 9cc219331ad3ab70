/** The seven roles. `migrations/006_roles.sql` has every grant; here it is repeated, or printed for an administrator. */
import { LeaseholdError, messageOf } from '../errors.ts'
import { readSqlFiles } from '../package-files.ts'
import { CATALOG_PATH, withCatalogPath } from './catalog-path.ts'
import type { Database } from './database.ts'
import { quoteIdentifier, quoteLiteral } from './identifiers.ts'
import { DEFAULT_ROLE_PREFIX, isPermissionDenied, ROLE_KINDS } from './permissions.ts'
import type { Queryable } from './queryable.ts'

export interface RoleOptions {
  /** The schema of the tables. Default `leasehold`. */
  readonly schema?: string
  /** What the names of the roles begin with. Default: `leasehold`, or what the database sets as `leasehold.role_prefix`. */
  readonly prefix?: string | undefined
}

const ROLES_FILE = '006_roles.sql'
const PREFIX = /^[a-z_][a-z0-9_]{0,53}$/

/** Sets the prefix of the roles until the end of the transaction. */
function setRolePrefix(prefix: string): string {
  if (!PREFIX.test(prefix)) {
    throw new LeaseholdError('SETTING_INVALID', `The prefix of the roles is ${JSON.stringify(prefix)}.`, {
      remedy: 'Give at most 54 lower-case letters, digits and "_", not beginning with a digit.',
    })
  }
  return `set local leasehold.role_prefix to ${quoteLiteral(prefix)}`
}

/** The statements that create the roles and grant to them, for an administrator to run as one transaction. */
export async function rolesSql({ schema = 'leasehold', prefix }: RoleOptions = {}): Promise<string> {
  const { [ROLES_FILE]: text = '' } = await readSqlFiles()
  return [
    'begin;',
    ...(prefix === undefined ? [] : [`${setRolePrefix(prefix)};`]),
    `set local search_path to ${quoteIdentifier(schema)}, pg_temp;`,
    '',
    text.trimEnd(),
    '',
    'commit;',
    '',
  ].join('\n')
}

/**
 * Creates the roles that are missing, grants to all of them, and returns their names. Refuses, and changes nothing, where
 * this user may not do that.
 */
export async function applyRoles(
  db: Database,
  { schema = 'leasehold', prefix }: RoleOptions = {},
): Promise<readonly string[]> {
  const { [ROLES_FILE]: file = '' } = await readSqlFiles()
  return withCatalogPath(db).transaction(async (tx) => {
    await refuseUnusable(tx, schema)
    if (prefix !== undefined) await tx.query({ text: setRolePrefix(prefix) })
    await tx.query({ text: `set local search_path to ${quoteIdentifier(schema)}, pg_temp` })
    await tx.query({ text: file }).catch((error: unknown) => {
      throw isPermissionDenied(error) ? refused(deniedIn(error), error) : error
    })
    await tx.query({ text: CATALOG_PATH })
    const roles = await rolesOf(tx, schema)
    const missing = roles.filter(({ exists }) => !exists).map(({ name }) => name)
    if (missing.length > 0) throw refused(`${missing.join(', ')} could not be created`)
    // Without the right to grant, GRANT only warns.
    const ungranted = roles.filter(({ granted }) => granted !== true).map(({ name }) => name)
    if (ungranted.length > 0)
      throw refused(`nothing could be granted to ${ungranted.join(', ')} in the schema ${schema}`)
    return roles.map(({ name }) => name)
  })
}

/** Those of the roles that do not exist, because whoever migrated may not create roles. */
export async function missingRoles(db: Queryable, schema = 'leasehold'): Promise<readonly string[]> {
  return (await rolesOf(db, schema)).filter(({ exists }) => !exists).map(({ name }) => name)
}

interface RoleState {
  readonly name: string
  readonly exists: boolean
  /** Null where it does not exist. */
  readonly granted: boolean | null
}

/** The roles of the current prefix. */
async function rolesOf(db: Queryable, schema: string): Promise<readonly RoleState[]> {
  const { rows } = await db.query<RoleState>({
    text: `select wanted.name, role.oid is not null as exists, has_schema_privilege(role.oid, $3::text, 'usage') as granted
from (
  select coalesce(nullif(current_setting('leasehold.role_prefix', true), ''), $1) || '_' || kind as name, position
  from unnest($2::text[]) with ordinality as kinds (kind, position)
) as wanted
left join pg_roles as role on role.rolname = wanted.name
order by position`,
    values: [DEFAULT_ROLE_PREFIX, ROLE_KINDS, schema],
  })
  return rows
}

/** Where the schema is missing, or may not be used, PostgreSQL would only say that some function does not exist. */
async function refuseUnusable(tx: Queryable, schema: string): Promise<void> {
  const { rows } = await tx.query<{ usable: boolean }>({
    text: `select has_schema_privilege(n.oid, 'usage') as usable
from pg_namespace as n
where n.nspname = $1 and exists (select from pg_class as c where c.relnamespace = n.oid and c.relname = 'workers')`,
    values: [schema],
  })
  const [found] = rows
  if (found === undefined)
    throw new LeaseholdError('SETTING_INVALID', `The schema ${schema} has no tables of Leasehold yet.`, {
      remedy: 'Run `leasehold migrate`, or name another schema with --schema.',
    })
  if (!found.usable) throw refused(`it cannot use the schema ${schema}`)
}

/** PostgreSQL's own words. Its usual remedy, to grant one of the roles, does not help who creates them. */
function deniedIn(error: unknown): string {
  return messageOf(error instanceof LeaseholdError ? (error.cause ?? error) : error)
}

function refused(what: string, cause?: unknown): LeaseholdError {
  return new LeaseholdError('PERMISSION_DENIED', `This database role may not do that: ${what}.`, {
    remedy:
      'Nothing was changed. Run it as the owner of the schema with CREATEROLE, or let an administrator run what `leasehold roles --print` prints.',
    cause,
  })
}
