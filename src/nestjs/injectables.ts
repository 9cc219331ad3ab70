/** What an application can inject, and under which token. */
import { LeaseholdError } from '../errors.ts'
import type { AnyPayloads, EventPayloads } from '../messages/schemas.ts'
import type { Outbox as CreatedOutbox } from '../outbox/enqueue/enqueue.ts'
import type { Webhooks as CreatedWebhooks } from '../webhooks/send/send.ts'
import { LeaseholdHealthIndicator } from './health.ts'
import { LeaseholdRuntime } from './runtime.ts'

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

/** Written out, because a minifier may change the names of classes, and give one name to two of them. */
const TOKEN_TEXTS: ReadonlyMap<InjectableClass, string> = new Map<InjectableClass, string>([
  [Outbox, 'Outbox'],
  [Webhooks, 'Webhooks'],
  [LeaseholdRuntime, 'LeaseholdRuntime'],
  [LeaseholdHealthIndicator, 'LeaseholdHealthIndicator'],
])

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
  const text = TOKEN_TEXTS.get(of)
  if (text === undefined) {
    throw new LeaseholdError(
      'SETTING_INVALID',
      `leaseholdToken was given ${of.name || 'a class without a name'}, which LeaseholdModule does not provide.`,
      { remedy: `Give one of ${[...TOKEN_TEXTS.values()].join(', ')}.` },
    )
  }
  return name === undefined ? of : `Leasehold:${name}:${text}`
}
