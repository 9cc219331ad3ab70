// Sync from a program: invoices of an account, month by month, from somebody's API into a table. docs/guides/sync.md shows what
// is between the marks, README.md the first of it; test/sync-examples.test.ts runs it. examples/sync is a whole program
// to start and to kill.
import { cancel, type Defined, progress, replay } from 'leasehold/sync'
import type { ClientBase } from 'pg'

// begin
import { startRuntime, type Database, type Events } from 'leasehold'
import { createSync } from 'leasehold/sync'

export interface Billing {
  monthsOf(account: string, signal: AbortSignal): AsyncIterable<string>
  invoicesOf(account: string, month: string, signal: AbortSignal): Promise<{ id: string; total: number }[]>
}

/** A chunk is a month. Its invoices and its checkpoint commit together, or neither does. */
export function billingSync(db: Database, billing: Billing) {
  const sync = createSync()
  const invoices = sync.define<{ month: string }>('invoices', {
    async *plan({ matrixId: account }, { signal, call }) {
      await call() // one call is reserved for each chunk; a plan reserves its own
      for await (const month of billing.monthsOf(account, signal)) yield { month }
    },
    async syncChunk({ matrixId: account, query: { month } }, { signal, settleIn }) {
      const found = await billing.invoicesOf(account, month, signal)
      await db.transaction(async (tx) => {
        await tx.query({
          text: `insert into shop.invoices (id, account, month, total)
            select i.id, $1, $2, i.total from jsonb_to_recordset($3) as i (id text, total int)
            on conflict (id) do update set total = excluded.total`,
          values: [account, month, JSON.stringify(found)],
        })
        await settleIn(tx, { rows: found.length })
      })
    },
    source: { name: 'billing-api', perSecond: 10 },
  })
  return { sync, invoices }
}

/** In any number of processes: together they sync each chunk once, with at most 10 calls per second. */
export async function startSync(databaseUrl: string, db: Database, billing: Billing, events: Events) {
  const workers = billingSync(db, billing).sync.runner()
  return startRuntime({ databaseUrl, migrate: true, workers, events })
}
// end

const HOUR_MS = 3_600_000

/** Asks for a job in a transaction of the caller's. */
export async function askFor(tx: ClientBase, invoices: Defined<unknown>, account: string) {
  // begin
  const { jobId, created } = await invoices.enqueue(tx, {
    matrixId: account,
    priority: 10,
    freshForMs: 24 * HOUR_MS,
  })
  // end
  return { jobId, created }
}

export async function howFar(db: Database, jobId: string) {
  // begin
  const { phase, chunks, rows, rowsPerSecond, timeLeftMs, working, failures } = await progress(db, jobId)
  // end
  return { phase, chunks, rows, rowsPerSecond, timeLeftMs, working, failures }
}

export async function cancelAndReplay(db: Database, jobId: string, principal: string) {
  // begin
  const cancelled = await cancel(db, { ids: [jobId], principal, reason: 'the API is in trouble' })
  const replayed = await replay(db, { ids: [jobId], principal, reason: 'it is well' })
  // end
  return { cancelled: cancelled.counts, replayed: replayed.counts }
}
