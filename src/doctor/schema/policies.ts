/** Row-level security: without it, a key that is limited to a tenant would see the endpoints and deliveries of all. */
import { schemaFlag } from '../../operations/shown-commands.ts'
import { quoteIdentifier, quoteQualified } from '../../postgres/identifiers.ts'
import { type LimitedTable, readLimitedTables } from '../../postgres/tenant-policies.ts'
import type { Check, Examination, Problem } from '../check.ts'

async function policyProblems({ read, schema }: Examination): Promise<Problem[]> {
  const tables = await read(async (tx) => readLimitedTables(tx, schema))
  const [first] = tables
  return [
    ...(first?.tenant && first.isBypassed ? [bypassed(first.tenant)] : []),
    // That a table is missing is a finding of its own.
    ...tables.filter(({ exists }) => exists).flatMap((table) => problemsOf(schema, table)),
  ]
}

function bypassed(tenant: string): Problem {
  return {
    severity: 'error',
    text: `The role ${tenant} bypasses row-level security: a key that is limited to a tenant would see the rows of all.`,
    remedy: 'Take that from the role. Until then the HTTP API refuses requests of tenants.',
    repair: [`alter role ${quoteIdentifier(tenant)} nosuperuser nobypassrls`],
  }
}

function problemsOf(schema: string, limited: LimitedTable): Problem[] {
  const { name, isEnabled, isBypassed, isOwned, tenant, open, limit } = limited
  const table = quoteQualified(schema, name)
  const all = quoteIdentifier(`${name}_all`)
  const create = `create policy ${all} on ${table} using (true) with check (true)`
  const problems: Problem[] = []
  if (open === 'missing')
    problems.push({
      severity: 'error',
      text: `The policy ${name}_all of ${schema}.${name} is missing: no role but the owner sees its rows.`,
      remedy: 'Create it again.',
      repair: [create],
    })
  else if (open === 'changed')
    problems.push({
      severity: 'error',
      text: `The policy ${name}_all of ${schema}.${name} was changed: roles other than the owner may not see or write rows that they need.`,
      remedy: 'Replace it.',
      // One statement: without the policy nobody sees a row.
      repair: [`do $$ begin\n  drop policy ${all} on ${table};\n  ${create};\nend $$`],
    })
  if (tenant !== null && isOwned && !isBypassed)
    problems.push({
      severity: 'error',
      text: `The role ${tenant} owns ${schema}.${name}, or is a member of its owner, and is not limited by its policies: a key that is limited to a tenant would see the rows of all.`,
      remedy:
        'Give the table to the owner of the schema, or revoke that role. Until then the HTTP API refuses requests of tenants.',
    })
  if (tenant !== null && !isEnabled)
    problems.push({
      severity: 'error',
      text: `Row-level security of ${schema}.${name} is turned off: a key that is limited to a tenant sees the rows of all.`,
      remedy: 'Turn it on.',
      repair: [`alter table ${table} enable row level security`],
    })
  if (tenant !== null && limit !== 'intact')
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
