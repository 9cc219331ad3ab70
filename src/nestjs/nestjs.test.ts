/** `leasehold/nestjs` in real Nest applications, with TypeORM and @nestjs/terminus. */
import {
  Controller,
  type DynamicModule,
  Inject,
  Injectable,
  type InjectionToken,
  Logger,
  type LoggerService,
  Module,
  type ModuleMetadata,
  Scope,
  type Type,
} from '@nestjs/common'
import { HealthCheckService, TerminusModule } from '@nestjs/terminus'
import { Test, type TestingModule } from '@nestjs/testing'
import { getDataSourceToken, TypeOrmModule } from '@nestjs/typeorm'
import { type DataSource, EntitySchema } from 'typeorm'
import { afterAll, afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { z } from 'zod'
import { useDatabase } from '../../test/support/database.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { startProxy } from '../../test/support/proxy.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { statuses, write } from '../../test/support/running-relay.ts'
import type { OutboxEvent } from '../outbox/event.ts'
import type { Publisher } from '../outbox/publisher.ts'
import { relay } from '../outbox/relay.ts'
import { migrate } from '../postgres/migrate.ts'
import { openDatabase } from '../postgres/database.ts'
import { listWorkers } from '../worker/index.ts'
import {
  LeaseholdHealthIndicator,
  LeaseholdModule,
  type LeaseholdModuleOptions,
  LeaseholdRuntime,
  leaseholdToken,
  type NamedModule,
  Outbox,
  OutboxHandler,
  type OutboxHandlerOptions,
  Webhooks,
} from './index.ts'

useQuietProcess()
const { url } = useDatabase()
const { spawnNode } = useProcesses()
const db = openDatabase({ url })
const open: TestingModule[] = []

beforeEach(async () => {
  await db.query({
    text: 'truncate leasehold.outbox; create table if not exists public.orders (id text primary key)',
  })
})
afterEach(async () => {
  await Promise.all(open.splice(0).map(async (application) => application.close()))
})
afterAll(async () => db.close())

/** What decorators do: the tests are compiled without them. `examples/nestjs` has the real ones. */
function injectable<Class extends Type>(of: Class, ...inject: readonly InjectionToken[]): Class {
  Injectable()(of)
  for (const [index, token] of inject.entries()) Inject(token)(of, undefined, index)
  return of
}

function deferred<Value>(): { readonly promise: Promise<Value>; readonly resolve: (value: Value) => void } {
  let settle: (value: Value) => void = () => undefined
  const promise = new Promise<Value>((resolve) => {
    settle = resolve
  })
  return { promise, resolve: (value) => settle(value) }
}

type EventMethod = (event: OutboxEvent) => Promise<void> | void

function handles(of: Type, method: string, type: string, options?: OutboxHandlerOptions): void {
  const descriptor = Object.getOwnPropertyDescriptor(of.prototype, method)
  OutboxHandler(type, options)<EventMethod>(
    of.prototype as object,
    method,
    descriptor as TypedPropertyDescriptor<EventMethod>,
  )
}

/** A provider whose method handles the events of this type. */
function handlerOf(type: string, handle: EventMethod, options?: OutboxHandlerOptions): Type {
  class Handler {
    async onEvent(event: OutboxEvent): Promise<void> {
      await handle(event)
    }
  }
  handles(Handler, 'onEvent', type, options)
  return injectable(Handler)
}

/** Tests poll often, and a failed test must not wait long for a running handler. */
const QUICK = {
  databaseUrl: url,
  heartbeat: 'inline',
  settings: { pollMs: 50 },
  relay: { retention: false },
} satisfies LeaseholdModuleOptions

async function runningWorkers(): Promise<string[]> {
  const all = await listWorkers(db, 'leasehold')
  return all.filter(({ state }) => state !== 'stopped').map(({ id }) => id)
}

async function start(metadata: ModuleMetadata): Promise<TestingModule> {
  const application = await Test.createTestingModule(metadata).compile()
  open.push(application)
  return application.init()
}

describe('an application with TypeORM', () => {
  interface Order {
    readonly id: string
  }
  interface ShopEvents {
    readonly 'order.paid': { readonly order: string }
  }
  const ORDERS = new EntitySchema<Order>({ name: 'orders', columns: { id: { type: 'text', primary: true } } })

  class Mailer {
    readonly sent: string[] = []
    send(text: string): void {
      this.sent.push(text)
    }
  }

  class OrderHandlers {
    readonly #mailer: Mailer
    constructor(mailer: Mailer) {
      this.#mailer = mailer
    }
    onOrderPaid({ payload, attempt }: OutboxEvent): void {
      const { order } = payload as { order: string }
      this.#mailer.send(`${order} is paid (attempt ${attempt})`)
    }
  }

  class Orders {
    readonly #dataSource: DataSource
    readonly #outbox: Outbox<ShopEvents>
    constructor(dataSource: DataSource, outbox: Outbox<ShopEvents>) {
      this.#dataSource = dataSource
      this.#outbox = outbox
    }
    async pay(id: string, isAccepted: boolean): Promise<void> {
      await this.#dataSource.transaction(async (manager) => {
        await manager.save(ORDERS, { id })
        await this.#outbox.enqueue(manager, { type: 'order.paid', payload: { order: id }, orderingKey: id })
        if (!isAccepted) throw new Error('the card was refused')
      })
    }
  }

  injectable(Mailer)
  injectable(OrderHandlers, Mailer)
  injectable(Orders, getDataSourceToken(), Outbox)
  handles(OrderHandlers, 'onOrderPaid', 'order.paid')

  it('handles an event of a committed transaction with what is injected; a rollback leaves neither order nor event', async () => {
    const application = await start({
      imports: [
        TypeOrmModule.forRoot({ type: 'postgres', url, entities: [ORDERS] }),
        LeaseholdModule.forRoot(QUICK),
      ],
      // Through a module of its own, it is found all the same.
      providers: [Orders, OrderHandlers, Mailer, { provide: 'alias', useExisting: OrderHandlers }],
    })
    const { events, runtime } = application.get(LeaseholdRuntime)
    expect(runtime?.id).toBeTypeOf('string')
    const settled = events.next('settled')
    await expect(application.get(Orders).pay('o-1', false)).rejects.toThrow('the card was refused')
    expect(await statuses(db)).toEqual({})
    await application.get(Orders).pay('o-2', true)
    await settled
    expect(application.get(Mailer).sent).toEqual(['o-2 is paid (attempt 1)'])
    expect(await statuses(db)).toEqual({ PUBLISHED: 1 })
    expect((await db.query({ text: 'select id from public.orders' })).rows).toEqual([{ id: 'o-2' }])
    // Webhooks are injected as well; without an endpoint nothing is written.
    const sent = await application
      .get(Webhooks)
      .send(application.get<DataSource>(getDataSourceToken()), { type: 'a', payload: 1 })
    expect(sent).toMatchObject({ deliveries: 0 })
  })
})

describe('the end of an application', () => {
  it('close() waits for the running handler, releases the rest, and comes before what handlers need is closed', async () => {
    const order: string[] = []
    const handling = deferred<void>()
    const finish = deferred<void>()
    class Connection {
      onModuleDestroy(): void {
        order.push('connection closed')
      }
    }
    class FeatureModule {}
    Module({ providers: [injectable(Connection)] })(FeatureModule)
    const Handler = handlerOf('test.happened', async () => {
      handling.resolve()
      await finish.promise
      order.push('handler ended')
    })
    const application = await start({
      imports: [
        FeatureModule,
        LeaseholdModule.forRoot({ ...QUICK, settings: { pollMs: 50, concurrency: 1, prefetch: 5 } }),
      ],
      providers: [Handler],
    })
    const leasehold = application.get(LeaseholdRuntime)
    await write(db, null, null, null)
    await handling.promise
    await vi.waitFor(() => expect(leasehold.runtime?.inFlight).toBe(3))
    const closed = application.close().then(() => order.push('closed'))
    await vi.waitFor(() => expect(leasehold.state).toBe('stopping'))
    finish.resolve()
    await closed
    expect(order).toEqual(['handler ended', 'connection closed', 'closed'])
    expect(await statuses(db)).toEqual({ PUBLISHED: 1, PENDING: 2 })
    const { rows } = await db.query({ text: 'select sum(attempts)::int as attempts from leasehold.outbox' })
    expect(rows).toEqual([{ attempts: 0 }])
  })

  it('a provider of the root module is destroyed before the workers stop, and shut down after them', async () => {
    const order: string[] = []
    const handling = deferred<void>()
    const finish = deferred<void>()
    class Client {
      onModuleDestroy(): void {
        order.push('root provider destroyed')
        finish.resolve()
      }
      onApplicationShutdown(): void {
        order.push('root provider shut down')
      }
    }
    const Handler = handlerOf('test.happened', async () => {
      handling.resolve()
      await finish.promise
      order.push('handler ended')
    })
    const application = await start({
      imports: [LeaseholdModule.forRoot(QUICK)],
      providers: [Handler, injectable(Client)],
    })
    await write(db, null)
    await handling.promise
    await application.close()
    expect(order).toEqual(['root provider destroyed', 'handler ended', 'root provider shut down'])
    expect(await statuses(db)).toEqual({ PUBLISHED: 1 })
  })

  it('an application that is closed while it starts leaves no worker behind', async () => {
    const { promise: isAsked, resolve: ask } = deferred<void>()
    const answer = deferred<void>()
    const application = await Test.createTestingModule({
      imports: [
        LeaseholdModule.forRoot({
          ...QUICK,
          workers: async () => {
            ask()
            await answer.promise
            return []
          },
        }),
      ],
      providers: [handlerOf('a', () => undefined)],
    }).compile()
    const started = application.init()
    await isAsked
    const closed = application.close()
    answer.resolve()
    await Promise.all([started, closed])
    expect(await runningWorkers()).toEqual([])
  })

  it('SIGTERM to a process with enableShutdownHooks() ends it after its running handler', async () => {
    const child = spawnNode('test/fixtures/nestjs.mjs', [JSON.stringify({ databaseUrl: url })])
    await child.line((line) => line === 'up')
    await write(db, null, null)
    await child.line((line) => line === 'handling 1')
    const exited = child.kill('SIGTERM')
    await child.line((line) => line === 'stopping')
    child.send('finish')
    // Nest ends the process by the signal that it got.
    expect(await exited, child.output().stderr).toEqual({ code: null, signal: 'SIGTERM' })
    expect(child.output().stdout).toContain('handled 1')
    expect(await statuses(db)).toEqual({ PUBLISHED: 1, PENDING: 1 })
    expect(await runningWorkers()).toEqual([])
  })
})

describe('a start that fails', () => {
  const noop = (): void => undefined
  /** The providers of each case are made here, because two classes may have the same name. */
  function twice(): Type[] {
    class Shipping {
      ship(): void {}
    }
    class Billing {
      bill(): void {}
    }
    handles(Shipping, 'ship', 'order.paid')
    handles(Billing, 'bill', 'order.paid')
    return [injectable(Shipping), injectable(Billing)]
  }

  it.each<readonly [string, Partial<LeaseholdModuleOptions & NamedModule>, () => Type[], string, RegExp]>([
    [
      'a URL that is none',
      { databaseUrl: 'nonsense' },
      () => [handlerOf('a', noop)],
      'SETTING_INVALID',
      /databaseUrl/,
    ],
    [
      'a schema that was not migrated',
      { schema: 'absent' },
      () => [handlerOf('a', noop)],
      'SETTING_INVALID',
      /absent/,
    ],
    [
      'nothing to run',
      {},
      () => [],
      'SETTING_INVALID',
      /no provider of the application has a method with @OutboxHandler/,
    ],
    [
      'two handlers for one type',
      {},
      twice,
      'SETTING_INVALID',
      /'order\.paid' is handled by Shipping\.ship \(in RootTestModule\) and by Billing\.bill \(in RootTestModule\)/,
    ],
    [
      'a handler for a type that the outbox does not have',
      { outbox: { events: { 'order.paid': z.object({}) } } },
      () => [handlerOf('order.payed', noop)],
      'SETTING_INVALID',
      /Handler\.onEvent \(in RootTestModule\) handles 'order\.payed'.*did you mean order\.paid\?/,
    ],
    [
      'a relay besides that of the handlers',
      { workers: [relay({ publisher: { name: 'other', publish: async () => undefined } })] },
      () => [handlerOf('a', noop)],
      'SETTING_INVALID',
      /Handler\.onEvent .* `workers` has another relay/,
    ],
    [
      'a handler on a request-scoped provider',
      {},
      () => {
        const Handler = handlerOf('a', noop)
        Injectable({ scope: Scope.REQUEST })(Handler)
        return [Handler]
      },
      'SETTING_INVALID',
      /Handler\.onEvent .* request-scoped/,
    ],
    [
      'a handler of a module that does not exist',
      { name: 'billing' },
      () => [
        handlerOf('a', noop, { module: 'billing' }),
        handlerOf('b', noop, { module: 'biling' }),
        handlerOf('c', noop),
      ],
      'SETTING_INVALID',
      /: Handler\.onEvent \(in RootTestModule\) is for the module 'biling', .*; Handler\.onEvent \(in RootTestModule\) is for the module without a name, .*\. The application has the LeaseholdModule 'billing'\./,
    ],
    [
      'an invalid option of the relay',
      { relay: { onFailure: 'stop' as 'skip' } },
      () => [handlerOf('a', noop)],
      'SETTING_INVALID',
      /onFailure/,
    ],
  ])(
    '%s fails the start of the application with an error that says so',
    async (_, options, providers, code, message) => {
      const imports = [LeaseholdModule.forRoot({ ...QUICK, ...options })]
      await expect(start({ imports, providers: providers() })).rejects.toMatchObject({
        code,
        message: expect.stringMatching(message),
      })
    },
  )

  it('an unknown option, an empty type and a second module of the same name are refused', async () => {
    const misspelt = { ...QUICK, worker: [] }
    await expect(start({ imports: [LeaseholdModule.forRoot(misspelt)] })).rejects.toThrow(
      /LeaseholdModule: unknown option worker \(did you mean workers\?\)/,
    )
    expect(() => handlerOf('', noop)).toThrow(/@OutboxHandler of Handler\.onEvent was given ''/)
    const imports = [LeaseholdModule.forRoot(QUICK), LeaseholdModule.forRoot(QUICK)]
    await expect(start({ imports, providers: [handlerOf('a', noop)] })).rejects.toThrow(
      /imported twice without a name/,
    )
  })
})

it('@OutboxHandler refuses a static method and one that is named by a symbol, which would never be called', () => {
  const onEvent = Symbol('onEvent')
  class Handler {
    static onEvent(this: void): void {}
    [onEvent](this: void): void {}
  }
  const decorate = OutboxHandler('order.paid')
  expect(() => decorate(Handler, 'onEvent', { value: Handler.onEvent })).toThrow(
    /@OutboxHandler\('order\.paid'\) is on Handler\.onEvent, a static method/,
  )
  expect(() => decorate(Handler.prototype, onEvent, { value: Handler.prototype[onEvent] })).toThrow(
    /@OutboxHandler\('order\.paid'\) is on Handler\.Symbol\(onEvent\), a method that is named by a symbol/,
  )
})

it('the token of a named module does not depend on the names of classes, which a minifier may change', () => {
  const classes = [Outbox, Webhooks, LeaseholdRuntime, LeaseholdHealthIndicator]
  const before = classes.map((of) => leaseholdToken(of, 'billing'))
  for (const of of classes) {
    const name = Object.getOwnPropertyDescriptor(of, 'name') ?? {}
    onTestFinished(() => void Object.defineProperty(of, 'name', name))
    Object.defineProperty(of, 'name', { ...name, value: 'a' })
  }
  expect(classes.map((of) => leaseholdToken(of, 'billing'))).toEqual(before)
  expect(new Set(before).size).toBe(4)
  expect(() => leaseholdToken(Date, 'billing')).toThrow(
    /given Date, which .* Give one of Outbox, .*LeaseholdHealthIndicator/,
  )
})

it('the health indicator is down after the application has stopped, and connects no more', async () => {
  const proxy = await startProxy(url)
  onTestFinished(async () => proxy.close())
  const application = await start({
    imports: [LeaseholdModule.forRoot({ databaseUrl: proxy.url, start: false })],
  })
  const leasehold = application.get(LeaseholdHealthIndicator)
  await application.close()
  expect(await leasehold.isHealthy('leasehold')).toEqual({
    leasehold: { status: 'down', application: 'has stopped' },
  })
  expect(proxy.connections).toBe(0)
})

it('the health indicator of @nestjs/terminus goes down with the database and up again', async () => {
  const proxy = await startProxy(url)
  onTestFinished(async () => proxy.close())
  const application = await start({
    imports: [
      TerminusModule.forRoot({ logger: false }),
      LeaseholdModule.forRoot({ ...QUICK, databaseUrl: proxy.url, log: false }),
    ],
    providers: [handlerOf('a', () => undefined)],
  })
  const terminus = application.get(HealthCheckService, { strict: false })
  const leasehold = application.get(LeaseholdHealthIndicator)
  const check = async (): Promise<unknown> => terminus.check([async () => leasehold.isHealthy('leasehold')])
  const details = { database: 'answers', workers: 'running', claiming: 'not paused', reaper: 'alive' }
  // The reaper counts once it has run.
  await vi.waitFor(async () =>
    expect(check()).resolves.toMatchObject({
      status: 'ok',
      info: { leasehold: { status: 'up', ...details } },
    }),
  )
  await proxy.refuse()
  proxy.cut()
  await expect(check()).rejects.toMatchObject({
    status: 503,
    response: {
      error: { leasehold: { status: 'down', database: expect.stringMatching(/refused|reset|terminated/i) } },
    },
  })
  await proxy.accept()
  await vi.waitFor(async () => expect(check()).resolves.toMatchObject({ status: 'ok' }))
})

it('two modules of an application, and two applications of a process, share nothing', async () => {
  await migrate(db, { schema: 'second' })
  const seen: string[] = []
  const told =
    (who: string): EventMethod =>
    ({ type }) =>
      void seen.push(`${who} ${type}`)
  const OnController = handlerOf('a', told('first'))
  // A method may handle several types.
  handles(OnController, 'onEvent', 'b')
  Controller()(OnController)
  const application = await start({
    imports: [
      LeaseholdModule.forRoot(QUICK),
      LeaseholdModule.forRoot({ ...QUICK, name: 'second', schema: 'second' }),
    ],
    controllers: [OnController],
    providers: [handlerOf('a', told('second'), { module: 'second' })],
  })
  const [first, second] = [
    application.get(LeaseholdRuntime),
    application.get<LeaseholdRuntime>(leaseholdToken(LeaseholdRuntime, 'second')),
  ]
  const settled = [first.events.next('settled'), second.events.next('settled')]
  await application.get(Outbox).enqueue(db, { type: 'a', payload: 1 })
  await application.get<Outbox>(leaseholdToken(Outbox, 'second')).enqueue(db, { type: 'a', payload: 2 })
  await Promise.all(settled)
  expect(seen.sort()).toEqual(['first a', 'second a'])
  const again = first.events.next('settled')
  await application.get(Outbox).enqueue(db, { type: 'b', payload: 1 })
  await again
  expect(seen).toContain('first b')

  const other = await start({
    imports: [LeaseholdModule.forRoot(QUICK)],
    providers: [handlerOf('a', told('other'))],
  })
  const { runtime } = other.get(LeaseholdRuntime)
  expect(runtime?.id).not.toBe(first.runtime?.id)
  await application.close()
  const handled = other.get(LeaseholdRuntime).events.next('settled')
  await other.get(Outbox).enqueue(db, { type: 'a', payload: 3 })
  await handled
  expect(seen).toContain('other a')
})

describe('forRootAsync', () => {
  it('makes the options of providers, and workers may use providers that use the outbox', async () => {
    class Config {
      readonly databaseUrl = url
    }
    class ConfigModule {}
    Module({ providers: [injectable(Config)], exports: [Config] })(ConfigModule)
    const published = deferred<readonly OutboxEvent[]>()
    class Broker implements Publisher {
      readonly name = 'broker'
      readonly outbox: Outbox
      constructor(outbox: Outbox) {
        this.outbox = outbox
      }
      async publish(events: readonly OutboxEvent[]): Promise<void> {
        published.resolve(events)
      }
    }
    const application = await start({
      imports: [
        LeaseholdModule.forRootAsync({
          imports: [ConfigModule],
          inject: [Config],
          useFactory: async ({ databaseUrl }: Config) => ({
            ...QUICK,
            databaseUrl,
            workers: (inject) => [relay({ publisher: inject(Broker), retention: false })],
          }),
        }),
      ],
      providers: [injectable(Broker, Outbox)],
    })
    await application.get(Broker).outbox.enqueue(db, { type: 'a', payload: 7 })
    expect(await published.promise).toMatchObject([{ payload: 7 }])
  })

  it('with start: false a process enqueues, migrates if asked, and works on nothing', async () => {
    const application = await start({
      imports: [
        LeaseholdModule.forRootAsync({
          useFactory: () => ({ databaseUrl: url, start: false, schema: 'third', migrate: true }),
        }),
      ],
      // Handlers of whichever module: it runs none.
      providers: [handlerOf('a', () => undefined), handlerOf('a', () => undefined, { module: 'elsewhere' })],
    })
    await application.get(Outbox).enqueue(db, { type: 'a', payload: 1 })
    const { rows } = await db.query({ text: 'select status from third.outbox' })
    expect(rows).toEqual([{ status: 'PENDING' }])
    expect(application.get(LeaseholdRuntime).runtime).toBeUndefined()
    expect(await listWorkers(db, 'third')).toEqual([])
    const health = await application.get(LeaseholdHealthIndicator).isHealthy('leasehold')
    expect(health).toEqual({
      leasehold: { status: 'up', database: 'answers', migrations: expect.any(String) },
    })
  })

  it('refuses options that Nest has elsewhere', () => {
    const given = { useClass: class {}, useFactory: () => QUICK }
    expect(() => LeaseholdModule.forRootAsync(given)).toThrow(/unknown option useClass/)
  })
})

it('the log goes through the Logger of Nest: starts, stops, and why a handler failed', async () => {
  const lines: string[] = []
  const line =
    (level: string) =>
    (message: unknown, ...rest: readonly unknown[]): void => {
      lines.push(`${level} [${String(rest.at(-1))}] ${String(message)}`)
    }
  const logger: LoggerService = {
    log: line('log'),
    warn: line('warn'),
    error: line('error'),
    debug: line('debug'),
  }
  Logger.overrideLogger(logger)
  onTestFinished(() => Logger.overrideLogger(['error']))
  const application = await Test.createTestingModule({
    imports: [LeaseholdModule.forRoot(QUICK)],
    providers: [
      handlerOf('test.happened', () => {
        throw new Error('the printer is out of paper')
      }),
    ],
  })
    .setLogger(logger)
    .compile()
  await application.init()
  const failed = application.get(LeaseholdRuntime).events.next('failed')
  await write(db, null)
  await failed
  await application.close()
  const ours = lines.filter((text) => text.includes('[Leasehold]'))
  expect(ours).toEqual([
    expect.stringMatching(/^log \[Leasehold\] the worker process has started/),
    expect.stringMatching(
      /^warn \[Leasehold\] the handler failed: the printer is out of paper[^]*nestjs\.test\.ts/,
    ),
    expect.stringMatching(/^log \[Leasehold\] claiming is paused .*reason=stopping/),
    expect.stringMatching(/^log \[Leasehold\] the worker process has stopped/),
  ])
})

/** Never run: these are here to be compiled. */
export function compiles(dynamic: (module: DynamicModule) => void): void {
  class Handlers {
    paid(_event: OutboxEvent<'order.paid', { order: string }>): void {}
  }
  const descriptor: TypedPropertyDescriptor<Handlers['paid']> = {}
  OutboxHandler('order.paid')(Handlers.prototype, 'paid', descriptor)
  // @ts-expect-error -- the method takes events of another type
  OutboxHandler('order.shipped')(Handlers.prototype, 'paid', descriptor)
  // @ts-expect-error -- the URL is missing
  dynamic(LeaseholdModule.forRoot({ migrate: true }))
}
