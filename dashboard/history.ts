/** The last hour in points, for charts: read once, and then continued by the live updates. */
import { answer, type Answer, api } from './api.ts'
import { createStore } from './store.ts'

export type HistoryPoints = Answer<'getHistory'>
export type TableHistory = HistoryPoints['tables'][number]

export interface History {
  /** In milliseconds. */
  readonly times: readonly number[]
  readonly tables: readonly TableHistory[]
}

export const history = createStore<History>({ times: [], tables: [] })

const KEPT_MS = 3_600_000

/** Reads what the server has. Called when a page with charts appears. */
export async function readHistory(signal: AbortSignal): Promise<void> {
  const points = await answer(api.GET('/history', { signal }))
  history.set({ times: points.times.map((time) => Date.parse(time)), tables: points.tables })
}

/** Adds points that follow those that are known. */
export function addToHistory(points: HistoryPoints): void {
  const known = history.get()
  const added = points.times.map((time) => Date.parse(time))
  // A page that has just read the history hears of its newest point as well.
  if ((added[0] ?? 0) <= (known.times.at(-1) ?? 0)) return
  const times = [...known.times, ...added]
  const newest = times.at(-1) ?? 0
  const first = times.findIndex((time) => time > newest - KEPT_MS)
  const names = new Set([...known.tables, ...points.tables].map(({ table }) => table))
  const tables = [...names].map((name) => {
    const before = known.tables.find(({ table }) => table === name)
    const after = points.tables.find(({ table }) => table === name)
    return join(name, before, known.times.length, after, added.length, first)
  })
  history.set({ times: times.slice(first), tables })
}

const COLUMNS = [
  'donePerSecond',
  'retriedPerSecond',
  'deadPerSecond',
  'fencedOff',
  'recovered',
  'latencyP50Ms',
  'latencyP99Ms',
  'pending',
  'oldestPendingMs',
] as const

/** A table that one of them does not have was unknown at those times. */
function join(
  table: string,
  before: TableHistory | undefined,
  knownCount: number,
  after: TableHistory | undefined,
  addedCount: number,
  first: number,
): TableHistory {
  const unknown = (count: number): null[] => Array.from({ length: count }, () => null)
  const column = (name: (typeof COLUMNS)[number]): (number | null)[] =>
    [...(before?.[name] ?? unknown(knownCount)), ...(after?.[name] ?? unknown(addedCount))].slice(first)
  const columns = Object.fromEntries(COLUMNS.map((name) => [name, column(name)]))
  // Every column of the table is there.
  return { table, workers: after?.workers ?? before?.workers ?? [], ...columns } as TableHistory
}
