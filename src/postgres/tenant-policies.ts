/**
 * Row-level security: what keeps the tenants apart, as `migrations/006_roles.sql` creates it, and whether a database has it.
 * Requests of a tenant carry no conditions of their own: without these policies they would reach the rows of all.
 */
import { EMPTY_PATH } from './catalog-path.ts'
import { CITUS_BUCKETS } from './citus.ts'
import { quoteQualified } from './identifiers.ts'
import { DEFAULT_ROLE_PREFIX } from './permissions.ts'
import type { Queryable } from './queryable.ts'

/** The tables that a tenant may read, each with a policy that permits everything and one that limits the tenant's role. */
const LIMITED_TABLES = ['audit', 'webhook_endpoints', 'webhook_outbox']

export type PolicyState = 'intact' | 'changed' | 'missing'

/** How far a table keeps the tenants apart. */
export interface LimitedTable {
  readonly name: string
  readonly exists: boolean
  /** Whether its policies apply at all. */
  readonly isEnabled: boolean
  /** The role of tenants. Null: it does not exist. */
  readonly tenant: string | null
  /** Whether no policy of any table applies to that role. */
  readonly isBypassed: boolean
  /** Whether that role is an owner of the table, to which its policies do not apply. */
  readonly isOwned: boolean
  /** The policy that permits everything, to everybody. */
  readonly open: PolicyState
  /** The policy that limits the role of tenants. */
  readonly limit: PolicyState
}

interface Policy {
  readonly permissive: boolean
  readonly command: string
  /** Whether it applies to those it was made for, and to no others. */
  readonly itsRoles: boolean
  readonly using: string | null
  readonly check: string | null
}

type Expressions = Pick<Policy, 'using' | 'check'>

type Row = Omit<LimitedTable, 'open' | 'limit'> & {
  readonly isDistributed: boolean
  /** Null: there is none of this name. */
  readonly open: Policy | null
  readonly limit: Policy | null
}

/** Reads the catalogs, which every role may. Sets the search path of the transaction. */
export async function readLimitedTables(tx: Queryable, schema: string): Promise<LimitedTable[]> {
  const policy = (name: string, role: string): string =>
    `(select jsonb_build_object('permissive', p.polpermissive, 'command', p.polcmd, 'itsRoles', p.polroles = array[${role}],
    'using', pg_get_expr(p.polqual, p.polrelid), 'check', pg_get_expr(p.polwithcheck, p.polrelid))
  from pg_policy as p where p.polrelid = c.oid and p.polname = ${name})`
  await tx.query({ text: EMPTY_PATH })
  const { rows } = await tx.query<Row>({
    text: `with tenant as (
  select rolname as name, oid, rolbypassrls or rolsuper as bypasses from pg_roles
  where rolname = coalesce(nullif(current_setting('leasehold.role_prefix', true), ''), $2) || '_tenant'
),
own as (
  select pg_class.* from pg_class join pg_namespace as n on n.oid = relnamespace where nspname = $1
)
select wanted.name, c.oid is not null as exists, coalesce(c.relrowsecurity, false) as "isEnabled",
  (select name from tenant) as tenant, coalesce((select bypasses from tenant), false) as "isBypassed",
  coalesce((select pg_has_role(oid, c.relowner, 'usage') and not c.relforcerowsecurity from tenant), false) as "isOwned",
  exists (select from own where relname = $4) as "isDistributed",
  ${policy("c.relname || '_all'", '0::oid')} as open,
  ${policy('(select name from tenant)', '(select oid from tenant)')} as limit
from unnest($3::text[]) as wanted (name) left join own as c on c.relname = wanted.name
order by wanted.name`,
    values: [schema, DEFAULT_ROLE_PREFIX, LIMITED_TABLES, CITUS_BUCKETS],
  })
  return rows.map(({ isDistributed, open, limit, ...table }) => ({
    ...table,
    open: stateOf(open, true, { using: 'true', check: 'true' }),
    limit: stateOf(limit, false, limitOf(schema, table.name, isDistributed)),
  }))
}

/** What a tenant sees of a table, and what it may write where that differs. Citus has no policies with subqueries. */
function limitOf(schema: string, table: string, isDistributed: boolean): Expressions {
  const own = "(principal = current_setting('leasehold.principal'::text))"
  if (table === 'webhook_endpoints')
    return { using: "(tenant = NULLIF(current_setting('leasehold.tenant'::text), ''::text))", check: null }
  if (table === 'audit') {
    const by = "((details -> 'background'::text) ->> 'by'::text)"
    return { using: `(${own} OR (${by} = current_setting('leasehold.principal'::text)))`, check: own }
  }
  const endpoints = quoteQualified(schema, 'webhook_endpoints')
  const using = isDistributed ? 'false' : `(endpoint_id IN ( SELECT webhook_endpoints.id FROM ${endpoints}))`
  return { using, check: null }
}

function stateOf(policy: Policy | null, permissive: boolean, wanted: Expressions): PolicyState {
  if (policy === null) return 'missing'
  const isSame = plain(policy.using) === plain(wanted.using) && plain(policy.check) === plain(wanted.check)
  return isSame && policy.permissive === permissive && policy.command === '*' && policy.itsRoles
    ? 'intact'
    : 'changed'
}

/** Whether the table is named before each column differs between the versions of PostgreSQL. */
function plain(expression: string | null): string | undefined {
  return expression
    ?.replaceAll(/(?<![.\w"])(?:webhook_endpoints|webhook_outbox)\.(?=\w)/g, '')
    .replaceAll(/\s+/g, ' ')
}
