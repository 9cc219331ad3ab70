/** Creating, changing, listing and deleting the endpoints that webhooks are delivered to. */
import { audit } from '../../operations/audit.ts'
import { LeaseholdError } from '../../errors.ts'
import { counted } from '../../figures.ts'
import type { Database } from '../../postgres/database.ts'
import { quoteQualified } from '../../postgres/identifiers.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { refuseUnknownOptions, unknownNames } from '../../nearest.ts'
import { newEventIds } from '../../messages/event-ids.ts'
import { networkPolicy, type NetworkPolicyOptions } from '../network/policy.ts'
import type { SecretKind } from '../signing/secret.ts'
import { checkBy, checkChanges, checkNew, checkSecret, type Column, refuse } from './check.ts'
import { isWhole, describeValue } from '../../messages/validate.ts'
import {
  type By,
  DEFAULT_MAX_PER_TENANT,
  type Endpoint,
  ENDPOINT_COLUMNS,
  endpointNotFound,
  LARGEST_MAX_PER_TENANT,
  type EndpointChanges,
  type EndpointDetails,
  type NewEndpoint,
  type ShownSecret,
  type UpdatedEndpoint,
} from './endpoint.ts'
import {
  encryptHeaders,
  encryptSecret,
  type Headers,
  publicKeyIn,
  readSecretKeys,
  reencrypt,
  reencryptSecrets,
  requireSecretKeys,
} from './secrets.ts'

export interface EndpointsOptions {
  /** Where the migrations put the tables. Default `leasehold`. */
  readonly schema?: string | undefined
  /**
   * The key that secrets and headers are encrypted with: 32 bytes as base64 or hex. Several are separated by commas, the newest first.
   * Default: `LEASEHOLD_SECRET_KEY` of the environment.
   */
  readonly secretKey?: string | undefined
  /** Which URLs are permitted; give the dispatcher the same. Default: https to public addresses. */
  readonly network?: EndpointNetwork | undefined
  /** How many endpoints a tenant may have, because each costs a row for every event. Default 100. */
  readonly maxPerTenant?: number | undefined
}

export interface EndpointNetwork extends NetworkPolicyOptions {
  /** Whether the dispatcher sends through a proxy, which resolves the names. */
  readonly proxied?: boolean
}

export interface RotateOptions {
  /** How long deliveries are also signed with the old secret. Give 0 if it has leaked. Default 24 hours. */
  readonly keepOldForMs?: number | undefined
  /** The new secret. Default: one is generated. */
  readonly secret?: string | undefined
}

export interface EndpointFilter {
  readonly tenant?: string | undefined
  readonly enabled?: boolean | undefined
  /** Only endpoints that receive events of this type. */
  readonly eventType?: string | undefined
  /** Default 50, at most 1,000. */
  readonly limit?: number | undefined
  /** Where the page starts: `next` of the previous page. */
  readonly after?: string | undefined
}

export interface EndpointPage {
  /** In order of creation. */
  readonly endpoints: readonly Endpoint[]
  /** Give this as `after` to get the next page; null if this is the last. */
  readonly next: string | null
}

/** Every change and its entry in the audit are one transaction. A change that is refused changes nothing. */
export interface Endpoints {
  /** Returns the secret, which is shown only here. */
  create(endpoint: NewEndpoint, by: By): Promise<ShownSecret & { readonly endpoint: Endpoint }>
  get(id: string): Promise<EndpointDetails>
  list(filter?: EndpointFilter): Promise<EndpointPage>
  /**
   * A new url also closes the circuit, because the failures were those of the old one. If it has another scheme, host or
   * port, the headers are removed, unless they are given with it: they may be credentials of the old server.
   */
  update(id: string, changes: EndpointChanges, by: By): Promise<UpdatedEndpoint>
  /** Returns the new secret, which is shown only here. The previous one also signs for a while; older ones do not. */
  rotateSecret(
    id: string,
    by: By,
    options?: RotateOptions,
  ): Promise<ShownSecret & { readonly endpoint: Endpoint }>
  /**
   * Encrypts all secrets and headers with the newest key, and returns how many endpoints were changed. Call it after a new key was
   * put in front of the old ones; the old ones can then be removed.
   */
  reencryptSecrets(by: By): Promise<number>
  /** Also closes the circuit. */
  enable(id: string, by: By): Promise<Endpoint>
  /** New events are not sent to it, and waiting deliveries wait. The reason is shown with the endpoint. */
  disable(id: string, by: By): Promise<Endpoint>
  /** Its waiting deliveries fail within a minute or so. */
  delete(id: string, by: By): Promise<void>
}

const DAY_MS = 86_400_000
const MAX_PAGE_SIZE = 1_000
const UUID = /^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$/i
const MAX_ROTATION_WINDOW_MS = 90 * DAY_MS
const CIRCUIT_CLOSED = 'failures = 0, failing_since = null, open_until = null'

/** Manages the endpoints in this database. */
export function endpoints(db: Database, options: EndpointsOptions = {}): Endpoints {
  refuseUnknownOptions('endpoints', options, ['schema', 'secretKey', 'network', 'maxPerTenant'])
  const {
    schema = 'leasehold',
    maxPerTenant = DEFAULT_MAX_PER_TENANT,
    network: { proxied = false, ...network } = {},
  } = options
  const rules = { policy: networkPolicy(network), proxied }
  const keys = readSecretKeys(options.secretKey)
  const table = quoteQualified(schema, 'webhook_endpoints')
  if (!isWhole(maxPerTenant, 1, LARGEST_MAX_PER_TENANT)) {
    throw new LeaseholdError(
      'SETTING_INVALID',
      `The options of endpoints: maxPerTenant is ${describeValue(maxPerTenant)}, but must be a whole number from 1 to ${LARGEST_MAX_PER_TENANT}.`,
      { remedy: 'Correct the option.' },
    )
  }

  /** Endpoints of one tenant are created one after the other, so that two at once do not exceed the limit together. */
  async function requireRoom(tx: Queryable, tenant: string): Promise<void> {
    // Those without a tenant are the operator's own: no tenant can create one.
    if (tenant === '') return
    await tx.query({
      text: 'select pg_advisory_xact_lock(hashtextextended($1, 0))',
      values: [`leasehold endpoints ${schema} ${tenant}`],
    })
    const { rows } = await tx.query<{ count: number }>({
      text: `select count(*)::int as count from ${table} where tenant = $1`,
      values: [tenant],
    })
    const count = rows[0]?.count ?? 0
    if (count < maxPerTenant) return
    throw new LeaseholdError(
      'REQUEST_INVALID',
      `Nothing was changed: tenant ${JSON.stringify(tenant)} has ${counted(count, 'endpoint')}, and at most ${maxPerTenant} ${maxPerTenant === 1 ? 'is' : 'are'} allowed.`,
      {
        field: 'tenant',
        remedy:
          'Delete endpoints that are not used, or raise the setting webhookEndpointsPerTenant (--webhook-endpoints-per-tenant; in the library the option maxPerTenant).',
      },
    )
  }

  async function record(
    tx: Queryable,
    action: string,
    target: string,
    by: By,
    details: object,
  ): Promise<void> {
    const { principal, reason } = by
    await audit(tx, schema, {
      principal,
      action: `webhooks.endpoint.${action}`,
      target,
      details: { ...(reason === undefined ? {} : { reason }), ...details },
    })
  }

  /** Updates one endpoint. `$1` is its id. */
  async function change(
    tx: Queryable,
    id: string,
    set: string,
    values: readonly unknown[] = [],
  ): Promise<Endpoint> {
    await tx.query({
      text: `update ${table} set ${set}, updated_at = now() where id = $1`,
      values: [id, ...values],
    })
    return readEndpoint(tx, id)
  }

  /** Not by RETURNING, in which Citus accepts no subquery and not the time. */
  async function readEndpoint(tx: Queryable, id: string, lock = ''): Promise<Endpoint> {
    const { rows } = await tx.query<Endpoint>({
      text: `select ${ENDPOINT_COLUMNS} from ${table} as e where e.id = $1 ${lock}`,
      values: [id],
    })
    return found(rows[0], id)
  }

  /** What is stored: header values are encrypted, because they may be credentials. */
  function storedValues(id: string, columns: readonly Column[]): unknown[] {
    return columns.map(({ column, value }) =>
      // checkHeaders returns an object of texts.
      column === 'headers'
        ? JSON.stringify(encryptHeaders(requireSecretKeys(keys), id, value as Headers))
        : value,
    )
  }

  async function readWithSecret(tx: Queryable, id: string, lock: string): Promise<EndpointRow> {
    const { rows } = await tx.query<EndpointRow>({
      text: `select ${ENDPOINT_COLUMNS}, secret from ${table} as e where e.id = $1 ${lock}`,
      values: [id],
    })
    return found(rows[0], id)
  }

  return {
    async create(given, by) {
      const columns = checkNew(given, by, rules)
      const { signing = 'v1', tenant = '' } = given
      const id = newEventIds()()
      const { shown: secret, stored: encrypted } = encryptSecret(
        requireSecretKeys(keys),
        id,
        signing,
        given.secret,
      )
      const names = ['id', 'secret', ...columns.map(({ column }) => column)]
      const values = [id, encrypted, ...storedValues(id, columns)]
      return db.transaction(async (tx) => {
        await requireRoom(tx, tenant)
        await tx.query({
          text: `insert into ${table} (${names.join(', ')}) values (${values.map((_, i) => `$${i + 1}`).join(', ')})`,
          values,
        })
        const endpoint = await readEndpoint(tx, id)
        await record(tx, 'create', id, by, auditedColumns(columns))
        return { endpoint, ...secret }
      })
    },

    async get(id) {
      refuse(idProblem('id', id))
      // Without a key the secret tells nothing, and a reader may not read it.
      if (keys === undefined) {
        return { ...(await readEndpoint(db, id)), publicKey: null }
      }
      const { secret, ...endpoint } = await readWithSecret(db, id, '')
      return { ...endpoint, publicKey: publicKeyIn(keys, { ...endpoint, secret }) }
    },

    list: async (filter = {}) => listEndpoints(db, schema, filter),

    async update(id, changes, by) {
      refuse(idProblem('id', id))
      const columns = checkChanges(changes, by, rules)
      const sets = columns.map(({ column }, i) => `${column} = $${i + 2}`)
      // Ciphertexts are bound to the id as the database writes it.
      const values = storedValues(id.toLowerCase(), columns)
      const has = (name: string): boolean => columns.some(({ column }) => column === name)
      const set = [...sets, ...(has('url') ? [CIRCUIT_CLOSED] : [])].join(', ')
      return db.transaction(async (tx) => {
        const before = await readEndpoint(tx, id, 'for update')
        const endpoint = await change(tx, id, set, values)
        // A trigger removes them, so that it happens whoever changes the url.
        const headersRemoved = has('headers')
          ? []
          : Object.keys(before.headers)
              .filter((name) => !Object.hasOwn(endpoint.headers, name))
              .toSorted()
        await record(tx, 'update', id, by, {
          ...auditedColumns(columns),
          ...(headersRemoved.length === 0 ? {} : { headersRemoved }),
        })
        return { ...endpoint, headersRemoved }
      })
    },

    async rotateSecret(id, by, options = {}) {
      const { keepOldForMs = DAY_MS, secret: given } = options
      refuse([
        // A misspelt keepOldForMs would leave a leaked secret in use for a day.
        ...unknownNames(options, ['keepOldForMs', 'secret'], 'option'),
        ...idProblem('id', id),
        ...checkBy(by),
        ...(isWhole(keepOldForMs, 0, MAX_ROTATION_WINDOW_MS)
          ? []
          : [
              `keepOldForMs is ${describeValue(keepOldForMs)}, but must be a whole number from 0 to ${MAX_ROTATION_WINDOW_MS}`,
            ]),
      ])
      const required = requireSecretKeys(keys)
      return db.transaction(async (tx) => {
        // Ciphertexts are bound to the id as the database writes it, which may differ in case from the given one.
        const { id: stored, signing, secret: old } = await readWithSecret(tx, id, 'for update')
        if (given !== undefined) refuse(checkSecret(given, signing))
        const { shown: secret, stored: encrypted } = encryptSecret(required, stored, signing, given)
        const previous = keepOldForMs === 0 ? null : reencrypt(required, stored, old)
        const endpoint = await change(
          tx,
          id,
          `secret = $2, previous_secret = $3,
  previous_secret_until = (select case when $3::text is not null then now() + $4::float8 * interval '1 millisecond' end)`,
          [encrypted, previous, keepOldForMs],
        )
        await record(tx, 'rotate', id, by, { keepOldForMs })
        return { endpoint, ...secret }
      })
    },

    async reencryptSecrets(by) {
      refuse(checkBy(by))
      return reencryptSecrets(db, schema, requireSecretKeys(keys), by)
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
        const set =
          'enabled = false, disabled_reason = $2, disabled_at = (select coalesce(disabled_at, now()))'
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
  throw endpointNotFound(id)
}

/** What the audit records: only the names of headers, because their values may be credentials. */
function auditedColumns(columns: readonly Column[]): Record<string, unknown> {
  return Object.fromEntries(
    columns.map(({ column, value }) => [column, column === 'headers' ? Object.keys(Object(value)) : value]),
  )
}

async function listEndpoints(db: Queryable, schema: string, filter: EndpointFilter): Promise<EndpointPage> {
  const { tenant, enabled, eventType, limit = 50, after } = filter
  refuse([
    ...textProblem('tenant', tenant),
    ...textProblem('eventType', eventType),
    ...(enabled === undefined || typeof enabled === 'boolean'
      ? []
      : [`enabled is ${describeValue(enabled)}, but must be true or false`]),
    ...(isWhole(limit, 1, MAX_PAGE_SIZE)
      ? []
      : [`limit is ${describeValue(limit)}, but must be a whole number from 1 to ${MAX_PAGE_SIZE}`]),
    ...(after === undefined ? [] : idProblem('after', after)),
  ])
  const values: unknown[] = []
  const value = (given: unknown, type: string): string => `$${values.push(given)}::${type}`
  const conditions = [
    ...(tenant === undefined ? [] : [`tenant = ${value(tenant, 'text')}`]),
    ...(enabled === undefined ? [] : [`enabled = ${value(enabled, 'boolean')}`]),
    ...(eventType === undefined
      ? []
      : [`${quoteQualified(schema, 'webhook_wanted')}(event_types, ${value(eventType, 'text')})`]),
    ...(after === undefined ? [] : [`e.id > ${value(after, 'uuid')}`]),
  ]
  // Ordered by e.id, the uuid: a plain "id" would be the selected text. One row more than the page shows whether there
  // is another page.
  const { rows } = await db.query<Endpoint>({
    text: `select ${ENDPOINT_COLUMNS} from ${quoteQualified(schema, 'webhook_endpoints')} as e
${conditions.length === 0 ? '' : `where ${conditions.join(' and ')}`} order by e.id limit ${value(limit + 1, 'int')}`,
    values,
  })
  const endpoints = rows.slice(0, limit)
  return { endpoints, next: rows.length > limit ? (endpoints.at(-1)?.id ?? null) : null }
}

function idProblem(name: string, value: unknown): string[] {
  return typeof value === 'string' && UUID.test(value)
    ? []
    : [`${name} is ${describeValue(value)}, but must be the id of an endpoint, a uuid`]
}

/** PostgreSQL cannot store a text with a NUL character; this gives a better message than its own. */
function textProblem(name: string, value: unknown): string[] {
  if (value === undefined || (typeof value === 'string' && !value.includes('\0') && value.isWellFormed()))
    return []
  return [`${name} is ${describeValue(value)}, but must be a text, or left out`]
}
