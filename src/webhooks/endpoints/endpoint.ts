/** What an endpoint is: as it is created, changed and shown. */
import { LeaseholdError } from '../../errors.ts'
import type { SecretKind } from '../signing/secret.ts'

/** An endpoint to be created. Fields that are left out have their default. */
export interface NewEndpoint {
  /** Where deliveries are POSTed to. */
  readonly url: string
  /** Whose it is: it receives only the events of this tenant. Default: the empty text, the default tenant. */
  readonly tenant?: string | undefined
  /** For people. */
  readonly description?: string | undefined
  /** `order.paid` exactly, `order.*` all types that begin with `order.`, `*` all types. Default: all. */
  readonly eventTypes?: readonly string[] | undefined
  /** Sent with every delivery, for example an authorization. Stored encrypted. */
  readonly headers?: Readonly<Record<string, string>> | undefined
  /** How many deliveries all dispatchers together start per second at most. Default null: no limit. */
  readonly ratePerSecond?: number | null | undefined
  /** How many deliveries all dispatchers together have in flight at most. Default 10. */
  readonly concurrency?: number | undefined
  /** How long one attempt may take. Default 15,000. */
  readonly timeoutMs?: number | undefined
  /** Whether events of one ordering key are delivered one at a time, in the order sent. Default false. */
  readonly ordered?: boolean | undefined
  /** `v1`: HMAC-SHA256 with a shared secret; `v1a`: ed25519. Default `v1`. */
  readonly signing?: SecretKind | undefined
  /** `whsec_…` for v1, `whsk_…` for v1a. Default: a new one. */
  readonly secret?: string | undefined
}

/** The fields that can be changed later. `rotateSecret` replaces the secret. */
export type EndpointChanges = {
  readonly [Field in Exclude<keyof NewEndpoint, 'tenant' | 'signing' | 'secret'>]?:
    | NewEndpoint[Field]
    | undefined
}

export interface Endpoint {
  readonly id: string
  readonly tenant: string
  readonly url: string
  readonly description: string
  /** Empty: all types. */
  readonly eventTypes: readonly string[]
  /** Their names; every value is `HIDDEN_VALUE`, because it may be a credential. */
  readonly headers: Readonly<Record<string, string>>
  readonly ratePerSecond: number | null
  readonly concurrency: number
  readonly timeoutMs: number
  readonly ordered: boolean
  readonly signing: SecretKind
  readonly enabled: boolean
  readonly disabledReason: string | null
  readonly disabledAt: Date | null
  /** How many attempts in a row had failed when the circuit last opened or closed. */
  readonly failures: number
  /** When the circuit opened; null while it is closed. */
  readonly failingSince: Date | null
  /** No delivery is attempted before this time; then one is attempted as a probe (half-open). */
  readonly openUntil: Date | null
  /** Until when deliveries are also signed with the secret before the last rotation. */
  readonly previousSecretUntil: Date | null
  readonly createdAt: Date
  readonly updatedAt: Date
}

export interface UpdatedEndpoint extends Endpoint {
  /** The names of the headers that were removed, because the new url has another scheme, host or port. */
  readonly headersRemoved: readonly string[]
}

export interface EndpointDetails extends Endpoint {
  /** `whpk_…`, the key that receivers of v1a verify with. Null for v1, and without a key to decrypt the secret. */
  readonly publicKey: string | null
}

/** A secret is shown once, when it is made; it is stored encrypted. */
export interface ShownSecret {
  readonly secret: string
  /** For v1a: the key to give to the receiver instead of the secret. */
  readonly publicKey: string | null
}

/** Who changes something, and why. Both are recorded in the audit. */
export interface By {
  readonly principal: string
  readonly reason?: string | undefined
}

/** How many endpoints a tenant may have by default: each gets a row for every event. */
export const DEFAULT_MAX_PER_TENANT = 100
export const LARGEST_MAX_PER_TENANT = 1_000_000

/** What is shown in place of the value of a header. */
export const HIDDEN_VALUE = '***'

/** The columns of an `Endpoint`, under its field names, without the secrets and the values of headers. */
export const ENDPOINT_COLUMNS = `id::text as id, tenant, url, description, event_types as "eventTypes",
  (select coalesce(jsonb_object_agg(name, '${HIDDEN_VALUE}'), '{}') from jsonb_object_keys(headers) as name) as headers,
  rate_per_second as "ratePerSecond", concurrency, timeout_ms as "timeoutMs", ordered, signing, enabled,
  disabled_reason as "disabledReason", disabled_at as "disabledAt", failures, failing_since as "failingSince",
  open_until as "openUntil", case when previous_secret_until > now() then previous_secret_until end as "previousSecretUntil",
  created_at as "createdAt", updated_at as "updatedAt"`

export function endpointNotFound(id: string): LeaseholdError {
  return new LeaseholdError('ENDPOINT_NOT_FOUND', `No endpoint has the id ${id}.`, {
    remedy: '`leasehold webhooks endpoints list` lists the endpoints.',
  })
}
