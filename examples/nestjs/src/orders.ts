import { Body, Controller, Get, Injectable, Logger, NotFoundException, Param, Post } from '@nestjs/common'
import { Outbox, OutboxHandler } from 'leasehold/nestjs'
import type { OutboxEvent } from 'leasehold/outbox'
import { Column, DataSource, Entity, IsNull, PrimaryGeneratedColumn } from 'typeorm'

@Entity('orders')
export class Order {
  @PrimaryGeneratedColumn('identity', { type: 'bigint', generatedIdentity: 'ALWAYS' })
  id!: string

  @Column('text')
  item!: string

  @Column('timestamptz', { name: 'confirmed_at', nullable: true })
  confirmedAt!: Date | null
}

// begin
/** The types of the events and their payloads. */
interface ShopEvents {
  'order.placed': { order: string }
}

@Injectable()
export class Orders {
  constructor(
    private readonly dataSource: DataSource,
    private readonly outbox: Outbox<ShopEvents>,
  ) {}

  /** The order and its event are written in one transaction: both, or neither. */
  async place(item: string): Promise<Order> {
    return this.dataSource.transaction(async (manager) => {
      const order = await manager.save(Order, { item })
      const { id } = order
      await this.outbox.enqueue(manager, { type: 'order.placed', payload: { order: id }, orderingKey: id })
      return order
    })
  }

  async find(id: string): Promise<Order | null> {
    return this.dataSource.manager.findOneBy(Order, { id })
  }

  /** An event can arrive twice, so what is done for it must be repeatable. */
  async confirm(id: string): Promise<void> {
    await this.dataSource.manager.update(Order, { id, confirmedAt: IsNull() }, { confirmedAt: new Date() })
  }
}

// end

// begin
/** Runs in every process of the application; each event is handled by one of them at a time. */
@Injectable()
export class OrderHandlers {
  private readonly logger = new Logger(OrderHandlers.name)

  constructor(private readonly orders: Orders) {}

  @OutboxHandler('order.placed')
  async onOrderPlaced({ payload }: OutboxEvent<'order.placed', ShopEvents['order.placed']>): Promise<void> {
    await this.orders.confirm(payload.order)
    this.logger.log(`order ${payload.order} is confirmed`)
  }
}
// end

@Controller('orders')
export class OrdersController {
  constructor(private readonly orders: Orders) {}

  @Post()
  async place(@Body('item') item: string): Promise<object> {
    const { id, item: placed } = await this.orders.place(item)
    return { id, item: placed }
  }

  @Get(':id')
  async find(@Param('id') id: string): Promise<object> {
    const order = await this.orders.find(id)
    if (order === null) throw new NotFoundException()
    return { id, item: order.item, confirmed_at: order.confirmedAt }
  }
}
