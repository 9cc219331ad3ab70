/** Whether this process can do its work: the checks that `/readyz` runs, and how they are run. */
import { messageOf } from '../errors.ts'
import type { Database } from '../postgres/database.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import { readLedger, readMigrations, type LedgerRow } from '../postgres/migrate.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { within } from '../timeout.ts'
import type { Runtime, RunState } from '../worker/process.ts'
import { unreapedTables } from '../worker/registry/registry.ts'

/** One thing that must be true for this process to do its work. */
export interface Check {
  readonly name: string
  /** Returns what it found, or throws what is wrong. */
  run(): Promise<string>
}

export interface CheckResult {
  readonly name: string
  readonly ok: boolean
  readonly detail: string
}

export interface Health {
  /** Runs every check at once; never rejects, and never takes longer than the timeout. */
  examine(): Promise<readonly CheckResult[]>
}

const CHECK_TIMEOUT_MS = 3_000

/** A connection that does not answer is given up after this, so that the next check gets a new one. */
const QUERY_TIMEOUT_MS = 2_000

export interface WorkerHealthOptions {
  /** Connections for the checks alone, so that busy workers do not delay them. Two are enough. */
  readonly db: Database
  /** The worker process of this program; undefined until `startRuntime` has resolved. */
  readonly runtime: () => Pick<Runtime, 'state' | 'tables' | 'paused'> | undefined
  /** Default `leasehold`. */
  readonly schema?: string
}

/**
 * Whether a process that calls `startRuntime` can do its work, for its readiness probe. The checks are those of `/readyz`:
 * the database answers, its schema is current, the workers run, and somebody reaps their tables.
 *
 * ```ts
 * const health = workerHealth({ db: openDatabase({ url, maxConnections: 2 }), runtime: () => runtime })
 * const isReady = (await health.examine()).every(({ ok }) => ok)
 * ```
 */
export function workerHealth(options: WorkerHealthOptions): Health {
  return createHealth(workerChecks(options))
}

export function workerChecks({ db, runtime, schema = 'leasehold' }: WorkerHealthOptions): Check[] {
  return [
    databaseAnswers(db),
    migrationsCurrent(db, schema),
    workersRun(() => runtime()?.state ?? 'starting'),
    claimsRows(() => [runtime() ?? []].flat()),
    // Which tables there are is known once the workers have started.
    { name: 'reaper', run: async () => reaperRuns(db, schema, runtime()?.tables ?? []).run() },
  ]
}

/** A check that is still running is joined instead of started once more, so that it costs one connection at most. */
export function createHealth(checks: readonly Check[], timeoutMs = CHECK_TIMEOUT_MS): Health {
  const running = new Map<Check, Promise<CheckResult>>()

  async function runOrJoin(check: Check): Promise<CheckResult> {
    const present = running.get(check)
    if (present !== undefined) return present
    const started = resultOf(check).finally(() => running.delete(check))
    running.set(check, started)
    return started
  }

  async function examineOne(check: Check): Promise<CheckResult> {
    const result = runOrJoin(check)
    if (await within(timeoutMs, result)) return result
    return { name: check.name, ok: false, detail: `no answer within ${timeoutMs} ms` }
  }

  return { examine: async () => Promise.all(checks.map(examineOne)) }
}

async function resultOf(check: Check): Promise<CheckResult> {
  try {
    return { name: check.name, ok: true, detail: await check.run() }
  } catch (error) {
    return { name: check.name, ok: false, detail: messageOf(error) }
  }
}

export function databaseAnswers(db: Database): Check {
  return {
    name: 'database',
    async run() {
      await inShortTransaction(db, async (tx) => tx.query({ text: 'select 1' }))
      return 'answers'
    },
  }
}

/** A database that is ahead passes: during a rolling deployment the older release goes on working. */
export function migrationsCurrent(db: Database, schema: string): Check {
  return {
    name: 'migrations',
    async run() {
      const files = await readMigrations()
      const ledger = await inShortTransaction(db, async (tx) => readLedgerIfAny(tx, schema))
      const applied = new Set(ledger.map(({ version }) => version))
      const missing = files.filter(({ version }) => !applied.has(version)).map(({ file }) => file)
      if (missing.length > 0) {
        const have = missing.length === 1 ? 'has' : 'have'
        throw new Error(
          `${missing.join(', ')} ${have} not been applied to the schema ${schema}: run \`leasehold migrate\``,
        )
      }
      const ahead = ledger.length - files.length
      return ahead > 0 ? `${ahead} ahead of this release` : `at version ${files.length}`
    },
  }
}

/** The table is looked up first, because reading one that does not exist would make the transaction fail. */
async function readLedgerIfAny(tx: Queryable, schema: string): Promise<readonly LedgerRow[]> {
  const { rows } = await tx.query<{ present: boolean }>({
    text: 'select to_regclass($1) is not null as present',
    values: [quoteQualified(schema, 'migrations')],
  })
  return rows[0]?.present === true ? readLedger(tx, schema) : []
}

/** The workers of this process: not ready before they run, and not ready once they have been told to stop. */
export function workersRun(state: () => RunState): Check {
  return {
    name: 'workers',
    async run() {
      const now = state()
      if (now !== 'running') throw new Error(now)
      return Promise.resolve(now)
    },
  }
}

/**
 * Whether the workers of this process claim rows, and if not, why: a broker that is down, an operator's pause. It never
 * fails, because neither a restart of this process nor other traffic would help.
 */
export function claimsRows(runtimes: () => readonly Pick<Runtime, 'paused'>[]): Check {
  return {
    name: 'claiming',
    async run() {
      const pauses = runtimes().flatMap(({ paused }) => paused)
      const texts = pauses.map(
        ({ table, reason, error }) =>
          `${table} is paused (${reason}${error === undefined ? '' : `: ${error}`})`,
      )
      return Promise.resolve(texts.length === 0 ? 'not paused' : texts.join('; '))
    },
  }
}

/** RULE-020-020: without a reaper in any process, nobody takes back the leases of workers that die. Tables: `schema.table`. */
export function reaperRuns(db: Database, schema: string, tables: readonly string[]): Check {
  return {
    name: 'reaper',
    async run() {
      const unreaped = await tablesWithoutReaper(db, schema, tables)
      if (unreaped.length === 0) return 'alive'
      throw new Error(
        `no reaper is alive for ${unreaped.join(', ')}: run \`leasehold work\`, or \`leasehold work --only reaper\``,
      )
    },
  }
}

/** Those of the tables for which no reaper is alive in any process. */
export async function tablesWithoutReaper(
  db: Database,
  schema: string,
  tables: readonly string[],
): Promise<string[]> {
  return inShortTransaction(db, async (tx) => unreapedTables(tx, schema, tables))
}

async function inShortTransaction<Value>(
  db: Database,
  work: (tx: Queryable) => Promise<Value>,
): Promise<Value> {
  return db.transaction(work, { queryTimeoutMs: QUERY_TIMEOUT_MS })
}
