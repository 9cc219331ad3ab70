import { audit } from '../../admin/audit.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import { isUnderNewestKey, type SecretKeys } from '../signing/index.ts'
import type { By } from './endpoint.ts'
import { kept } from './secrets.ts'

/** So many rows are locked at once. */
const BATCH = 200

interface SecretsRow {
  readonly id: string
  readonly secret: string
  readonly previous: string | null
}

/** Encrypts what an older key had encrypted with the newest; afterwards the older one is of no use any more. */
export async function encryptAnew(db: Database, schema: string, keys: SecretKeys, by: By): Promise<number> {
  let changed = 0
  let after: string | undefined = '00000000-0000-0000-0000-000000000000'
  while (after !== undefined) {
    const batch: { readonly last: string | undefined; readonly changed: number } = await nextBatch(
      db,
      { schema, keys, by },
      after,
    )
    changed += batch.changed
    after = batch.last
  }
  return changed
}

async function nextBatch(
  db: Database,
  { schema, keys, by }: { readonly schema: string; readonly keys: SecretKeys; readonly by: By },
  after: string,
): Promise<{ readonly last: string | undefined; readonly changed: number }> {
  const table = quoteQualified(schema, 'webhook_endpoints')
  return db.transaction(async (tx) => {
    const { rows } = await tx.query<SecretsRow>({
      text: `select e.id::text as id, secret, previous_secret as previous from ${table} as e
where e.id > $1::uuid order by e.id limit ${BATCH} for update`,
      values: [after],
    })
    const older = rows.filter(({ secret, previous }) =>
      [secret, previous].some((text) => text !== null && !isUnderNewestKey(keys, text)),
    )
    for (const { id, secret, previous } of older) {
      await tx.query({
        text: `update ${table} set secret = $2, previous_secret = $3, updated_at = now() where id = $1`,
        values: [id, kept(keys, id, secret), previous === null ? null : kept(keys, id, previous)],
      })
    }
    if (older.length > 0) {
      const { principal, reason } = by
      const details = { ...(reason === undefined ? {} : { reason }), endpoints: older.map(({ id }) => id) }
      await audit(tx, schema, { principal, action: 'webhooks.endpoint.encrypt', target: null, details })
    }
    return { last: rows.at(-1)?.id, changed: older.length }
  })
}
