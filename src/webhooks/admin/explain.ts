/** Why a delivery is not attempted: besides what every lease table has, its endpoint may be the reason. */
import { explainOne, type ExplainOptions, type FoundRow } from '../../operations/explain/explain.ts'
import { at, type Explanation, reason, type Reason, when } from '../../operations/explain/reasons.ts'
import type { RowFacts } from '../../operations/explain/row.ts'
import { rowCommands, schemaFlag } from '../../operations/shown-commands.ts'
import { messageOf, sentence } from '../../errors.ts'
import { counted, duration, grouped } from '../../figures.ts'
import { ownBuckets } from '../../lease/backlog.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { WEBHOOKS } from '../dispatcher/dispatcher.ts'
import { decryptHeaders, readSecretKeys } from '../endpoints/secrets.ts'
import { decrypt, SECRET_KEY_SETTING, type SecretKeys } from '../signing/encryption.ts'
import { webhookTable } from '../table.ts'
import { findDelivery } from './browse.ts'
import { checkId, deliveriesOf, endpointsOf } from './filter.ts'

export interface ExplainDeliveryOptions extends ExplainOptions {
  /**
   * The key of the secrets of endpoints, to say whether the secret of this one can be read. Default: the environment
   * variable LEASEHOLD_SECRET_KEY. An empty text: there is none.
   */
  readonly secretKey?: string | undefined
}

/** Explains the delivery with this number; an event id will do where the event went to one endpoint only. */
export async function explainDelivery(
  db: Database,
  id: string,
  options: ExplainDeliveryOptions = {},
): Promise<Explanation> {
  checkId(id)
  const { schema, secretKey } = options
  const keys = readSecretKeys(secretKey)
  return explainOne(
    db,
    id,
    {
      table: webhookTable({ schema }),
      workers: [WEBHOOKS],
      description: {
        row: 'delivery',
        group: 'endpoint',
        ended: "nullif(delivery_status, 'pending')",
        endedAt: 'coalesce(delivered_at, failed_at)',
        isDead: "delivery_status = 'failed'",
        ...rowCommands('webhooks', schema),
      },
      find: async (tx) => findDelivery(tx, schema, id),
      reasons: async (tx, found) => reasonsOfEndpoint(tx, found, schema, keys),
    },
    options,
  )
}

interface Endpoint {
  readonly id: string
  readonly enabled: boolean
  readonly disabledReason: string | null
  readonly disabledAt: Date | null
  readonly failures: number
  readonly failingSince: Date | null
  readonly openUntil: Date | null
  readonly isOpen: boolean
  readonly ratePerSecond: number | null
  readonly concurrency: number
  /** A reader may not. */
  readonly maySeeSecret: boolean
}

async function reasonsOfEndpoint(
  tx: Queryable,
  { row, state, serving }: FoundRow,
  schema: string | undefined,
  keys: SecretKeys | undefined,
): Promise<readonly Reason[]> {
  if (state === 'finished' || state === 'leased') return []
  const { rows } = await tx.query<Endpoint>({
    text: `select id::text as id, enabled, disabled_reason as "disabledReason", disabled_at as "disabledAt", failures,
  failing_since as "failingSince", case when isfinite(open_until) then open_until end as "openUntil",
  coalesce(open_until > now(), false) as "isOpen", rate_per_second as "ratePerSecond", concurrency,
  has_column_privilege($2::text, 'secret', 'select') as "maySeeSecret"
from ${endpointsOf(schema)} where id = $1::uuid`,
    values: [row.group, endpointsOf(schema)],
  })
  const [endpoint] = rows
  if (endpoint === undefined) {
    const text = `Its endpoint ${row.group} was deleted, and a dispatcher will give it up.`
    return [reason('endpointDeleted', text, { by: row.group })]
  }
  return [
    ...notSending(endpoint, row, schema),
    ...(await limits(tx, endpoint, row, schema)),
    ...(keys === undefined
      ? withoutKey(serving.length === 0, schema)
      : await secrets(tx, endpoint, keys, schema)),
  ]
}

/** The endpoint is disabled, or its circuit is open. Enabling it ends both. */
function notSending(endpoint: Endpoint, { now }: RowFacts, schema: string | undefined): Reason[] {
  const { id: by, enabled, disabledAt, disabledReason, failingSince, openUntil: until } = endpoint
  const command = `leasehold webhooks endpoints enable ${by}${schemaFlag(schema)} --reason '…'`
  if (!enabled) {
    const why = disabledReason === null || disabledReason === '' ? '.' : `: ${sentence(disabledReason)}`
    const text = `Its endpoint ${by} has been disabled${when('since', disabledAt, now)}${why}`
    return [reason('endpointDisabled', text, { since: disabledAt, by, command })]
  }
  if (failingSince === null) return []
  const details = { since: failingSince, by, command }
  const failed = `${counted(endpoint.failures, 'attempt')} in a row failed, and its circuit opened at ${at(failingSince, now)}`
  if (!endpoint.isOpen) {
    const text = `Its endpoint ${by} is being probed with one delivery at a time, because ${failed}.`
    return [reason('circuitProbing', text, details)]
  }
  const end = until === null ? 'an operator enables it' : at(until, now)
  const text = `Nothing is sent to its endpoint ${by} until ${end}, because ${failed}.`
  return [reason('circuitOpen', text, { ...details, until })]
}

/** More than this are not counted. */
const MAX_COUNTED = 10_000

/** Both limits hold for all dispatchers together, and so for all buckets. */
async function limits(
  tx: Queryable,
  { id, concurrency, ratePerSecond }: Endpoint,
  row: RowFacts,
  schema: string | undefined,
): Promise<Reason[]> {
  const table = deliveriesOf(schema)
  // As text: a Date has no microseconds, and many deliveries are due at the same one.
  const due = await tx.query<{ at: string }>({
    text: `select next_attempt_at::text as at from ${table} where bucket = $1::smallint and id = $2::bigint`,
    values: [row.bucket, row.id],
  })
  let [inFlight, earlier] = [0, 0]
  for (const bucket of await ownBuckets(tx, schema)) {
    const { rows } = await tx.query<{ inFlight: number; earlier: number }>({
      text: `/* leasehold:explain limits webhook_outbox */
select (
  select count(*)::int from (
    select from ${table}
    where bucket = $1::smallint and endpoint_id = $2::uuid and lease_owner is not null and lease_until > now()
    limit ${MAX_COUNTED}
  ) as leased
) as "inFlight", (
  select count(*)::int from (
    select from ${table}
    where bucket = $1::smallint and endpoint_id = $2::uuid and delivery_status = 'pending' and ordering_key is null
      and expiries < 2 and (next_attempt_at, id) < ($3::timestamptz, $4::bigint) and lease_owner is null
    limit ${MAX_COUNTED}
  ) as due
) as earlier`,
      values: [bucket, id, due.rows[0]?.at, row.id],
    })
    inFlight += rows[0]?.inFlight ?? 0
    earlier += rows[0]?.earlier ?? 0
  }
  const reasons: Reason[] = []
  const update = `leasehold webhooks endpoints update ${id}${schemaFlag(schema)}`
  if (inFlight >= concurrency) {
    const text = `${counted(inFlight, 'delivery', 'deliveries')} to its endpoint ${id} ${inFlight === 1 ? 'is' : 'are'} in flight, and its concurrency is ${concurrency}.`
    reasons.push(
      reason('concurrencyLimit', text, { by: id, command: `${update} --concurrency ${concurrency * 2}` }),
    )
  }
  if (ratePerSecond !== null && row.isDue && earlier >= ratePerSecond) {
    const takes = duration((earlier / ratePerSecond) * 1_000)
    const first =
      earlier < MAX_COUNTED
        ? `${counted(earlier, 'delivery', 'deliveries')} that ${earlier === 1 ? 'was' : 'were'} due earlier ${earlier === 1 ? 'takes' : 'take'} about ${takes}`
        : `${grouped(MAX_COUNTED)} or more deliveries that were due earlier take ${takes} or more`
    const text = `Its endpoint ${id} gets ${ratePerSecond} per second at most, and ${first}.`
    reasons.push(reason('rateLimit', text, { by: id, command: `${update} --no-rate` }))
  }
  return reasons
}

/** A dispatcher that runs has a key, whether there is one here or not. */
function withoutKey(isUnserved: boolean, schema: string | undefined): Reason[] {
  if (!isUnserved) return []
  const text = `${SECRET_KEY_SETTING} is not set here, and without it \`leasehold work\` starts no dispatcher.`
  const command = `${SECRET_KEY_SETTING}='…' leasehold work --only ${WEBHOOKS}${schemaFlag(schema)}`
  return [reason('noSecretKey', text, { command })]
}

async function secrets(
  tx: Queryable,
  { id, maySeeSecret }: Endpoint,
  keys: SecretKeys,
  schema: string | undefined,
): Promise<Reason[]> {
  if (!maySeeSecret) return []
  const { rows } = await tx.query<{ secret: string; headers: Readonly<Record<string, string>> }>({
    text: `select secret, headers from ${endpointsOf(schema)} where id = $1::uuid`,
    values: [id],
  })
  try {
    for (const { secret, headers } of rows) {
      decrypt(keys, secret, id)
      decryptHeaders(keys, id, headers)
    }
    return []
  } catch (error) {
    const text = `The secret or the headers of its endpoint ${id} cannot be decrypted with the key that is set here, and a dispatcher with this key leaves the endpoint out: set ${SECRET_KEY_SETTING} here as the dispatchers have it, and if they lack its key as well, add that after a comma. ${sentence(messageOf(error))}`
    return [reason('secretUnreadable', text, { by: id })]
  }
}
