/** Row-level security: without it, a key that is limited to a tenant would see the endpoints and deliveries of all. */
import { schemaFlag } from '../../admin/explain.ts'
import { isDistributed } from '../../postgres/citus.ts'
import { DEFAULT_ROLE_PREFIX } from '../../postgres/permissions.ts'
import { quoteIdentifier, quoteQualified } from '../../postgres/identifiers.ts'
import type { Check, Examination, Problem } from '../check.ts'

/** The tables that a tenant may read, each with a policy that permits everything and one that limits the tenant's role. */
const LIMITED_TABLES = ['webhook_endpoints', 'webhook_outbox', 'audit']

/** What a tenant sees of a table, and what it may write where that differs. Citus has no policies with subqueries. */
function limitOf(schema: string, table: string, distributed: boolean): Limit {
  const own = "(principal = current_setting('leasehold.principal'::text))"
  if (table === 'webhook_endpoints')
    return { using: "(tenant = NULLIF(current_setting('leasehold.tenant'::text), ''::text))", check: null }
  if (table === 'audit') {
    const by = "((details -> 'background'::text) ->> 'by'::text)"
    return { using: `(${own} OR (${by} = current_setting('leasehold.principal'::text)))`, check: own }
  }
  const endpoints = quoteQualified(schema, 'webhook_endpoints')
  const using = distributed ? 'false' : `(endpoint_id IN ( SELECT webhook_endpoints.id FROM ${endpoints}))`
  return { using, check: null }
}

type Limit = Pick<Policy, 'using' | 'check'>

interface TableRow {
  readonly name: string
  readonly enabled: boolean
  /** Null: the role of tenants does not exist. */
  readonly tenant: string | null
  /** Null: there is none of this name. */
  readonly open: Policy | null
  readonly limit: Policy | null
}

interface Policy {
  readonly permissive: boolean
  readonly command: string
  /** Whether it applies to those it was made for. */
  readonly itsRoles: boolean
  readonly using: string | null
  readonly check: string | null
}

async function policyProblems({ read, schema }: Examination): Promise<Problem[]> {
  const policy = (name: string, role: string): string =>
    `(select jsonb_build_object('permissive', p.polpermissive, 'command', p.polcmd, 'itsRoles', p.polroles = array[${role}],
    'using', pg_get_expr(p.polqual, p.polrelid), 'check', pg_get_expr(p.polwithcheck, p.polrelid))
  from pg_policy as p where p.polrelid = c.oid and p.polname = ${name})`
  return read(async (tx) => {
    const distributed = await isDistributed(tx, schema)
    // With no schema on the path, PostgreSQL qualifies every table it prints.
    await tx.query({ text: `set local search_path to ''` })
    const { rows } = await tx.query<TableRow>({
      text: `with tenant as (
  select rolname as name, oid from pg_roles
  where rolname = coalesce(nullif(current_setting('leasehold.role_prefix', true), ''), $2) || '_tenant'
)
select c.relname as name, c.relrowsecurity as enabled, (select name from tenant) as tenant,
  ${policy("c.relname || '_all'", '0::oid')} as open,
  ${policy('(select name from tenant)', '(select oid from tenant)')} as limit
from pg_class as c
where c.relnamespace = (select oid from pg_namespace where nspname = $1) and c.relname = any ($3::text[])
order by c.relname`,
      values: [schema, DEFAULT_ROLE_PREFIX, LIMITED_TABLES],
    })
    return rows.flatMap((row) => problemsOf(schema, row, limitOf(schema, row.name, distributed)))
  })
}

function isOpen({ permissive, command, itsRoles, using, check }: Policy): boolean {
  return permissive && command === '*' && itsRoles && using === 'true' && check === 'true'
}

function isLimit({ permissive, command, itsRoles, using, check }: Policy, wanted: Limit): boolean {
  const isSame = plain(using) === plain(wanted.using) && plain(check) === plain(wanted.check)
  return !permissive && command === '*' && itsRoles && isSame
}

/** Whether the table is named before each column differs between the versions of PostgreSQL. */
function plain(expression: string | null): string | undefined {
  return expression
    ?.replaceAll(/(?<![.\w"])(?:webhook_endpoints|webhook_outbox)\.(?=\w)/g, '')
    .replaceAll(/\s+/g, ' ')
}

function problemsOf(schema: string, row: TableRow, wanted: Limit): Problem[] {
  const { name, enabled, tenant, open, limit } = row
  const table = quoteQualified(schema, name)
  const all = quoteIdentifier(`${name}_all`)
  const create = `create policy ${all} on ${table} using (true) with check (true)`
  const problems: Problem[] = []
  if (open === null)
    problems.push({
      severity: 'error',
      text: `The policy ${name}_all of ${schema}.${name} is missing: no role but the owner sees its rows.`,
      remedy: 'Create it again.',
      repair: [create],
    })
  else if (!isOpen(open))
    problems.push({
      severity: 'error',
      text: `The policy ${name}_all of ${schema}.${name} was changed: roles other than the owner may not see or write rows that they need.`,
      remedy: 'Replace it.',
      // One statement: without the policy nobody sees a row.
      repair: [`do $$ begin\n  drop policy ${all} on ${table};\n  ${create};\nend $$`],
    })
  if (tenant !== null && !enabled)
    problems.push({
      severity: 'error',
      text: `Row-level security of ${schema}.${name} is turned off: a key that is limited to a tenant sees the rows of all.`,
      remedy: 'Turn it on.',
      repair: [`alter table ${table} enable row level security`],
    })
  if (tenant !== null && (limit === null || !isLimit(limit, wanted)))
    problems.push({
      severity: 'error',
      text: `The policy ${tenant} of ${schema}.${name} is missing or was changed: a key that is limited to a tenant may see the rows of others.`,
      remedy: 'Create the roles and their policies once more.',
      repair: [`leasehold roles${schemaFlag(schema)}`],
    })
  return problems
}

export const POLICY_CHECK: Check = {
  id: 'schema-policies',
  title: 'policies that limit keys of a tenant',
  needs: 'tables',
  run: policyProblems,
}
