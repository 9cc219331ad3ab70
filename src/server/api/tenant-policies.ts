/** Refuses requests of tenants where the database does not keep them apart. */
import { LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteIdentifier, quoteQualified } from '../../postgres/identifiers.ts'
import { readLimitedTables } from '../../postgres/tenant-policies.ts'

/** Refuses where a table has no row-level security, or not the policy for the role of tenants, or that bypasses it. */
export async function requireTenantPolicies(db: Database, schema: string, role: string): Promise<void> {
  const tables = await db.transaction(async (tx) => readLimitedTables(tx, schema))
  const problems = tables.flatMap(({ name, isBypassed, isOwned, isEnabled, limit }) => {
    const table = quoteQualified(schema, name)
    if (isBypassed || isOwned) return [`the role ${role} is not limited by the policies of ${table}`]
    if (!isEnabled) return [`row-level security is not enabled on ${table}`]
    if (limit === 'missing') return [`${table} has no policy for the role ${role}`]
    return limit === 'changed' ? [`the policy of ${table} for the role ${role} was changed`] : []
  })
  if (problems.length === 0) return
  const isDisabled = tables.some(({ isEnabled }) => !isEnabled)
  const isUnlimited = tables.some(({ isBypassed, isOwned }) => isBypassed || isOwned)
  throw new LeaseholdError(
    'POLICY_MISSING',
    `Requests of a tenant are refused, because they would reach rows of others: ${problems.join('; ')}.`,
    {
      remedy: isUnlimited
        ? `Run ALTER ROLE ${quoteIdentifier(role)} NOSUPERUSER NOBYPASSRLS, and revoke from it the role that owns the tables.`
        : isDisabled
          ? 'Run `leasehold migrate`; where it has nothing to do, ALTER TABLE … ENABLE ROW LEVEL SECURITY and then `leasehold roles`, as the owner of the schema.'
          : 'Run `leasehold roles` as the owner of the schema.',
    },
  )
}
