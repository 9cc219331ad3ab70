/** What an application can inject, and under which token. */
import type { AnyPayloads, EventPayloads } from '../messages/schemas.ts'
import type { Outbox as CreatedOutbox } from '../outbox/enqueue/enqueue.ts'
import type { Webhooks as CreatedWebhooks } from '../webhooks/send/send.ts'

/**
 * The producer's side of the outbox, as `createOutbox` makes it.
 *
 * ```ts
 * class Orders {
 *   constructor(private readonly outbox: Outbox<ShopEvents>) {}
 * }
 * ```
 */
export type Outbox<Payloads extends EventPayloads = AnyPayloads> = CreatedOutbox<Payloads>

/** The token of the outbox. It has the name of the type, because Nest injects by what a parameter's type is at run time. */
export const Outbox: abstract new () => CreatedOutbox = class Outbox implements CreatedOutbox {
  declare readonly enqueue: CreatedOutbox['enqueue']
}

/** The producer's side of webhooks, as `createWebhooks` makes it; injected like `Outbox`. */
export type Webhooks<Payloads extends EventPayloads = AnyPayloads> = CreatedWebhooks<Payloads>

/** The token of webhooks. */
export const Webhooks: abstract new () => CreatedWebhooks = class Webhooks implements CreatedWebhooks {
  declare readonly send: CreatedWebhooks['send']
}

/** A class that can be injected. Those of the module without a name are injected by themselves. */
export type InjectableClass = abstract new (...args: never[]) => object

/**
 * The token of `Outbox`, `Webhooks`, `LeaseholdRuntime` or `LeaseholdHealthIndicator`, of the module with this name. Without a name it is
 * the class itself.
 *
 * ```ts
 * class Invoices {
 *   constructor(@Inject(leaseholdToken(Outbox, 'billing')) private readonly outbox: Outbox<BillingEvents>) {}
 * }
 * ```
 */
export function leaseholdToken(of: InjectableClass, name?: string): InjectableClass | string {
  return name === undefined ? of : `Leasehold:${name}:${of.name}`
}
