/** The shop: orders, invoices and parcels become events of the outbox, and a summary says what becomes of them. */
import { LeaseholdError } from '../../errors.ts'
import { countByStatus } from '../../outbox/admin/counts.ts'
import { createOutbox, type NewEvent, type Publisher } from '../../outbox/index.ts'
import { handlers } from '../../outbox/publishers/handlers.ts'
import { OUTBOX, relay } from '../../outbox/relay.ts'
import type { Database } from '../../postgres/index.ts'
import { dead, type Events, type Outcome, retry, type WorkDeclaration } from '../../worker/index.ts'
import { pause } from '../../worker/loop.ts'
import type { DemoLoop, DemoPart } from './demo.ts'

const ORDER_EVERY_MS = 100
const INVOICE_EVERY_MS = 1_500
const PARCEL_EVERY_MS = 3_000
const SUMMARY_EVERY_MS = 2_000

/** One order in so many has an invalid e-mail address; one e-mail in so many meets a busy mail server. */
const ORDERS_PER_BAD_ADDRESS = 60
const EMAILS_PER_BUSY_SERVER = 30
/** One parcel in so many is refused once, and its depot waits until somebody replays it. */
const PARCELS_PER_REFUSED = 12

const CUSTOMERS = ['ada', 'barbara', 'charles', 'donald', 'edsger', 'frances', 'grace', 'hedy']
const DEPOTS = ['depot north', 'depot south']

export const PARCEL = 'parcel.labelled'

interface ShopEvents {
  readonly 'order.placed': { readonly order: number; readonly total: number }
  readonly 'order.paid': { readonly order: number }
  readonly 'order.shipped': { readonly order: number }
  readonly 'email.requested': { readonly order: number; readonly to: string }
  readonly 'invoice.requested': { readonly invoice: number }
  readonly [PARCEL]: { readonly parcel: number }
}

/** If the config declares a relay, the demo is refused: its events would go to a real target. */
export function refuseDeclaredRelay(declared: readonly WorkDeclaration[]): void {
  if (!declared.some(({ name }) => name === OUTBOX)) return
  throw new LeaseholdError(
    'SETTING_INVALID',
    `--demo is given, but leasehold.config declares the worker ${OUTBOX}.`,
    {
      remedy:
        'Run the demo in a directory without that config, so that its events do not reach your publisher.',
    },
  )
}

/** Handlers in this process, some of which fail as real ones do. */
function shopPublisher(stopping: AbortSignal): Publisher {
  const work = async (): Promise<void> => pause(2 + Math.random() * 20, stopping)
  const refused = new Set<number>()
  return handlers<ShopEvents>({
    'order.placed': work,
    'order.paid': work,
    'order.shipped': work,
    'email.requested': async ({ payload }): Promise<Outcome | void> => {
      await work()
      if (payload.to.endsWith('@')) return dead(`no such address: ${payload.to}`)
      if (Math.random() * EMAILS_PER_BUSY_SERVER < 1) return retry({ error: 'the mail server is busy' })
      return undefined
    },
    // Slow enough to see the lease.
    'invoice.requested': async () => pause(2_000 + Math.random() * 6_000, stopping),
    [PARCEL]: async ({ payload: { parcel } }): Promise<Outcome | void> => {
      await work()
      if (parcel % PARCELS_PER_REFUSED !== 0 || refused.has(parcel)) return undefined
      refused.add(parcel)
      return dead(`the depot refuses parcel ${parcel}: the street is missing`)
    },
  })
}

export interface Summary {
  readonly events: Events
  readonly print: (text: string) => void
  /** Printed before the first line. */
  readonly introduction: string
}

export interface Shop extends DemoPart {
  /** Print a line every two seconds. */
  readonly summaryLoops: (summary: Summary) => readonly DemoLoop[]
}

export function shop(schema: string, stopping: AbortSignal): Shop {
  const outbox = createOutbox<ShopEvents>({ schema })
  const publisher = shopPublisher(stopping)
  const declaration = relay({ schema, publisher, onFailure: 'park', retry: { firstMs: 500 } })
  const tally = { written: 0, published: 0, retried: 0, dead: 0 }
  const counts = { orders: 0, invoices: 0, parcels: 0 }

  async function write(db: Database, events: readonly NewEvent<ShopEvents>[]): Promise<void> {
    // A real shop would write its own rows in the same transaction.
    await db.transaction(async (tx) => outbox.enqueue(tx, events))
    tally.written += events.length
  }

  function count({ events }: Summary): void {
    events.on('settled', ({ table, outcome, ids }) => {
      if (table !== `${schema}.outbox`) return
      if (outcome === 'done') tally.published += ids.length
      else if (outcome === 'retry') tally.retried += ids.length
      else if (outcome === 'dead') tally.dead += ids.length
    })
  }

  return {
    // Only the handler knows the type of the rows; here they are passed on.
    workers: [declaration as unknown as WorkDeclaration],
    loops: [
      {
        name: 'orders',
        everyMs: ORDER_EVERY_MS,
        async work(db) {
          counts.orders += 1
          await write(db, eventsOfOrder(counts.orders))
        },
      },
      {
        name: 'invoices',
        everyMs: INVOICE_EVERY_MS,
        async work(db) {
          counts.invoices += 1
          await write(db, [{ type: 'invoice.requested', payload: { invoice: counts.invoices } }])
        },
      },
      {
        name: 'parcels',
        everyMs: PARCEL_EVERY_MS,
        async work(db) {
          counts.parcels += 1
          const orderingKey = DEPOTS[counts.parcels % DEPOTS.length]
          await write(db, [{ type: PARCEL, payload: { parcel: counts.parcels }, orderingKey }])
        },
      },
    ],
    summaryLoops(summary) {
      count(summary)
      const startedAt = performance.now()
      let last: { readonly at: number; readonly published: number } | undefined
      return [
        {
          name: 'summary',
          everyMs: SUMMARY_EVERY_MS,
          async work(db) {
            const { PENDING, CLAIMED } = await countByStatus(db, { schema })
            const at = performance.now()
            const since = last ?? { at: startedAt, published: 0 }
            const line = summaryLine(tally, {
              seconds: Math.round((at - startedAt) / 1_000),
              perSecond: ((tally.published - since.published) / Math.max(1, at - since.at)) * 1_000,
              waiting: PENDING.count,
              inFlight: CLAIMED.count,
            })
            summary.print(last === undefined ? `${summary.introduction}${line}\n` : `${line}\n`)
            last = { at, published: tally.published }
          },
        },
      ]
    },
  }
}

function eventsOfOrder(order: number): NewEvent<ShopEvents>[] {
  const customer = CUSTOMERS[Math.floor(Math.random() * CUSTOMERS.length)] ?? 'ada'
  const to = order % ORDERS_PER_BAD_ADDRESS === 0 ? `${customer}@` : `${customer}@example.com`
  const total = 1 + Math.floor(Math.random() * 200)
  return [
    { type: 'order.placed', payload: { order, total }, orderingKey: customer },
    { type: 'order.paid', payload: { order }, orderingKey: customer },
    { type: 'order.shipped', payload: { order }, orderingKey: customer },
    { type: 'email.requested', payload: { order, to } },
  ]
}

/** What has happened since the demo began. */
interface Tally {
  readonly written: number
  readonly published: number
  readonly retried: number
  readonly dead: number
}

function wide(count: number | string, width: number): string {
  return String(count).padStart(width)
}

/** The columns of all lines have the same width, so that a change is seen at once. */
export function summaryLine(
  { written, published, retried, dead }: Tally,
  now: {
    readonly seconds: number
    readonly perSecond: number
    readonly waiting: number
    readonly inFlight: number
  },
): string {
  const parts = [
    `${String(now.seconds).padStart(4)} s`,
    `written ${wide(written, 6)}`,
    `published ${wide(published, 6)} (${wide(now.perSecond.toFixed(0), 3)}/s)`,
    `waiting ${wide(now.waiting, 4)}`,
    `in flight ${wide(now.inFlight, 3)}`,
    `retried ${wide(retried, 4)}`,
    `dead ${wide(dead, 4)}`,
  ]
  return parts.join('   ')
}
