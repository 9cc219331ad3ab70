/**
 * Leasehold in a NestJS application.
 *
 * - **Handlers are methods of providers**, with whatever is injected into them: `@OutboxHandler('order.paid')`.
 * - **Workers start when every module is initialised, and stop in `onModuleDestroy`**: `app.close()`, and with
 *   `app.enableShutdownHooks()` a signal, waits for running handlers and releases the rest. Nest destroys the providers of
 *   the root module before that, so close what handlers need in `onApplicationShutdown`.
 * - **A failure to start fails the start of the application.**
 */
export { LeaseholdHealthIndicator, type LeaseholdHealth } from './health.ts'
export { type InjectableClass, leaseholdToken, Outbox, Webhooks } from './injectables.ts'
export { LeaseholdModule, type LeaseholdModuleAsyncOptions, type NamedModule } from './module.ts'
export { OutboxHandler, type OutboxHandlerOptions } from './outbox-handlers.ts'
export { type InjectProvider, type LeaseholdModuleOptions, LeaseholdRuntime } from './runtime.ts'
