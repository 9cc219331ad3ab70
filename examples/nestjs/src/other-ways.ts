// Other ways to import the module. The application does not use them: the guide shows them, and they are compiled.
import { Inject, Injectable, Module } from '@nestjs/common'
import { LeaseholdModule, leaseholdToken, Outbox, OutboxHandler } from 'leasehold/nestjs'
import type { OutboxEvent } from 'leasehold/outbox'
import { createSync } from 'leasehold/sync'
import { dispatcher } from 'leasehold/webhooks'

@Injectable()
class Config {
  readonly databaseUrl = process.env['DATABASE_URL'] ?? ''
  readonly secretKey = process.env['LEASEHOLD_SECRET_KEY'] ?? ''
}

@Module({ providers: [Config], exports: [Config] })
class ConfigModule {}

/** A provider with definitions of long imports. */
@Injectable()
export class Imports {
  readonly sync = createSync()
}

// begin
export const fromConfiguration = LeaseholdModule.forRootAsync({
  imports: [ConfigModule],
  inject: [Config],
  useFactory: ({ databaseUrl, secretKey }: Config) => ({
    databaseUrl,
    settings: { concurrency: 20 },
    relay: { onFailure: 'park' },
    // Besides the relay of the handlers. `inject` returns any provider of the application, when it starts.
    workers: (inject) => [dispatcher({ secretKey }), ...inject(Imports).sync.runner()],
  }),
})
// end

// begin
export const onlyEnqueues = LeaseholdModule.forRoot({
  databaseUrl: process.env['DATABASE_URL'] ?? '',
  start: false,
})
// end

// begin
export const second = LeaseholdModule.forRoot({
  name: 'billing',
  databaseUrl: process.env['BILLING_DATABASE_URL'] ?? '',
})

@Injectable()
export class Invoices {
  constructor(@Inject(leaseholdToken(Outbox, 'billing')) readonly outbox: Outbox) {}

  @OutboxHandler('invoice.due', { module: 'billing' })
  async onInvoiceDue(_event: OutboxEvent): Promise<void> {
    // Handles the events of that database.
  }
}
// end
