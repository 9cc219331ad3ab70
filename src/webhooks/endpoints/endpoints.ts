import { audit } from '../../admin/audit.ts'
import { LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { newEventIds } from '../../messages/event-ids.ts'
import { isWhole, shown } from '../../messages/validate-fields.ts'
import { networkPolicy, type NetworkPolicyOptions } from '../network/index.ts'
import type { SecretKind } from '../signing/index.ts'
import { checkBy, checkChanges, checkNew, checkSecret, refuse } from './check.ts'
import { encryptAnew } from './encrypt-anew.ts'
import {
  type By,
  type Endpoint,
  ENDPOINT_COLUMNS,
  type EndpointChanges,
  type EndpointDetails,
  type NewEndpoint,
  type ShownSecret,
} from './endpoint.ts'
import { type EndpointFilter, type EndpointPage, idProblem, listEndpoints } from './list.ts'
import { keepSecret, kept, keysOf, neededKeys, publicKeyIn } from './secrets.ts'

export interface EndpointsOptions {
  /** Where the migrations put the tables. Default `leasehold`. */
  readonly schema?: string | undefined
  /**
   * What secrets are encrypted with: 32 bytes as base64 or hex; several, separated by commas, where the first encrypts.
   * Default: `LEASEHOLD_SECRET_KEY` of the environment.
   */
  readonly secretKey?: string | undefined
  /** Where endpoints may lead; the same that the dispatcher is given. Default: public addresses, by https. */
  readonly network?: EndpointNetwork | undefined
}

export interface EndpointNetwork extends NetworkPolicyOptions {
  /** The dispatcher sends through a proxy, which resolves the names. */
  readonly proxied?: boolean
}

export interface RotateOptions {
  /** How long deliveries are signed with the old secret as well. 0: it has leaked. Default 24 hours. */
  readonly keepOldForMs?: number | undefined
  /** The new secret. Default: one is made. */
  readonly secret?: string | undefined
}

/** Every change is one transaction with its entry in the audit; a refused one has changed nothing. */
export interface Endpoints {
  /** The secret is in the answer, and in no other. */
  create(endpoint: NewEndpoint, by: By): Promise<ShownSecret & { readonly endpoint: Endpoint }>
  get(id: string): Promise<EndpointDetails>
  list(filter?: EndpointFilter): Promise<EndpointPage>
  /** A new url also closes the circuit: what failed was the old one. */
  update(id: string, changes: EndpointChanges, by: By): Promise<Endpoint>
  /** The new secret is in the answer, and in no other. The one before signs along for a while; any older one is gone. */
  rotateSecret(
    id: string,
    by: By,
    options?: RotateOptions,
  ): Promise<ShownSecret & { readonly endpoint: Endpoint }>
  /**
   * After a new key was put in front of the old ones: encrypts what is not under it yet, and says of how many endpoints.
   * Then the old ones can go.
   */
  encryptAnew(by: By): Promise<number>
  /** Closes the circuit too. */
  enable(id: string, by: By): Promise<Endpoint>
  /** No more events are sent to it, and nothing is delivered while it is disabled. The reason is shown with it. */
  disable(id: string, by: By): Promise<Endpoint>
  /** Its deliveries are given up by the dispatchers' upkeep. */
  delete(id: string, by: By): Promise<void>
}

const DAY_MS = 86_400_000
const LONGEST_WINDOW_MS = 90 * DAY_MS
const CIRCUIT_CLOSED = 'failures = 0, failing_since = null, open_until = null'

/** The endpoints of webhooks, for those who manage them. */
export function endpoints(db: Database, options: EndpointsOptions = {}): Endpoints {
  const { schema = 'leasehold', network: { proxied = false, ...network } = {} } = options
  const rules = { policy: networkPolicy(network), proxied }
  const keys = keysOf(options.secretKey)
  const table = quoteQualified(schema, 'webhook_endpoints')

  async function record(tx: Queryable, what: string, target: string, by: By, details: object): Promise<void> {
    const { principal, reason } = by
    await audit(tx, schema, {
      principal,
      action: `webhooks.endpoint.${what}`,
      target,
      details: { ...(reason === undefined ? {} : { reason }), ...details },
    })
  }

  /** One UPDATE of one endpoint. `$1` is its id. */
  async function change(
    tx: Queryable,
    id: string,
    set: string,
    values: readonly unknown[] = [],
  ): Promise<Endpoint> {
    const { rows } = await tx.query<Endpoint>({
      text: `update ${table} set ${set}, updated_at = now() where id = $1 returning ${ENDPOINT_COLUMNS}`,
      values: [id, ...values],
    })
    return found(rows[0], id)
  }

  async function stored(tx: Queryable, id: string, lock: string): Promise<EndpointRow> {
    const { rows } = await tx.query<EndpointRow>({
      text: `select ${ENDPOINT_COLUMNS}, secret from ${table} as e where e.id = $1 ${lock}`,
      values: [id],
    })
    return found(rows[0], id)
  }

  return {
    async create(given, by) {
      const columns = checkNew(given, by, rules)
      const { signing = 'v1' } = given
      const id = newEventIds()()
      const { shown: secret, stored: encrypted } = keepSecret(neededKeys(keys), id, signing, given.secret)
      const names = ['id', 'secret', ...columns.map(({ column }) => column)]
      const values = [id, encrypted, ...columns.map(({ value }) => value)]
      return db.transaction(async (tx) => {
        const { rows } = await tx.query<Endpoint>({
          text: `insert into ${table} (${names.join(', ')}) values (${values.map((_, i) => `$${i + 1}`).join(', ')})
returning ${ENDPOINT_COLUMNS}`,
          values,
        })
        const endpoint = found(rows[0], id)
        await record(tx, 'create', id, by, told(columns))
        return { endpoint, ...secret }
      })
    },

    async get(id) {
      refuse(idProblem('id', id))
      const { secret, ...endpoint } = await stored(db, id, '')
      return { ...endpoint, publicKey: publicKeyIn(keys, { ...endpoint, secret }) }
    },

    list: async (filter = {}) => listEndpoints(db, schema, filter),

    async update(id, changes, by) {
      refuse(idProblem('id', id))
      const columns = checkChanges(changes, by, rules)
      const sets = columns.map(({ column }, i) => `${column} = $${i + 2}`)
      const isMoved = columns.some(({ column }) => column === 'url')
      return db.transaction(async (tx) => {
        const endpoint = await change(
          tx,
          id,
          [...sets, ...(isMoved ? [CIRCUIT_CLOSED] : [])].join(', '),
          columns.map(({ value }) => value),
        )
        await record(tx, 'update', id, by, told(columns))
        return endpoint
      })
    },

    async rotateSecret(id, by, { keepOldForMs = DAY_MS, secret: given } = {}) {
      refuse([
        ...idProblem('id', id),
        ...checkBy(by),
        ...(isWhole(keepOldForMs, 0, LONGEST_WINDOW_MS)
          ? []
          : [
              `keepOldForMs is ${shown(keepOldForMs)}, but must be a whole number from 0 to ${LONGEST_WINDOW_MS}`,
            ]),
      ])
      const needed = neededKeys(keys)
      return db.transaction(async (tx) => {
        const { signing, secret: old } = await stored(tx, id, 'for update')
        if (given !== undefined) refuse(checkSecret(given, signing))
        const { shown: secret, stored: encrypted } = keepSecret(needed, id, signing, given)
        const previous = keepOldForMs === 0 ? null : kept(needed, id, old)
        const endpoint = await change(
          tx,
          id,
          `secret = $2, previous_secret = $3,
  previous_secret_until = case when $3::text is not null then now() + $4::float8 * interval '1 millisecond' end`,
          [encrypted, previous, keepOldForMs],
        )
        await record(tx, 'rotate', id, by, { keepOldForMs })
        return { endpoint, ...secret }
      })
    },

    async encryptAnew(by) {
      refuse(checkBy(by))
      return encryptAnew(db, schema, neededKeys(keys), by)
    },

    async enable(id, by) {
      refuse([...idProblem('id', id), ...checkBy(by)])
      return db.transaction(async (tx) => {
        const set = `enabled = true, disabled_reason = null, disabled_at = null, ${CIRCUIT_CLOSED}`
        const endpoint = await change(tx, id, set)
        await record(tx, 'enable', id, by, {})
        return endpoint
      })
    },

    async disable(id, by) {
      refuse([...idProblem('id', id), ...checkBy(by)])
      return db.transaction(async (tx) => {
        const set = 'enabled = false, disabled_reason = $2, disabled_at = coalesce(disabled_at, now())'
        const endpoint = await change(tx, id, set, [by.reason ?? null])
        await record(tx, 'disable', id, by, {})
        return endpoint
      })
    },

    async delete(id, by) {
      refuse([...idProblem('id', id), ...checkBy(by)])
      await db.transaction(async (tx) => {
        const { rows } = await tx.query<Pick<Endpoint, 'tenant' | 'url' | 'description'>>({
          text: `delete from ${table} where id = $1 returning tenant, url, description`,
          values: [id],
        })
        await record(tx, 'delete', id, by, found(rows[0], id))
      })
    },
  }
}

type EndpointRow = Endpoint & { readonly secret: string; readonly signing: SecretKind }

function found<Row>(row: Row | undefined, id: string): Row {
  if (row !== undefined) return row
  throw new LeaseholdError('ENDPOINT_NOT_FOUND', `No endpoint has the id ${id}.`, {
    remedy: '`leasehold webhooks endpoints list` shows those that there are.',
  })
}

/** What the audit keeps: of headers their names, because values may be credentials. */
function told(
  columns: readonly { readonly column: string; readonly value: unknown }[],
): Record<string, unknown> {
  return Object.fromEntries(
    columns.map(({ column, value }) => [
      column,
      column === 'headers' && typeof value === 'string' ? Object.keys(JSON.parse(value) as object) : value,
    ]),
  )
}
