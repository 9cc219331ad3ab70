/** The reconcilers of all processes, as the registry of workers knows them. */
import type { Queryable } from '../postgres/queryable.ts'
import { listWorkers, type Pause, storedSettings, sumCounters, type WorkerRow } from '../worker/index.ts'
import { RECONCILE } from './reconciler.ts'
import { OPEN, SKIPPED } from './table.ts'

/** A reconciler, which any number of processes may run. Its transitions and its observer are known to these only. */
export interface RegisteredReconciler {
  readonly name: string
  /** As `schema.table`. Processes of different versions may name different ones. */
  readonly tables: readonly string[]
  /** The processes that run it, or did so within the last day. */
  readonly processes: readonly ReconcilerProcess[]
  /** What these processes have done since each of them started. */
  readonly counters: ReconcilerCounters
  /** What is stored for all processes, in addition to what each was started with; null: nothing. */
  readonly stored: {
    readonly value: Readonly<Record<string, unknown>>
    readonly changedAt: Date
    readonly changedBy: string
  } | null
}

/** The counts of the cycle summary (REC-12), summed. */
export interface ReconcilerCounters {
  /** Claims that found rows. */
  readonly cycles: number
  readonly claimed: number
  /** Observations that have ended. */
  readonly scanned: number
  /** Transitions that were applied, by name: `pending->detected`. */
  readonly transitions: Readonly<Record<string, number>>
  /** Observations that were discarded, because the status or the lease had changed meanwhile. */
  readonly skipped: number
  /** Observations that failed; their rows stay open. */
  readonly errors: number
  readonly lastError: { readonly at: string; readonly error: string } | null
}

export interface ReconcilerProcess {
  /** The id of the worker process. */
  readonly worker: string
  readonly state: WorkerRow['state']
  readonly lastSeenAt: Date
  /** The settings that it was started with. */
  readonly declared: Readonly<Record<string, unknown>>
  /** Why it did not claim when the process was last seen; empty: it did. */
  readonly paused: readonly Pause[]
}

/** By their names. */
export async function listReconcilers(
  db: Queryable,
  { schema = 'leasehold' }: { readonly schema?: string } = {},
): Promise<RegisteredReconciler[]> {
  const workers = await listWorkers(db, schema)
  const settings = new Map((await storedSettings(db, schema)).map(({ name, ...stored }) => [name, stored]))
  const served = workers.flatMap((worker) =>
    Object.entries(worker.serves ?? {})
      .filter(([, { role }]) => role === RECONCILE)
      .map(([name, { table }]) => ({ name, table, worker })),
  )
  const names = [...new Set(served.map(({ name }) => name))].toSorted()
  return names.map((name) => {
    const own = served.filter((each) => each.name === name)
    return {
      name,
      tables: [...new Set(own.map(({ table }) => table))].toSorted(),
      processes: own.map(({ worker }) => processOf(worker, name)),
      counters: countersOf(own),
      stored: settings.get(name) ?? null,
    }
  })
}

function countersOf(
  own: readonly { readonly table: string; readonly worker: WorkerRow }[],
): ReconcilerCounters {
  const sums = sumCounters(own.flatMap(({ table, worker }) => worker.counters.tables[table] ?? []))
  const { [OPEN]: open = 0, [SKIPPED]: skipped = 0, ...transitions } = sums.outcomes
  const applied = Object.values(transitions).reduce((sum, count) => sum + count, 0)
  return {
    cycles: sums.claims,
    claimed: sums.claimed,
    scanned: applied + open + skipped + sums.retried + sums.fencedOff,
    transitions,
    skipped: skipped + sums.fencedOff,
    errors: sums.failed,
    lastError: sums.lastError ?? null,
  }
}

function processOf({ id, state, lastSeenAt, declared, paused }: WorkerRow, name: string): ReconcilerProcess {
  return {
    worker: id,
    state,
    lastSeenAt,
    declared: { ...declared?.[name] },
    paused: paused.filter(({ worker }) => worker === name),
  }
}
