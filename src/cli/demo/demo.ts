/**
 * `leasehold up --demo`: a small shop with an outbox, webhooks to three customers, an import and payments, so that every
 * page of the dashboard has something to show. Some of it fails, as it does in real life.
 */
import { setMaxListeners } from 'node:events'
import type { Logger } from '../../observe/log.ts'
import type { Database } from '../../postgres/index.ts'
import type { Events, WorkDeclaration } from '../../worker/index.ts'
import { createLoop } from '../../worker/loop.ts'
import type { Part } from '../process.ts'
import { catalogue } from './catalogue.ts'
import { type Customers, customers } from './customers.ts'
import { operator } from './operator.ts'
import { payments } from './payments.ts'
import { refuseDeclaredRelay, shop, type Summary } from './shop.ts'

const STOP_WITHIN_MS = 5_000

/** Something that the demo shows: workers, and what gives them work. */
export interface DemoPart {
  readonly workers?: readonly WorkDeclaration[]
  /** Creates what the workers need, before they start. */
  readonly prepare?: (db: Database) => Promise<void>
  readonly loops: readonly DemoLoop[]
  /** Ends what the workers use, after them. */
  readonly close?: () => Promise<void>
}

export interface DemoLoop {
  readonly name: string
  readonly everyMs: number
  readonly work: (db: Database, stop: AbortSignal) => Promise<void>
}

export interface DemoOptions {
  readonly schema: string
  /** The workers of the config file. */
  readonly declared: readonly WorkDeclaration[]
  /** Encrypts the secrets of endpoints. Without it there are no webhooks. */
  readonly secretKey: string | undefined
}

export interface Demo {
  readonly workers: readonly WorkDeclaration[]
  readonly prepare: (db: Database) => Promise<void>
  /** What the workers use: it is stopped after them. */
  readonly surroundings: Part
  readonly start: (running: {
    readonly db: Database
    readonly events: Events
    readonly log: Logger
    readonly print: (text: string) => void
    /** Where the dashboard is, and whether it asks for a key. */
    readonly dashboard: { readonly url: string; readonly asksForKey: boolean } | undefined
  }) => Part
}

export function createDemo({ schema, declared, secretKey }: DemoOptions): Demo {
  refuseDeclaredRelay(declared)
  // Handlers that take seconds end at once when the demo does.
  const stopping = new AbortController()
  const { signal } = stopping
  // One for each handler that runs.
  setMaxListeners(0, signal)
  const selling = shop(schema, signal)
  const told: readonly Customers[] = secretKey === undefined ? [] : [customers(schema, secretKey, signal)]
  // A worker of the config keeps its name; the demo goes without that part.
  const isFree = ({ workers = [] }: DemoPart): boolean =>
    !workers.some(({ name }) => declared.some((other) => other.name === name))
  const others = [...told, catalogue(schema, signal), payments(schema, signal)].filter(isFree)
  const parts: readonly DemoPart[] = [...others, selling, operator(schema)]
  return {
    workers: parts.flatMap(({ workers = [] }) => workers),
    async prepare(db) {
      for (const part of parts) await part.prepare?.(db)
    },
    surroundings: {
      name: 'receivers of the demo',
      stopWithinMs: STOP_WITHIN_MS,
      async stop() {
        for (const part of parts) await part.close?.()
      },
    },
    start({ db, events, log, print, dashboard }) {
      const summary: Summary = { events, print, introduction: introduction(schema, dashboard) }
      const onError = (error: unknown): void => log.warn({ err: error }, 'the demo waits for the database')
      const loops = [...parts.flatMap((part) => part.loops), ...selling.summaryLoops(summary)].map(
        ({ name, everyMs, work }) =>
          createLoop({ name, work: async (stop) => work(db, stop), pauseMs: () => everyMs, onError }),
      )
      for (const loop of loops) loop.start()
      return {
        name: 'demo',
        stopWithinMs: STOP_WITHIN_MS,
        async stop() {
          stopping.abort()
          await Promise.all(loops.map(async (loop) => loop.stop()))
        },
      }
    },
  }
}

function introduction(
  schema: string,
  dashboard: { readonly url: string; readonly asksForKey: boolean } | undefined,
): string {
  const key = dashboard?.asksForKey === true ? ', with a key: npx leasehold keys create me --role admin' : ''
  const address = dashboard === undefined ? '' : `The dashboard is at ${dashboard.url}${key}\n\n`
  return `${address}A shop takes ten orders a second; each order writes four events into ${schema}.outbox.
In another terminal, in this directory, try:

  npx leasehold status
  npx leasehold outbox list --limit 5
  npx leasehold outbox list --status DEAD
  npx leasehold outbox replay --status DEAD --dry-run

`
}
