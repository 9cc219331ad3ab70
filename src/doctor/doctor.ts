/**
 * `examine` looks for everything that keeps Leasehold from working well in a database, and says what to do about it. It
 * only reads. Each check takes a bounded time, and one that fails is a finding of its own and does not stop the others.
 */
import { isLeaseholdError, LeaseholdError, messageOf, sentence, withoutUrlPasswords } from '../errors.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import { outboxTable } from '../outbox/table.ts'
import { OUTBOX } from '../outbox/relay.ts'
import { withCatalogPath } from '../postgres/catalog-path.ts'
import type { Database } from '../postgres/database.ts'
import { hasTables } from '../postgres/migrate.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { chunkTable, jobTable } from '../sync/table.ts'
import { SYNC, SYNC_JOBS } from '../sync/runner.ts'
import { within } from '../timeout.ts'
import { packageVersion } from '../package-files.ts'
import { WEBHOOKS } from '../webhooks/dispatcher/dispatcher.ts'
import { readSecretKeys } from '../webhooks/endpoints/secrets.ts'
import { webhookTable } from '../webhooks/table.ts'
import type { WorkDeclaration } from '../worker/index.ts'
import {
  type Check,
  type Examination,
  type Finding,
  NotApplicable,
  THRESHOLDS,
  type Thresholds,
  type WorkedTable,
} from './check.ts'
import { ROW_CHECKS } from './rows.ts'
import { SCHEMA_CHECKS } from './schema/drift.ts'
import { SERVER_CHECKS } from './server.ts'
import { VACUUM_CHECKS } from './vacuum.ts'
import { WORKER_CHECKS } from './workers.ts'

export type { Finding, Severity, Thresholds } from './check.ts'

export interface ExamineOptions {
  /** The schema of the tables. Default `leasehold`. */
  readonly schema?: string
  /** The workers of the user: their tables are examined as well. */
  readonly workers?: readonly WorkDeclaration[]
  /** The key that encrypts the secrets of endpoints. Without it they are not examined. */
  readonly secretKey?: string
  /** The URLs that workers are given, to see whether a pooler stands before the connection that listens. */
  readonly databaseUrl?: string
  readonly listenUrl?: string
  /** The server is one that Leasehold has started for itself. Default false. */
  readonly embedded?: boolean
  /** How long all checks together may take. Default 60,000. */
  readonly timeoutMs?: number
  readonly thresholds?: Partial<Thresholds>
  /** The ids of checks that are not made. */
  readonly ignore?: readonly string[]
  /** The clock of this process, in milliseconds since 1970. */
  readonly now?: () => number
}

const OPTIONS = namesOf<ExamineOptions>({
  schema: true,
  workers: true,
  secretKey: true,
  databaseUrl: true,
  listenUrl: true,
  embedded: true,
  timeoutMs: true,
  thresholds: true,
  ignore: true,
  now: true,
})

export interface CheckReport {
  readonly id: string
  /** What was examined. */
  readonly title: string
  /** It ran, or does not apply, and found nothing. */
  readonly ok: boolean
  /** Why it does not apply here. */
  readonly skipped?: string
  /** What this database role may not see. */
  readonly notSeen?: string
  /** What is worth knowing, and may be as it is on purpose. */
  readonly remarks?: readonly string[]
}

export interface Diagnosis {
  /** Errors first, otherwise in the order of the checks. */
  readonly findings: readonly Finding[]
  readonly checks: readonly CheckReport[]
}

/** Every check, in the order in which they are run. docs/operations/doctor.md describes them. */
export const CHECKS: readonly Check[] = [
  ...SCHEMA_CHECKS,
  ...SERVER_CHECKS,
  ...VACUUM_CHECKS,
  ...WORKER_CHECKS,
  ...ROW_CHECKS,
]

const DEFAULT_TIMEOUT_MS = 60_000
/** Of one statement, and of one check. */
const STATEMENT_TIMEOUT_MS = 5_000
const CHECK_TIMEOUT_MS = 15_000

/** Examines a database. Throws only if it cannot be reached. */
export async function examine(db: Database, options: ExamineOptions = {}): Promise<Diagnosis> {
  refuseUnknownOptions('examine', options, OPTIONS)
  const { schema = 'leasehold', timeoutMs = DEFAULT_TIMEOUT_MS, ignore = [] } = options
  refuseUnknownChecks(ignore)
  const catalog = withCatalogPath(db)
  const read = reader(catalog)
  const exists = await read(async (tx) => hasTables(tx, schema))
  const notSeen: string[] = []
  const remarks: string[] = []
  const examination: Examination = {
    db: catalog,
    schema,
    thresholds: { ...THRESHOLDS, ...options.thresholds },
    read,
    own: { db, read: reader(db) },
    once: memory(),
    notSeen: (what) => void notSeen.push(what),
    remark: (what) => void remarks.push(what),
    ownTables: ownTables(schema),
    declaredTables: (options.workers ?? []).map(workedTable),
    secretKeys: options.secretKey === undefined ? undefined : readSecretKeys(options.secretKey, {}),
    listenUrl: options.listenUrl ?? options.databaseUrl,
    hasListenUrl: options.listenUrl !== undefined,
    embedded: options.embedded ?? false,
    version: packageVersion(),
    now: options.now ?? Date.now,
  }
  const deadline = performance.now() + timeoutMs
  const findings: Finding[] = []
  const checks: CheckReport[] = []
  for (const check of CHECKS) {
    notSeen.length = 0
    remarks.length = 0
    const result = ignore.includes(check.id)
      ? { findings: [], skipped: 'it is ignored' }
      : await resultOf(check, examination, { exists, leftMs: deadline - performance.now() })
    findings.push(...result.findings)
    const { id, title } = check
    const seen = notSeen.length === 0 ? {} : { notSeen: notSeen.join('; ') }
    const skipped = result.skipped === undefined ? {} : { skipped: result.skipped }
    const remarked = remarks.length === 0 ? {} : { remarks: [...remarks] }
    checks.push({ id, title, ok: result.findings.length === 0, ...skipped, ...seen, ...remarked })
  }
  const bySeverity = (severity: string): Finding[] => findings.filter((each) => each.severity === severity)
  return { findings: [...bySeverity('error'), ...bySeverity('warning')], checks }
}

function refuseUnknownChecks(ignore: readonly string[]): void {
  const ids = CHECKS.map(({ id }) => id)
  const unknown = ignore.find((id) => !ids.includes(id))
  if (unknown === undefined) return
  throw new LeaseholdError('SETTING_INVALID', `ignore has ${JSON.stringify(unknown)}, which is no check.`, {
    remedy: `Use some of: ${ids.join(', ')}.`,
  })
}

interface CheckResult {
  readonly findings: readonly Finding[]
  readonly skipped?: string
}

async function resultOf(
  check: Check,
  examination: Examination,
  { exists, leftMs }: { readonly exists: boolean; readonly leftMs: number },
): Promise<CheckResult> {
  if (check.needs === 'tables' && !exists)
    return { findings: [], skipped: `the schema ${examination.schema} has no tables of Leasehold` }
  if (leftMs <= 0) return notRun(check, 'The other checks took all of the time.')
  const timeoutMs = Math.min(CHECK_TIMEOUT_MS, leftMs)
  try {
    const running = check.run(examination)
    // It may fail after it was given up.
    running.catch(() => undefined)
    if (!(await within(timeoutMs, running)))
      return notRun(check, `It had not ended after ${Math.round(timeoutMs)} ms.`)
    return { findings: (await running).map((problem) => ({ check: check.id, ...problem })) }
  } catch (error) {
    if (error instanceof NotApplicable) return { findings: [], skipped: error.message }
    return notRun(check, withoutUrlPasswords(sentence(messageOf(error))), error)
  }
}

function notRun({ id, title }: Check, reason: string, error?: unknown): CheckResult {
  // The message of such an error ends with its remedy.
  const known = error instanceof LeaseholdError ? error.remedy : undefined
  const text = known === undefined ? reason : reason.replace(known, '').trim()
  const remedy =
    known ??
    (isLeaseholdError(error)
      ? 'Remove the cause, and examine once more.'
      : 'Examine once more. If it fails again, the message says why.')
  return {
    findings: [
      { check: id, severity: 'warning', text: `The check could not be made (${title}). ${text}`, remedy },
    ],
  }
}

function memory(): Examination['once'] {
  const made = new Map<string, Promise<unknown>>()
  return async <Made>(name: string, make: () => Promise<Made>): Promise<Made> => {
    const known = made.get(name) ?? make()
    made.set(name, known)
    // Each name stands for one function, and so for one type.
    return known as Promise<Made>
  }
}

/**
 * Read-only and READ COMMITTED, whatever the role's defaults are. Along an index wherever one serves: without statistics
 * PostgreSQL takes many rows for leased, and would rather read the table until it meets one.
 */
function reader(db: Database): Examination['read'] {
  return async <Found>(work: (tx: Queryable) => Promise<Found>): Promise<Found> =>
    db.transaction(
      async (tx) => {
        await tx.query({
          text: `set transaction isolation level read committed, read only;
set local statement_timeout to ${STATEMENT_TIMEOUT_MS};
set local enable_seqscan to off`,
        })
        return work(tx)
      },
      { queryTimeoutMs: STATEMENT_TIMEOUT_MS + 1_000 },
    )
}

function ownTables(schema: string): WorkedTable[] {
  return [
    { table: outboxTable({ schema }), worker: OUTBOX },
    { table: webhookTable({ schema }), worker: WEBHOOKS },
    { table: jobTable({ schema }), worker: SYNC_JOBS },
    { table: chunkTable({ schema }), worker: SYNC },
  ]
}

function workedTable({ name, table, maintenance }: WorkDeclaration): WorkedTable {
  return {
    table,
    worker: name,
    retention: maintenance === undefined ? 'off' : (maintenance.settings ?? {}),
  }
}
