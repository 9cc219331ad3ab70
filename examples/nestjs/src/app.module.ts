import { Module } from '@nestjs/common'
import { TerminusModule } from '@nestjs/terminus'
import { TypeOrmModule } from '@nestjs/typeorm'
import { LeaseholdModule } from 'leasehold/nestjs'
import { HealthController } from './health.controller.ts'
import { Order, OrderHandlers, Orders, OrdersController } from './orders.ts'

const databaseUrl = process.env['DATABASE_URL'] ?? ''

// begin
@Module({
  imports: [
    TerminusModule,
    // In production, `synchronize: false` and migrations.
    TypeOrmModule.forRoot({ type: 'postgres', url: databaseUrl, entities: [Order], synchronize: true }),
    // In production, `migrate: false`, and `leasehold migrate` when you deploy. It is the last one, so that workers start
    // after the modules above and stop before them.
    LeaseholdModule.forRoot({ databaseUrl, migrate: true }),
  ],
  controllers: [OrdersController, HealthController],
  providers: [Orders, OrderHandlers],
})
export class AppModule {}
// end
