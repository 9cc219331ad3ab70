/** The module: makes the injectables, starts the workers when the application has started, and stops them with it. */
import {
  type DynamicModule,
  type FactoryProvider,
  Inject,
  Module,
  type ModuleMetadata,
  type Provider,
} from '@nestjs/common'
import { DiscoveryModule, DiscoveryService, ModuleRef } from '@nestjs/core'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import { createOutbox } from '../outbox/enqueue/enqueue.ts'
import { createWebhooks } from '../webhooks/send/send.ts'
import { LeaseholdHealthIndicator } from './health.ts'
import { leaseholdToken, Outbox, Webhooks } from './injectables.ts'
import { checkedOptions, type LeaseholdModuleOptions, LeaseholdRuntime } from './runtime.ts'

/** Where an application has several modules: each is injected, and given handlers, under its name. */
export interface NamedModule {
  readonly name?: string
}

export interface LeaseholdModuleAsyncOptions extends NamedModule {
  /** Modules whose providers `useFactory` is given. */
  readonly imports?: NonNullable<ModuleMetadata['imports']>
  /** The tokens of what `useFactory` is given. */
  readonly inject?: NonNullable<FactoryProvider['inject']>
  // `never` is what the parameters of every function accept.
  readonly useFactory: (...injected: never[]) => LeaseholdModuleOptions | Promise<LeaseholdModuleOptions>
}

const ASYNC_OPTION_NAMES = namesOf<LeaseholdModuleAsyncOptions>({
  name: true,
  imports: true,
  inject: true,
  useFactory: true,
})

const OPTIONS = 'Leasehold:options'
const OWN_RUNTIME = 'Leasehold:runtime'

/**
 * Leasehold in a Nest application.
 *
 * ```ts
 * @Module({ imports: [LeaseholdModule.forRoot({ databaseUrl })], providers: [OrderHandlers] })
 * class AppModule {}
 * ```
 */
export class LeaseholdModule {
  readonly #runtime: LeaseholdRuntime

  constructor(runtime: LeaseholdRuntime) {
    this.#runtime = runtime
  }

  async onApplicationBootstrap(): Promise<void> {
    await this.#runtime.start()
  }

  /**
   * The first of the hooks of a shutdown. Nest calls that of the root module and its providers even earlier: no hook comes
   * before those, so what they close must not be needed by handlers.
   */
  async onModuleDestroy(): Promise<void> {
    await this.#runtime.stop()
  }

  static forRoot({ name, ...options }: LeaseholdModuleOptions & NamedModule): DynamicModule {
    return build(name, { useFactory: () => options })
  }

  /** As `forRoot`, with options that are made of other providers. */
  static forRootAsync({ name, ...options }: LeaseholdModuleAsyncOptions): DynamicModule {
    refuseUnknownOptions('LeaseholdModule.forRootAsync', options, ASYNC_OPTION_NAMES)
    return build(name, options)
  }
}

/** Holds what is injected. It is global, so that no other module has to import it. */
class LeaseholdCoreModule {}

// What the decorators `@Module({})` and `@Inject(OWN_RUNTIME)` do. The package is compiled without decorators.
Module({})(LeaseholdModule)
Inject(OWN_RUNTIME)(LeaseholdModule, undefined, 0)
Module({})(LeaseholdCoreModule)

/**
 * Two modules, because of the order in which Nest calls hooks: those of a global module come first at the start and last at
 * the end. Workers are to start after the other modules that the root module imports, and to stop before them.
 */
function build(
  name: string | undefined,
  { imports = [], inject = [], useFactory }: LeaseholdModuleAsyncOptions,
): DynamicModule {
  const runtime = leaseholdToken(LeaseholdRuntime, name)
  const shared: Provider[] = [
    {
      provide: leaseholdToken(Outbox, name),
      useFactory: ({ schema, outbox }: LeaseholdModuleOptions) => createOutbox({ ...outbox, schema }),
      inject: [OPTIONS],
    },
    {
      provide: leaseholdToken(Webhooks, name),
      useFactory: ({ schema, webhooks }: LeaseholdModuleOptions) => createWebhooks({ ...webhooks, schema }),
      inject: [OPTIONS],
    },
    {
      provide: runtime,
      useFactory: (options: LeaseholdModuleOptions, discovery: DiscoveryService, moduleRef: ModuleRef) =>
        new LeaseholdRuntime({ options, name, discovery, moduleRef }),
      inject: [OPTIONS, DiscoveryService, ModuleRef],
    },
    {
      provide: leaseholdToken(LeaseholdHealthIndicator, name),
      useFactory: (options: LeaseholdModuleOptions, of: LeaseholdRuntime) =>
        new LeaseholdHealthIndicator(options, of),
      inject: [OPTIONS, runtime],
    },
  ]
  const core: DynamicModule = {
    module: LeaseholdCoreModule,
    global: true,
    imports: [DiscoveryModule, ...imports],
    providers: [
      {
        provide: OPTIONS,
        // What is injected is up to `inject`, which no type connects with the parameters.
        useFactory: async (...injected: never[]) => checkedOptions(await useFactory(...injected)),
        inject: [...inject],
      },
      ...shared,
    ],
    exports: shared.map((provider) => (provider as FactoryProvider).provide),
  }
  return {
    module: LeaseholdModule,
    imports: [core],
    providers: [{ provide: OWN_RUNTIME, useExisting: runtime }],
  }
}
