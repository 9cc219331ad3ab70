/**
 * What is done to webhooks once a minute, by the clock of the database (D11): the secret before a rotation is erased when
 * its window is over, deliveries that cannot be attempted fail, and finished deliveries are deleted. Any number of
 * processes may do this at once.
 */
import { DAY_MS, type RetentionCall, type RetentionRun, startRetention } from '../../operations/retention.ts'
import { isDistributed } from '../../postgres/citus.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { endpointsOf } from './filter.ts'
import { type GivenUp, giveUpStuck } from './give-up-stuck.ts'
import { type Deleted, repeatedRetention, type WebhookRetention } from './retention.ts'

/** How long finished deliveries are retained, and when a delivery that cannot be attempted fails. */
export interface WebhookMaintenance extends WebhookRetention {
  /** How long one may be due before it has failed. Null: for ever. Default 4 days. */
  readonly maxAgeMs?: number | null | undefined
}

export interface WebhookMaintenanceOptions extends WebhookMaintenance, RetentionCall {}

export type WebhookMaintenanceResult = GivenUp &
  Deleted & {
    /** How many former secrets were erased. */
    readonly secrets: number
  }

const DEFAULT_MAX_AGE_MS = 4 * DAY_MS

/** Erases, fails and deletes what is old enough now. */
export async function maintain(
  db: Database,
  options: WebhookMaintenanceOptions = {},
): Promise<WebhookMaintenanceResult> {
  return repeatedMaintenance(options)(db, options.signal)
}

/** The maintenance of a process, which calls it again and again. */
export function repeatedMaintenance(
  options: Omit<WebhookMaintenanceOptions, 'signal'>,
): (db: Database, signal?: AbortSignal) => Promise<WebhookMaintenanceResult> {
  const { deliveredMs, failedMs, maxAgeMs = DEFAULT_MAX_AGE_MS } = options
  const applyRetention = repeatedRetention(options)
  return async (db, signal) => {
    // Everything is checked before anything is changed.
    const run = startRetention({ ...options, signal }, { deliveredMs, failedMs, maxAgeMs })
    const secrets = await eraseFormerSecrets(db, run)
    const givenUp = await giveUpStuck(db, run, maxAgeMs)
    return { ...(await applyRetention(db, signal)), ...givenUp, secrets }
  }
}

/**
 * Erases the secret before a rotation once its window is over. It reads first, because an UPDATE wakes every dispatcher,
 * also when it changes nothing.
 */
async function eraseFormerSecrets(db: Queryable, { schema, batch }: RetentionRun): Promise<number> {
  const table = endpointsOf(schema)
  const { rows } = await db.query<{ id: string }>({
    text: `select id from ${table} where previous_secret_until <= now() limit $1::int`,
    values: [batch],
  })
  if (rows.length === 0) return 0
  // An endpoint that somebody has locked is skipped, and found by the next run. Citus cannot skip rows of a reference table.
  const free = `select id from ${table} where id = any ($1::uuid[]) for update skip locked`
  const ids = (await isDistributed(db, schema)) ? '$1::uuid[]' : `array(${free})`
  const { rowCount } = await db.query({
    text: `update ${table} set previous_secret = null, previous_secret_until = null
where id = any (${ids}) and previous_secret_until <= now()`,
    values: [rows.map(({ id }) => id)],
  })
  return rowCount ?? 0
}
