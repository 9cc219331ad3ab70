/** A shop as small as can be, for `leasehold up --demo`: it takes orders, and tells of them through the outbox. */
import { createOutbox, type NewEvent } from '../../outbox/index.ts'
import type { Database } from '../../postgres/index.ts'
import { dead, retry, type Outcome } from '../../worker/index.ts'
import { handlers } from '../../outbox/publishers/handlers.ts'
import type { Publisher } from '../../outbox/index.ts'

export interface ShopEvents {
  readonly 'order.placed': { readonly order: number; readonly total: number }
  readonly 'order.paid': { readonly order: number }
  readonly 'order.shipped': { readonly order: number }
  readonly 'email.requested': { readonly order: number; readonly to: string }
}

const CUSTOMERS = ['ada', 'barbara', 'charles', 'donald', 'edsger', 'frances', 'grace', 'hedy']

/** One order in so many has an address that no mail server takes; one e-mail in so many meets a busy one. */
const BAD_ADDRESS = 60
const BUSY_SERVER = 30

export interface Shop {
  /** One order, and everything there is to tell of it, in one transaction. Returns how many events that were. */
  order(db: Database): Promise<number>
}

export function openShop(schema: string, random: () => number): Shop {
  const outbox = createOutbox<ShopEvents>({ schema })
  let orders = 0
  return {
    async order(db) {
      orders += 1
      const order = orders
      const customer = CUSTOMERS[Math.floor(random() * CUSTOMERS.length)] ?? 'ada'
      const to = order % BAD_ADDRESS === 0 ? `${customer}@` : `${customer}@example.com`
      const events: NewEvent<ShopEvents>[] = [
        {
          type: 'order.placed',
          payload: { order, total: 1 + Math.floor(random() * 200) },
          orderingKey: customer,
        },
        { type: 'order.paid', payload: { order }, orderingKey: customer },
        { type: 'order.shipped', payload: { order }, orderingKey: customer },
        { type: 'email.requested', payload: { order, to } },
      ]
      // A shop of yours would write its own rows in the same transaction.
      await db.transaction(async (tx) => outbox.enqueue(tx, events))
      return events.length
    },
  }
}

/** What listens to the shop: handlers in this process, some of which meet the troubles of real ones. */
export function shopPublisher(random: () => number): Publisher {
  const work = async (): Promise<void> =>
    new Promise((resolve) => {
      setTimeout(resolve, 2 + random() * 20)
    })
  return handlers<ShopEvents>({
    'order.placed': work,
    'order.paid': work,
    'order.shipped': work,
    'email.requested': async ({ payload }): Promise<Outcome | void> => {
      await work()
      if (payload.to.endsWith('@')) return dead(`no such address: ${payload.to}`)
      if (random() * BUSY_SERVER < 1) return retry({ error: 'the mail server is busy' })
      return undefined
    },
  })
}
