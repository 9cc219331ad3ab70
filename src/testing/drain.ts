/** Runs workers until there is nothing left to do. */
import { LeaseholdError, messageOf, sentence } from '../errors.ts'
import { leasedCondition, type LeaseTable, tableName } from '../lease/table.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import { makeDue as makeJobsDue } from '../sync/sql.ts'
import { deadline, untilAborted } from '../timeout.ts'
import type { LogSource } from '../worker/context.ts'
import { Events, isDeadOutcome } from '../worker/events.ts'
import { startRuntime, type Runtime } from '../worker/process.ts'
import type { WorkDeclaration } from '../worker/work-declaration.ts'
import { makeDue, makeRetriesDue } from './time.ts'

export interface DrainOptions {
  /** The workers that process the rows: `relay(…)`, `dispatcher(…)`, `...sync.runner()`, `reconciler(…)`, or your own. */
  readonly workers: readonly WorkDeclaration<never>[]
  /** The schema of Leasehold's tables. Default `leasehold`. */
  readonly schema?: string
  /** `later`: a row that has failed waits for its retry. `now`: it is tried again at once. Default `later`. */
  readonly retries?: 'later' | 'now'
  /** How often a row may be tried; a row that is tried more often fails the drain. Default 50. */
  readonly maxAttempts?: number
  /** How many rows may be claimed; more of them are taken for an endless loop. Default 10,000. */
  readonly maxRows?: number
  /** How long nothing may happen while a row is in flight. Default 4,000, less than the time most test runners give a test. */
  readonly timeoutMs?: number
  /** Where handlers log. Default: nowhere. */
  readonly log?: LogSource
}

const OPTIONS = namesOf<DrainOptions>({
  workers: true,
  schema: true,
  retries: true,
  maxAttempts: true,
  maxRows: true,
  timeoutMs: true,
  log: true,
})

/** What a drain has done. */
export interface Drained {
  /** How often a row was settled with an outcome other than `retry` and dead. */
  readonly settled: number
  /** How many attempts have failed. */
  readonly failed: number
  /** How many rows are dead now that were not before. */
  readonly dead: number
  /** How often a row was settled with each outcome. */
  readonly outcomes: Readonly<Record<string, number>>
  /** The failed attempts, in their order. */
  readonly failures: readonly DrainFailure[]
  /** How many rows of the workers' tables are still unfinished: they wait for a retry, a later time or another row. */
  readonly unfinished: number
}

export interface DrainFailure {
  /** The table's qualified name. */
  readonly table: string
  readonly id: string
  readonly attempt: number
  /** What became of the row: `retry` or `dead`, for example. */
  readonly outcome: string
  /** What the handler threw. */
  readonly error: unknown
}

/**
 * Processes everything that is due now, and what becomes due by that, and resolves when nothing is due and nothing is in
 * flight. Expired leases are reaped first. A handler that fails does not make it reject: see `failures`. It rejects with
 * DRAIN_INCOMPLETE if it would not come to an end.
 */
export async function drain(db: { readonly url: string }, options: DrainOptions): Promise<Drained> {
  refuseUnknownOptions('drain', options, OPTIONS)
  const { workers, schema = 'leasehold', retries = 'later', log = false } = options
  const journal = new Journal(options)
  const own = openDatabase({ url: db.url, applicationName: 'leasehold test', maxConnections: 1 })
  try {
    const reaped = journal.events.next('reaperRan')
    const runtime = await startRuntime({
      databaseUrl: db.url,
      schema,
      workers: workers.map(onlyProcessing),
      events: journal.events,
      log,
      heartbeat: 'inline',
      listen: false,
      eviction: false,
    })
    try {
      await journal.watch(runtime, async () => {
        await reaped
        await untilNothingIsDue(runtime, own, journal, { workers, schema, retries })
      })
    } finally {
      await runtime.stop()
    }
    return journal.result(await countUnfinished(own, workers))
  } finally {
    await own.close()
  }
}

/** Without periodic work on the table, such as retention, and without a long wait for a handler that hangs. */
function onlyProcessing(declaration: WorkDeclaration<never>): WorkDeclaration<never> {
  const { maintenance: _, probe: __, ...rest } = declaration
  return { ...rest, settings: { ...declaration.settings, shutdownTimeoutMs: 0 } }
}

async function untilNothingIsDue(
  runtime: Runtime,
  db: Database,
  journal: Journal,
  { workers, schema, retries }: Required<Pick<DrainOptions, 'workers' | 'schema' | 'retries'>>,
): Promise<void> {
  for (;;) {
    // A runner asks every second which jobs have no open chunk any more.
    for (const { table, groups } of workers)
      if (table.schema === schema && table.name === 'sync_jobs')
        await db.query(makeJobsDue(schema, groups?.names ?? [], []))
    const { claims } = journal
    const wasResting = runtime.inFlight === 0
    await Promise.all(workers.map(async ({ name }) => runtime.worker(name).idle()))
    // What was in flight, or was claimed meanwhile, may have written rows that a worker scanned for too early.
    if (!wasResting || journal.claims !== claims) continue
    const due = retries === 'now' ? await retryAtOnce(db, workers, journal) : 0
    if (due === 0) return
  }
}

async function retryAtOnce(
  db: Database,
  workers: DrainOptions['workers'],
  journal: Journal,
): Promise<number> {
  let due = 0
  for (const table of tablesOf(workers)) {
    due += await makeRetriesDue(db, table)
    // A table may count no attempts.
    const ids = journal.takeRetries(tableName(table))
    if (ids.length > 0) due += await makeDue(db, { table, ids })
  }
  return due
}

/** By name, because several workers may share a table. */
function tablesOf(workers: DrainOptions['workers']): readonly LeaseTable[] {
  return [...new Map(workers.map(({ table }) => [tableName(table), table])).values()]
}

async function countUnfinished(db: Database, workers: DrainOptions['workers']): Promise<number> {
  let count = 0
  for (const table of tablesOf(workers)) {
    const leased = leasedCondition(table)
    const { rows } = await db.query<{ count: number }>({
      text: `select count(*)::int as count from ${quoteQualified(table.schema, table.name)}
where (${table.claimable})${leased === undefined ? '' : ` or (${leased})`}`,
    })
    count += rows[0]?.count ?? 0
  }
  return count
}

/** What happens during a drain, and whether that is too much, or nothing. */
class Journal {
  readonly events = new Events()
  readonly #options: DrainOptions
  readonly #outcomes = new Map<string, number>()
  readonly #failures: DrainFailure[] = []
  readonly #attempts = new Map<string, number>()
  /** By table: the rows that wait for a retry. */
  readonly #retries = new Map<string, Set<string>>()
  readonly #abort = new AbortController()
  #reapedDead = 0
  #trouble: unknown
  #onProgress = (): void => undefined
  claims = 0

  constructor(options: DrainOptions) {
    this.#options = options
    const { maxAttempts = 50, maxRows = 10_000 } = options
    const { events } = this
    events.on('claimed', ({ count, table }) => {
      this.claims += count
      if (this.claims > maxRows)
        this.#giveUp(`More than ${maxRows} rows were claimed, the last of them from ${table}.`, 'maxRows')
      this.#onProgress()
    })
    events.on('started', ({ table, id }) => {
      const attempts = (this.#attempts.get(`${table} ${id}`) ?? 0) + 1
      this.#attempts.set(`${table} ${id}`, attempts)
      if (attempts > maxAttempts)
        this.#giveUp(
          `The row ${id} of ${table} was tried ${maxAttempts} times and is still due.`,
          'maxAttempts',
        )
    })
    events.on('failed', ({ table, id, attempt, outcome, error }) => {
      this.#failures.push({ table, id, attempt, outcome, error })
    })
    events.on('settled', ({ table, outcome, ids }) => {
      this.#outcomes.set(outcome, (this.#outcomes.get(outcome) ?? 0) + ids.length)
      if (outcome === 'retry') this.#addRetries(table, ids)
      this.#onProgress()
    })
    events.on('reaped', ({ table, id, outcome }) => {
      if (outcome === 'dead') this.#reapedDead += 1
      else this.#addRetries(table, [id])
      this.#onProgress()
    })
    for (const type of ['trouble', 'databaseLost', 'dataError', 'reaperFailed'] as const)
      events.on(type, ({ error }) => (this.#trouble ??= error))
  }

  /** The rows of this table that wait for a retry, each once. */
  takeRetries(table: string): string[] {
    const ids = [...(this.#retries.get(table) ?? [])]
    this.#retries.delete(table)
    return ids
  }

  /** Rejects when the drain would not come to an end. */
  async watch(runtime: Runtime, work: () => Promise<void>): Promise<void> {
    const { timeoutMs = 4_000 } = this.#options
    const expire = (): void =>
      this.#giveUp(`Nothing has happened for ${timeoutMs} ms. ${stateOf(runtime)}`, 'timeoutMs')
    let limit = deadline(timeoutMs, expire)
    this.#onProgress = () => {
      limit.cancel()
      limit = deadline(timeoutMs, expire)
    }
    try {
      await untilAborted(this.#abort.signal, work)
    } finally {
      this.#onProgress = () => undefined
      limit.cancel()
    }
  }

  result(unfinished: number): Drained {
    const entries = [...this.#outcomes]
    const sum = (fits: (outcome: string) => boolean): number =>
      entries.reduce((total, [outcome, count]) => total + (fits(outcome) ? count : 0), 0)
    return {
      settled: sum((outcome) => outcome !== 'retry' && !isDeadOutcome(outcome)),
      failed: this.#failures.length,
      dead: sum(isDeadOutcome) + this.#reapedDead,
      outcomes: Object.fromEntries(entries),
      failures: this.#failures,
      unfinished,
    }
  }

  #addRetries(table: string, ids: readonly string[]): void {
    const known = this.#retries.get(table) ?? new Set<string>()
    this.#retries.set(table, known)
    for (const id of ids) known.add(id)
  }

  #giveUp(what: string, option: string): void {
    const cause = this.#trouble ?? this.#failures.at(-1)?.error
    const last = cause === undefined ? '' : ` The last error: ${sentence(messageOf(cause))}`
    this.#abort.abort(
      new LeaseholdError('DRAIN_INCOMPLETE', `${what}${last}`, {
        remedy: `Make sure that the handlers return and that rows come to an end, or raise ${option}.`,
        ...(cause === undefined ? {} : { cause }),
      }),
    )
  }
}

function stateOf({ inFlight, paused }: Runtime): string {
  const pauses = paused.map(
    ({ worker, reason, error }) =>
      `${worker} is paused (${reason}${error === undefined ? '' : `: ${error}`})`,
  )
  return [`Rows in flight: ${inFlight}`, ...pauses].join('; ') + '.'
}
