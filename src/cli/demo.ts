/** `leasehold up --demo`: a small shop that writes events into an outbox, and a summary of what becomes of them. */
import { LeaseholdError } from '../errors.ts'
import type { Logger } from '../observe/log.ts'
import { countByStatus } from '../outbox/admin/counts.ts'
import { createOutbox, type NewEvent, type Publisher } from '../outbox/index.ts'
import { handlers } from '../outbox/publishers/handlers.ts'
import { OUTBOX, relay } from '../outbox/relay.ts'
import type { Database } from '../postgres/index.ts'
import { dead, type Events, type Outcome, retry, type WorkDeclaration } from '../worker/index.ts'
import { createLoop } from '../worker/loop.ts'
import type { Part } from './process.ts'

const ORDER_EVERY_MS = 100
const SUMMARY_EVERY_MS = 2_000
const STOP_WITHIN_MS = 5_000

/** One order in so many has an invalid e-mail address; one e-mail in so many meets a busy mail server. */
const ORDERS_PER_BAD_ADDRESS = 60
const EMAILS_PER_BUSY_SERVER = 30

const CUSTOMERS = ['ada', 'barbara', 'charles', 'donald', 'edsger', 'frances', 'grace', 'hedy']

interface ShopEvents {
  readonly 'order.placed': { readonly order: number; readonly total: number }
  readonly 'order.paid': { readonly order: number }
  readonly 'order.shipped': { readonly order: number }
  readonly 'email.requested': { readonly order: number; readonly to: string }
}

/** The relay of the demo. If the config declares a relay, the demo is refused: its events would go to a real target. */
export function demoRelay(schema: string, declared: readonly WorkDeclaration[]): WorkDeclaration {
  if (declared.some(({ name }) => name === OUTBOX)) {
    throw new LeaseholdError(
      'SETTING_INVALID',
      `--demo is given, but leasehold.config declares the worker ${OUTBOX}.`,
      {
        remedy:
          'Run the demo in a directory without that config, so that its events do not reach your publisher.',
      },
    )
  }
  const declaration = relay({ schema, publisher: shopPublisher(), retry: { firstMs: 500 } })
  // Only the handler knows the type of the rows; here they are passed on.
  return declaration as unknown as WorkDeclaration
}

/** Handlers in this process, some of which fail as real ones do. */
function shopPublisher(): Publisher {
  const work = async (): Promise<void> =>
    new Promise((resolve) => {
      setTimeout(resolve, 2 + Math.random() * 20)
    })
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
  })
}

export interface DemoOptions {
  readonly db: Database
  readonly schema: string
  readonly events: Events
  readonly log: Logger
  readonly print: (text: string) => void
}

/** Writes orders and prints a summary every two seconds, until it is stopped. */
export function startDemo({ db, schema, events, log, print }: DemoOptions): Part {
  const outbox = createOutbox<ShopEvents>({ schema })
  const tally = { written: 0, published: 0, retried: 0, dead: 0 }
  const stopListening = events.on('settled', ({ outcome, ids }) => {
    if (outcome === 'done') tally.published += ids.length
    else if (outcome === 'retry') tally.retried += ids.length
    else if (outcome === 'dead') tally.dead += ids.length
  })
  const startedAt = performance.now()
  let orders = 0
  let last: { readonly at: number; readonly published: number } | undefined

  async function placeOrder(): Promise<void> {
    orders += 1
    const written = eventsOfOrder(orders)
    // A real shop would write its own rows in the same transaction.
    await db.transaction(async (tx) => outbox.enqueue(tx, written))
    tally.written += written.length
  }

  async function printSummary(): Promise<void> {
    const { PENDING, CLAIMED } = await countByStatus(db, { schema })
    const at = performance.now()
    const since = last ?? { at: startedAt, published: 0 }
    const line = summaryLine(tally, {
      seconds: Math.round((at - startedAt) / 1_000),
      perSecond: ((tally.published - since.published) / Math.max(1, at - since.at)) * 1_000,
      waiting: PENDING.count,
      inFlight: CLAIMED.count,
    })
    print(last === undefined ? `${introduction(schema)}${line}\n` : `${line}\n`)
    last = { at, published: tally.published }
  }

  const onError = (error: unknown): void => log.warn({ err: error }, 'the demo waits for the database')
  const loops = [
    createLoop({ name: 'shop', work: placeOrder, pauseMs: () => ORDER_EVERY_MS, onError }),
    createLoop({ name: 'summary', work: printSummary, pauseMs: () => SUMMARY_EVERY_MS, onError }),
  ]
  for (const loop of loops) loop.start()
  return {
    name: 'demo',
    stopWithinMs: STOP_WITHIN_MS,
    async stop() {
      await Promise.all(loops.map(async (loop) => loop.stop()))
      stopListening()
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

function introduction(schema: string): string {
  return `A shop takes ten orders a second; each order writes four events into ${schema}.outbox.
In another terminal, in this directory, try:

  npx leasehold status
  npx leasehold outbox list --limit 5
  npx leasehold outbox list --status DEAD
  npx leasehold outbox replay --status DEAD --dry-run

`
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
