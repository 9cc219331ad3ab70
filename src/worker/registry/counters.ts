/**
 * What a process has done since it started, by table. It reports the sums in its row of the registry, together with its
 * presence, so that anybody who reads the registry knows what all processes do, without asking them.
 */
import { type Clock, systemClock } from '../../clock.ts'
import { messageOf, withoutUrlPasswords } from '../../errors.ts'
import { type Events, isDeadOutcome } from '../events.ts'

/** Plain data: it is sent to the heartbeat's thread, and stored in the registry. */
export interface Counters {
  /**
   * How long the process had been counting, by a clock that never goes back. Rates are computed from it: a report may be
   * written some seconds after the counters were read.
   */
  readonly uptimeMs: number
  /** By the name of the table, as `schema.table`. Events name the table, and a reaper need not know a worker of it. */
  readonly tables: Readonly<Record<string, TableCounters>>
}

/** What is counted for each table. */
const NO_SUMS = {
  /** Claims that found rows. */
  claims: 0,
  /** Rows claimed. */
  claimed: 0,
  /** Rows settled as done, or with another outcome that is progress: a transition of a reconciler, say. */
  done: 0,
  /** Rows settled as retry. */
  retried: 0,
  /** Rows that are dead: settled so, reaped at their last attempt, or given up by maintenance. */
  dead: 0,
  /** Rows whose handler threw or reported a failure. */
  failed: 0,
  fencedOff: 0,
  /** Rows that this process took back from expired leases and dead processes. */
  recovered: 0,
  /** Leases renewed, counted at each renewal. */
  renewed: 0,
}

type Sums = typeof NO_SUMS

export interface TableCounters extends Readonly<Sums> {
  /** Rows settled with outcomes other than done, retry and dead: the transitions of a reconciler, say. */
  readonly outcomes: Readonly<Record<string, number>>
  /** Rows that are done, by the time since they were written: those up to each of `LATENCY_BOUNDS_MS`, and those above. */
  readonly latency: readonly number[]
  /** The last failure of a handler. */
  readonly lastError?: { readonly at: string; readonly error: string }
}

export const NO_COUNTERS: Counters = { uptimeMs: 0, tables: {} }

/** From an event that is published at once to a delivery whose last retry succeeds. There is one count more than bounds. */
export const LATENCY_BOUNDS_MS: readonly number[] = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000,
  7_200_000, 43_200_000,
]

/** Outcomes of the applications after which the row waits for more: nothing new was observed, or a job waits for its chunks. */
const NOT_DONE: ReadonlySet<string> = new Set(['open', 'skipped', 'postponed', 'planned', 'waiting'])

/** So that the row of the registry stays small whatever a user names outcomes. */
const MAX_OUTCOMES = 50
const MAX_ERROR_LENGTH = 300

interface Counting extends Sums {
  readonly outcomes: Map<string, number>
  readonly latency: number[]
  lastError: { readonly at: number; readonly error: unknown } | undefined
}

/** Counts what the events of one process say. An event costs a few additions, and a row that is done one comparison or two. */
export class ProcessCounters {
  readonly #byTable = new Map<string, Counting>()
  readonly #offs: readonly (() => void)[]
  readonly #clock: Clock
  readonly #startedAt: number

  constructor(events: Events, worker: string, clock: Clock = systemClock) {
    this.#clock = clock
    this.#startedAt = clock.monotonicNow()
    /** The events may be those of several processes that run in one. */
    const ours =
      <Event extends { readonly worker: string; readonly table: string }>(
        count: (counting: Counting, event: Event) => void,
      ) =>
      (event: Event): void => {
        if (event.worker === worker) count(this.#of(event.table), event)
      }
    this.#offs = [
      events.onInternal(
        'claimed',
        ours((counting, { count }) => {
          counting.claims += 1
          counting.claimed += count
        }),
      ),
      events.onInternal(
        'settled',
        ours((counting, { outcome, ids, latenciesMs = [] }) => {
          countOutcome(counting, outcome, ids.length)
          for (const ms of latenciesMs) countLatency(counting.latency, ms)
        }),
      ),
      events.onInternal(
        'failed',
        ours((counting, { error }) => {
          counting.failed += 1
          counting.lastError = { at: Date.now(), error }
        }),
      ),
      events.onInternal(
        'fencedOff',
        ours((counting) => {
          counting.fencedOff += 1
        }),
      ),
      events.onInternal(
        'reaped',
        ours((counting, { outcome }) => {
          counting.recovered += 1
          if (outcome === 'dead') counting.dead += 1
        }),
      ),
      events.onInternal(
        'renewed',
        ours((counting, { count }) => {
          counting.renewed += count
        }),
      ),
      events.onInternal(
        'maintenanceRan',
        ours((counting, { dead }) => {
          counting.dead += dead
        }),
      ),
    ]
  }

  /** The sums up to now. They do not change afterwards. */
  read(): Counters {
    const tables = [...this.#byTable].map(([table, counting]) => [table, shown(counting)] as const)
    return {
      uptimeMs: Math.round(this.#clock.monotonicNow() - this.#startedAt),
      tables: Object.fromEntries(tables),
    }
  }

  close(): void {
    for (const off of this.#offs) off()
  }

  #of(table: string): Counting {
    const known = this.#byTable.get(table)
    if (known !== undefined) return known
    const counting: Counting = { ...NO_SUMS, outcomes: new Map(), latency: [], lastError: undefined }
    this.#byTable.set(table, counting)
    return counting
  }
}

function countOutcome(counting: Counting, outcome: string, rows: number): void {
  if (outcome === 'retry') counting.retried += rows
  else if (isDeadOutcome(outcome)) counting.dead += rows
  else if (!NOT_DONE.has(outcome)) counting.done += rows
  if (outcome === 'done' || outcome === 'retry' || outcome === 'dead') return
  const { outcomes } = counting
  const name = outcomes.has(outcome) || outcomes.size < MAX_OUTCOMES ? outcome : 'other'
  outcomes.set(name, (outcomes.get(name) ?? 0) + rows)
}

/** The array grows to the slowest bucket that was needed. */
function countLatency(latency: number[], ms: number): void {
  let bucket = 0
  while (bucket < LATENCY_BOUNDS_MS.length && ms > (LATENCY_BOUNDS_MS[bucket] ?? 0)) bucket += 1
  while (latency.length <= bucket) latency.push(0)
  latency[bucket] = (latency[bucket] ?? 0) + 1
}

function shown({ outcomes, latency, lastError, ...counts }: Counting): TableCounters {
  return {
    ...counts,
    outcomes: Object.fromEntries(outcomes),
    latency: [...latency],
    ...(lastError === undefined
      ? {}
      : { lastError: { at: new Date(lastError.at).toISOString(), error: errorText(lastError.error) } }),
  }
}

/** As the registry can store it. */
function errorText(error: unknown): string {
  const text = withoutUrlPasswords(messageOf(error)).slice(0, MAX_ERROR_LENGTH)
  return text.toWellFormed().replaceAll('\0', '\uFFFD')
}

const NO_TABLE_COUNTERS: TableCounters = { ...NO_SUMS, outcomes: {}, latency: [] }

/** The sums of several processes, and the newest of their errors. */
export function sumCounters(all: readonly TableCounters[]): TableCounters {
  return all.reduce((sum, each) => combined(sum, each, (a, b) => a + b), NO_TABLE_COUNTERS)
}

/** What was counted between two reports of a process. A sum that is smaller than before started anew. */
export function counterDifference(now: TableCounters, before: TableCounters | undefined): TableCounters {
  return combined(now, before ?? NO_TABLE_COUNTERS, (a, b) => (a < b ? a : a - b))
}

function combined(
  a: TableCounters,
  b: TableCounters,
  combine: (a: number, b: number) => number,
): TableCounters {
  const outcomes = new Set([...Object.keys(a.outcomes), ...Object.keys(b.outcomes)])
  const buckets = Math.max(a.latency.length, b.latency.length)
  const lastError = [a.lastError, b.lastError]
    .filter((each) => each !== undefined)
    .toSorted((one, other) => (one.at < other.at ? 1 : -1))[0]
  const sums = { ...NO_SUMS }
  // The keys of an object literal.
  for (const name of Object.keys(sums) as (keyof Sums)[]) sums[name] = combine(a[name], b[name])
  return {
    ...sums,
    outcomes: Object.fromEntries(
      [...outcomes].map((name) => [name, combine(a.outcomes[name] ?? 0, b.outcomes[name] ?? 0)]),
    ),
    latency: Array.from({ length: buckets }, (_, bucket) =>
      combine(a.latency[bucket] ?? 0, b.latency[bucket] ?? 0),
    ),
    ...(lastError === undefined ? {} : { lastError }),
  }
}

/**
 * The latency that this part of the rows did not exceed (0.5: the median), assuming that rows are spread evenly within
 * their bucket. Undefined: there are no rows.
 */
export function latencyQuantile(latency: readonly number[], part: number): number | undefined {
  const rows = latency.reduce((sum, count) => sum + count, 0)
  if (rows === 0) return undefined
  let rank = rows * part
  for (const [bucket, count] of latency.entries()) {
    if (count > 0 && rank <= count) {
      const from = LATENCY_BOUNDS_MS[bucket - 1] ?? 0
      // Of those above the last bound nothing more is known.
      const to = LATENCY_BOUNDS_MS[bucket] ?? from
      return from + ((to - from) * rank) / count
    }
    rank -= count
  }
  return LATENCY_BOUNDS_MS.at(-1)
}
