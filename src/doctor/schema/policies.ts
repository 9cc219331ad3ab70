/** Row-level security: without it, a key that is limited to a tenant would see the endpoints and deliveries of all. */
import { DEFAULT_ROLE_PREFIX } from '../../postgres/permissions.ts'
import { quoteIdentifier, quoteQualified } from '../../postgres/identifiers.ts'
import type { Check, Examination, Problem } from '../check.ts'

/** The tables that a tenant may read, each with a policy that permits everything and one that limits the tenant's role. */
const LIMITED_TABLES = ['webhook_endpoints', 'webhook_outbox', 'audit']

interface TableRow {
  readonly name: string
  readonly enabled: boolean
  readonly hasOpen: boolean
  readonly hasLimit: boolean
  /** Null: the role of tenants does not exist. */
  readonly tenant: string | null
}

async function policyProblems({ read, schema }: Examination): Promise<Problem[]> {
  const { rows } = await read(async (tx) =>
    tx.query<TableRow>({
      text: `with tenant as (
  select rolname as name, oid from pg_roles
  where rolname = coalesce(nullif(current_setting('leasehold.role_prefix', true), ''), $2) || '_tenant'
)
select c.relname as name, c.relrowsecurity as enabled, (select name from tenant) as tenant,
  exists (select from pg_policy as p where p.polrelid = c.oid and p.polpermissive and p.polname = c.relname || '_all') as "hasOpen",
  exists (select from pg_policy as p, tenant where p.polrelid = c.oid and not p.polpermissive
    and p.polname = tenant.name and p.polroles = array[tenant.oid] and p.polcmd = '*') as "hasLimit"
from pg_class as c
where c.relnamespace = (select oid from pg_namespace where nspname = $1) and c.relname = any ($3::text[])
order by c.relname`,
      values: [schema, DEFAULT_ROLE_PREFIX, LIMITED_TABLES],
    }),
  )
  return rows.flatMap((row) => problemsOf(schema, row))
}

function problemsOf(schema: string, { name, enabled, hasOpen, hasLimit, tenant }: TableRow): Problem[] {
  const table = quoteQualified(schema, name)
  const open = `create policy ${quoteIdentifier(`${name}_all`)} on ${table} using (true) with check (true)`
  const unlimited = tenant !== null && !(enabled && hasLimit)
  return [
    ...(hasOpen
      ? []
      : [
          {
            severity: 'error',
            text: `The policy ${name}_all of ${schema}.${name} is missing: no role but the owner sees its rows.`,
            remedy: 'Create it again.',
            repair: [open],
          } as const,
        ]),
    ...(unlimited && !enabled
      ? [
          {
            severity: 'error',
            text: `Row-level security of ${schema}.${name} is turned off: a key that is limited to a tenant sees the rows of all.`,
            remedy: 'Turn it on.',
            repair: [`alter table ${table} enable row level security`],
          } as const,
        ]
      : []),
    ...(tenant !== null && !hasLimit
      ? [
          {
            severity: 'error',
            text: `The policy ${tenant} of ${schema}.${name} is missing or was changed: a key that is limited to a tenant sees the rows of all.`,
            remedy: 'Create the roles and their policies once more.',
            repair: [`leasehold roles --schema ${quoteIdentifier(schema)}`],
          } as const,
        ]
      : []),
  ]
}

export const POLICY_CHECK: Check = {
  id: 'schema-policies',
  title: 'policies that limit keys of a tenant',
  needs: 'tables',
  run: policyProblems,
}
