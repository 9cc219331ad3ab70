import { OUTBOX, relay } from '../../outbox/relay.ts'
import { LeaseholdError } from '../../errors.ts'
import type { Logger } from '../../observe/index.ts'
import type { Database } from '../../postgres/index.ts'
import type { Events, WorkDeclaration } from '../../worker/index.ts'
import { createLoop } from '../../worker/loop.ts'
import type { Part } from '../parts.ts'
import { openShop, shopPublisher } from './shop.ts'
import { startSummary } from './summary.ts'

export interface DemoOptions {
  readonly db: Database
  readonly schema: string
  readonly events: Events
  readonly log: Logger
  readonly print: (text: string) => void
}

const ORDER_EVERY_MS = 100
const SUMMARY_EVERY_MS = 2_000

/** The relay of the demo. A config that has one of its own would publish the demo's events to the real target. */
export function demoWork(schema: string, declared: readonly WorkDeclaration[]): WorkDeclaration {
  if (declared.some(({ name }) => name === OUTBOX)) {
    throw new LeaseholdError(
      'SETTING_INVALID',
      `--demo is given, but leasehold.config declares the worker ${OUTBOX}.`,
      {
        remedy: 'Run the demo in a directory without that config: its events are not for your publisher.',
      },
    )
  }
  const declaration = relay({ schema, publisher: shopPublisher(Math.random), retry: { firstMs: 500 } })
  // What a worker's rows are is its handler's business alone; here they are only passed on.
  return declaration as unknown as WorkDeclaration
}

function introduction(schema: string): string {
  return `A shop takes ten orders a second; each writes four events in its transaction, into the schema ${schema}.
In another terminal, in this directory, try:

  npx leasehold status --schema ${schema}
  npx leasehold outbox list --limit 5 --schema ${schema}
  npx leasehold outbox list --status DEAD --schema ${schema}
  npx leasehold outbox replay --status DEAD --dry-run --schema ${schema}

`
}

/** The shop takes orders and a line tells how it goes, until it is stopped. */
export function startDemo({ db, schema, events, log, print }: DemoOptions): Part {
  const shop = openShop(schema, Math.random)
  const summary = startSummary(events, schema)
  const onError = (error: unknown): void => log.warn({ err: error }, 'the demo waits for the database')
  let first = true
  const loops = [
    createLoop({
      name: 'shop',
      work: async () => summary.wrote(await shop.order(db)),
      pauseMs: () => ORDER_EVERY_MS,
      onError,
    }),
    createLoop({
      name: 'summary',
      work: async () => {
        const line = await summary.line(db)
        print(first ? `${introduction(schema)}${line}\n` : `${line}\n`)
        first = false
      },
      pauseMs: () => SUMMARY_EVERY_MS,
      onError,
    }),
  ]
  for (const loop of loops) loop.start()
  return {
    name: 'demo',
    stopWithinMs: 5_000,
    async stop() {
      await Promise.all(loops.map(async (loop) => loop.stop()))
      summary.close()
    },
  }
}
