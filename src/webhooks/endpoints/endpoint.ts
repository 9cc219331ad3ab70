import type { SecretKind } from '../signing/index.ts'

/** An endpoint as it is wanted. What is left out has its default. */
export interface NewEndpoint {
  /** Where deliveries are POSTed to. */
  readonly url: string
  /** Whose it is: it gets the events of this tenant only. Default: of nobody in particular. */
  readonly tenant?: string | undefined
  /** For people. */
  readonly description?: string | undefined
  /** `order.paid` exactly, `order.*` all that begin with `order.`, `*` all. Default: all. */
  readonly eventTypes?: readonly string[] | undefined
  /** Sent with every delivery, for example an authorization. */
  readonly headers?: Readonly<Record<string, string>> | undefined
  /** The most deliveries begun in a second, by all dispatchers together. Default null: no limit. */
  readonly ratePerSecond?: number | null | undefined
  /** The most deliveries on their way at once, by all dispatchers together. Default 10. */
  readonly concurrency?: number | undefined
  /** How long a delivery may take. Default 15,000. */
  readonly timeoutMs?: number | undefined
  /** Events of one ordering key one at a time, in the order in which they were sent. Default false. */
  readonly ordered?: boolean | undefined
  /** `v1`: HMAC-SHA256 with a shared secret; `v1a`: ed25519. Default `v1`. */
  readonly signing?: SecretKind | undefined
  /** `whsec_…` for v1, `whsk_…` for v1a. Default: a new one. */
  readonly secret?: string | undefined
}

/** What can be changed later. Another secret comes by `rotateSecret`. */
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
  /** None: all. */
  readonly eventTypes: readonly string[]
  readonly headers: Readonly<Record<string, string>>
  readonly ratePerSecond: number | null
  readonly concurrency: number
  readonly timeoutMs: number
  readonly ordered: boolean
  readonly signing: SecretKind
  readonly enabled: boolean
  readonly disabledReason: string | null
  readonly disabledAt: Date | null
  /** How many attempts had failed in a row when the circuit was last opened or closed. */
  readonly failures: number
  /** Since when the circuit is open; null while it is closed. */
  readonly failingSince: Date | null
  /** Nothing is attempted before; then one delivery, as a probe. */
  readonly openUntil: Date | null
  /** Until when deliveries are signed with the secret before the last rotation as well. */
  readonly previousSecretUntil: Date | null
  readonly createdAt: Date
  readonly updatedAt: Date
}

export interface EndpointDetails extends Endpoint {
  /** `whpk_…`, what receivers of v1a verify with. Null for v1, and where no key is given to open the secret with. */
  readonly publicKey: string | null
}

/** Shown once, and never again: it is stored encrypted. */
export interface ShownSecret {
  readonly secret: string
  /** For v1a: what to give to the receiver, instead of the secret. */
  readonly publicKey: string | null
}

/** Who changes something, and why: both are kept in the audit. */
export interface By {
  readonly principal: string
  readonly reason?: string | undefined
}

/** The columns of an `Endpoint`, under its names. The secrets are not among them. */
export const ENDPOINT_COLUMNS = `id::text as id, tenant, url, description, event_types as "eventTypes", headers,
  rate_per_second as "ratePerSecond", concurrency, timeout_ms as "timeoutMs", ordered, signing, enabled,
  disabled_reason as "disabledReason", disabled_at as "disabledAt", failures, failing_since as "failingSince",
  open_until as "openUntil", case when previous_secret_until > now() then previous_secret_until end as "previousSecretUntil",
  created_at as "createdAt", updated_at as "updatedAt"`
