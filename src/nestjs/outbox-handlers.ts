/** Handlers of outbox events as methods of providers: the decorator, and how a module finds those that it runs. */
import { SetMetadata } from '@nestjs/common'
import { type DiscoveryService, MetadataScanner, Reflector } from '@nestjs/core'
import { LeaseholdError } from '../errors.ts'
import { suggestion } from '../nearest.ts'
import type { OutboxEvent } from '../outbox/event.ts'
import type { PublishContext } from '../outbox/publisher.ts'
import type { EventHandler } from '../outbox/publishers/handlers.ts'
import { describeValue, isText } from '../rules.ts'
import type { Outcome } from '../worker/completion/outcome.ts'

export interface OutboxHandlerOptions {
  /** The name of the `LeaseholdModule` whose events are meant, where an application has several. */
  readonly module?: string
}

interface DeclaredHandler extends OutboxHandlerOptions {
  readonly type: string
}

/** A method that handles events of a type. `never` is what a payload of any type accepts. */
type HandlerMethod<Type extends string> = (
  event: OutboxEvent<Type, never>,
  context: PublishContext,
) => Promise<Outcome | void> | Outcome | void

const DECLARED = 'leasehold:outbox-handlers'

/**
 * The method handles the events of this type. It gets the event and its context, and what it returns or throws decides
 * what becomes of the event, as with `leasehold/publishers/handlers`. A method may handle several types.
 *
 * ```ts
 * class Shipping {
 *   @OutboxHandler('order.paid')
 *   async ship({ payload }: OutboxEvent<'order.paid', { order: string }>) {
 *     await this.carrier.collect(payload.order)
 *   }
 * }
 * ```
 */
export function OutboxHandler<const Type extends string>(type: Type, options: OutboxHandlerOptions = {}) {
  return <Method extends HandlerMethod<Type>>(
    target: object,
    name: string | symbol,
    descriptor: TypedPropertyDescriptor<Method>,
  ): void => {
    const given: unknown = type
    if (!isText(given)) {
      throw invalid(
        `@OutboxHandler of ${target.constructor.name}.${String(name)} was given ${describeValue(given)}, but needs the type of the events.`,
        "Write for example @OutboxHandler('order.paid').",
      )
    }
    // Nest finds neither of them, so it would never be called.
    const kind =
      typeof target === 'function'
        ? 'a static method'
        : typeof name === 'symbol'
          ? 'a method that is named by a symbol'
          : undefined
    if (kind !== undefined) {
      const of = typeof target === 'function' ? target.name : target.constructor.name
      throw invalid(
        `@OutboxHandler('${type}') is on ${of}.${String(name)}, ${kind}, which would never be called.`,
        'Make it a method of the instance, with a name that is a text.',
      )
    }
    const declared = declaredBy(descriptor.value)
    SetMetadata(DECLARED, [...declared, { ...options, type }])(target, name, descriptor)
  }
}

function declaredBy(method: unknown): readonly DeclaredHandler[] {
  if (typeof method !== 'function') return []
  // Only the decorator above writes it.
  return new Reflector().get<readonly DeclaredHandler[] | undefined>(DECLARED, method as () => void) ?? []
}

export interface FoundHandler {
  readonly type: string
  /** Where it is, for messages. */
  readonly place: string
  readonly handle: EventHandler
}

/** The part of Nest's InstanceWrapper that is used here. */
type Provider = ReturnType<DiscoveryService['getProviders']>[number]

/** The name of a `LeaseholdModule`; undefined: it has none. */
type ModuleName = string | undefined

export interface HandlerSearch {
  readonly discovery: DiscoveryService
  /** Whose handlers are wanted. */
  readonly module: ModuleName
  /** All of the application, with the one above. */
  readonly modules: readonly ModuleName[]
  /** The types that the outbox has schemas for; undefined: it has none. */
  readonly knownTypes: readonly string[] | undefined
}

/**
 * The handlers of the module with this name, on all providers and controllers of the application. Refuses two for the same
 * type, one that can have no single instance, one for a type that `knownTypes` does not have, and one of any module that the
 * application does not have, because nothing would ever run it.
 */
export function findHandlers({
  discovery,
  module,
  modules,
  knownTypes,
}: HandlerSearch): readonly FoundHandler[] {
  const providers = [...discovery.getProviders(), ...discovery.getControllers()]
  refuseUnknownModules(providers, modules)
  // An alias (useExisting) is another provider of the same instance.
  const seen = new Set<unknown>()
  const found = providers.flatMap((provider) => {
    const handlers = handlersOf(provider, module)
    if (handlers.length === 0 || seen.has(provider.instance)) return []
    seen.add(provider.instance)
    return handlers
  })
  const problems = [
    ...duplicates(found),
    ...found
      .filter(({ type }) => knownTypes !== undefined && !knownTypes.includes(type))
      .map(
        ({ type, place }) =>
          `${place} handles '${type}', which \`outbox.events\` does not have (${suggestion(type, knownTypes ?? [], 'types')})`,
      ),
  ]
  if (problems.length > 0) throw invalid(`The handlers of outbox events: ${problems.join('; ')}.`)
  return found
}

function refuseUnknownModules(providers: readonly Provider[], modules: readonly ModuleName[]): void {
  const unknown = providers
    .flatMap(declarationsOf)
    .filter(({ module }) => !modules.includes(module))
    .map(
      ({ module, place }) =>
        `${place} is for the module ${quoted(module)}, which the application does not have`,
    )
  if (unknown.length === 0) return
  const known = modules.map(quoted).join(', ')
  throw invalid(
    // An alias (useExisting) has the same handlers once more.
    `The handlers of outbox events: ${[...new Set(unknown)].join('; ')}. The application has the LeaseholdModule ${known}.`,
    "Give the `name` of one of them, as in @OutboxHandler('order.paid', { module: 'billing' }), or import the module.",
  )
}

function quoted(module: ModuleName): string {
  return module === undefined ? 'without a name' : `'${module}'`
}

function handlersOf(provider: Provider, module: ModuleName): FoundHandler[] {
  return declarationsOf(provider)
    .filter((declared) => declared.module === module)
    .map(({ type, place, method }) => {
      if (!isSingleton(provider)) throw notSingleton(place)
      return { type, place, handle: (event, context) => call(provider.instance, method, event, context) }
    })
}

interface Declaration {
  readonly type: string
  readonly module: ModuleName
  readonly method: string
  /** Where it is, for messages. */
  readonly place: string
}

/** What the decorators on the methods of a provider say, for whichever module. */
function declarationsOf(provider: Provider): Declaration[] {
  const prototype: unknown = isSingleton(provider)
    ? prototypeOf(provider.instance)
    : (provider.metatype as { readonly prototype?: unknown } | null)?.prototype
  if (typeof prototype !== 'object' || prototype === null) return []
  const of = provider.host?.metatype.name ?? 'an unknown module'
  return new MetadataScanner().getAllMethodNames(prototype).flatMap((method) => {
    const place = `${prototype.constructor.name}.${method} (in ${of})`
    return declaredBy(Reflect.get(prototype, method)).map(({ type, module }) => ({
      type,
      module,
      method,
      place,
    }))
  })
}

function isSingleton(provider: Provider): boolean {
  return provider.isDependencyTreeStatic() && !provider.isTransient
}

function prototypeOf(instance: unknown): unknown {
  return typeof instance === 'object' && instance !== null ? Object.getPrototypeOf(instance) : undefined
}

/** Looked up for each event: a test, or a tracer, may have replaced the method. */
function call(
  instance: unknown,
  method: string,
  ...args: Parameters<EventHandler>
): ReturnType<EventHandler> {
  // The method was found on the prototype of the instance, and its decorator has checked its type.
  return (instance as Readonly<Record<string, EventHandler>>)[method]?.(...args)
}

function duplicates(found: readonly FoundHandler[]): string[] {
  const byType = new Map<string, string[]>()
  for (const { type, place } of found) byType.set(type, [...(byType.get(type) ?? []), place])
  return [...byType]
    .filter(([, places]) => places.length > 1)
    .map(
      ([type, places]) =>
        `'${type}' is handled by ${places.join(' and by ')}, but an event has one handler: call the other from it, or write an event for each`,
    )
}

function notSingleton(place: string): LeaseholdError {
  return invalid(
    `${place} handles outbox events, but its provider is request-scoped or transient, or depends on one that is.`,
    'There is no request when an event is handled: make the provider a singleton, the default scope.',
  )
}

function invalid(message: string, remedy?: string): LeaseholdError {
  return new LeaseholdError('SETTING_INVALID', message, remedy === undefined ? {} : { remedy })
}
