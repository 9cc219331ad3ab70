/** The reconcilers of all processes, as the registry of workers knows them. */
import type { Queryable } from '../postgres/queryable.ts'
import { listWorkers, type Pause, storedSettings, type WorkerRow } from '../worker/index.ts'
import { RECONCILE } from './reconciler.ts'

/** A reconciler, which any number of processes may run. Its transitions and its observer are known to these only. */
export interface RegisteredReconciler {
  readonly name: string
  /** As `schema.table`. Processes of different versions may name different ones. */
  readonly tables: readonly string[]
  /** The processes that run it, or did so within the last day. */
  readonly processes: readonly ReconcilerProcess[]
  /** What is stored for all processes, in addition to what each was started with; null: nothing. */
  readonly stored: {
    readonly value: Readonly<Record<string, unknown>>
    readonly changedAt: Date
    readonly changedBy: string
  } | null
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
      stored: settings.get(name) ?? null,
    }
  })
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
