import { inspect } from 'node:util'
import { isLeaseholdError, LeaseholdError } from '../errors.ts'
import { type LeaseTable, type Sql, tableName } from '../lease/table.ts'
import { payloadText } from '../messages/json.ts'
import { checkText, MAX_PAYLOAD_BYTES } from '../messages/validate.ts'
import { namesOf, refuseUnknownOptions } from '../nearest.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { HandlerContext, HandlerLog } from '../worker/context.ts'
import { atATime } from '../worker/waiting.ts'
import { createLoop } from '../worker/loop.ts'
import { errorText, type Outcome, SaturatedError, settleAs } from '../worker/completion/outcome.ts'
import { DECLARED_SETTING_NAMES, type DeclaredSettings } from '../worker/settings.ts'
import { MAX_TIMER_MS, untilAborted } from '../timeout.ts'
import type { WorkDeclaration, WorkerEnvironment } from '../worker/work-declaration.ts'
import { Summary } from './summary.ts'
import { argumentOf, OPEN, reconciledTable, SKIPPED } from './table.ts'
import { allowedTransitions, type Transition, type Transitions } from './transitions.ts'

export interface ObserveContext {
  readonly id: string
  /** The fencing token, for whatever the observer writes elsewhere. */
  readonly token: bigint
  /** Fires when the lease is lost, the observation has timed out, or the reconciler has to stop. */
  readonly signal: AbortSignal
  readonly log: HandlerLog
}

/** The result of an observation: the status that the row should have, and values for columns that `values` names. */
export type Answer<Status extends string = string> =
  | Status
  | { readonly status: Status; readonly values?: Readonly<Record<string, unknown>> }

/** A transition that was applied. */
export interface Applied<Row, Status extends string = string> {
  readonly row: Row
  readonly from: Status
  readonly to: Status
}

export interface ReconcilerOptions<Row extends object, Status extends string> {
  /** The table, with the lease that was added to it. The reconciler replaces its outcomes. */
  readonly table: LeaseTable
  readonly transitions: Transitions<Status>
  /** Observes what a row stands for. `undefined`: nothing new; the row stays open and is observed later. */
  readonly observe: (row: Row, context: ObserveContext) => Promise<Answer<NoInfer<Status>> | undefined | null>
  /** The column with the status. Default `status`. */
  readonly status?: string
  /** Columns that an answer may contain values for, with their SQL types: `{ tx_hash: 'text' }`. */
  readonly values?: Readonly<Record<string, Sql>>
  /** Runs in the transaction of a transition, if it applied: enqueue an event, send a webhook. If it throws, both are rolled back. */
  readonly onApplied?: (tx: Queryable, applied: Applied<Row, NoInfer<Status>>) => Promise<void>
  /** How long a row that stays open waits for its next observation. Default 10000. */
  readonly everyMs?: number
  /** How long one observation may take. Default: three leases, which is the limit for every row. */
  readonly timeoutMs?: number
  /** The name for `--only`; `--only reconcile` selects all reconcilers. Default `reconcile`. */
  readonly name?: string
  readonly settings?: DeclaredSettings
  readonly bucket?: number
}

/** The name of a reconciler that is given none. */
export const RECONCILE = 'reconcile'

/** REC-09: without prefetch, nothing is claimed before there is a slot for it. */
const SETTINGS = { pollMs: 5_000, batch: 100, concurrency: 10, prefetch: 0, claimLoops: 2 } as const
/** Transactions with `onApplied` at once: fewer than the pool has connections. */
const MAX_TRANSACTIONS = 5
const DEFAULT_EVERY_MS = 10_000

/** The worker of a table of yours: hand it to `startRuntime`, or list it under `workers` in `leasehold.config`. */
export function reconciler<Row extends object, const Status extends string>(
  options: ReconcilerOptions<Row, Status>,
): WorkDeclaration<Row> {
  refuseInvalidOptions(options)
  const { status = 'status', values = {}, name = RECONCILE, settings, bucket } = options
  const transitions = allowedTransitions(options.transitions)
  const table = reconciledTable(options.table, { status, transitions, values })
  const work = new Reconciliation<Row, Status>(options, status, transitions, table)
  return {
    name,
    role: RECONCILE,
    table,
    handle: async (context) => work.reconcile(context),
    settings: { ...SETTINGS, ...settings },
    ...(bucket === undefined ? {} : { bucket }),
    open: async (environment) => work.open(environment),
    close: async () => work.close(),
  }
}

class Reconciliation<Row extends object, Status extends string> {
  readonly #options: ReconcilerOptions<Row, Status>
  readonly #status: string
  readonly #transitions: readonly Transition[]
  readonly #table: LeaseTable
  readonly #transaction = atATime(MAX_TRANSACTIONS)
  #db: Database | undefined
  #summary: Summary | undefined
  #stopSummaries: () => Promise<void> = async () => Promise.resolve()

  constructor(
    options: ReconcilerOptions<Row, Status>,
    status: string,
    transitions: readonly Transition[],
    table: LeaseTable,
  ) {
    this.#options = options
    this.#status = status
    this.#transitions = transitions
    this.#table = table
  }

  async open({ db, worker, events, log, settings }: WorkerEnvironment): Promise<void> {
    const summary = new Summary({
      table: this.#table,
      transitions: this.#transitions,
      events,
      worker,
      log,
    })
    this.#db = db
    this.#summary = summary
    const loop = createLoop({
      name: 'reconcile summary',
      work: async () => Promise.resolve(summary.log()),
      pauseMs: () => settings().pollMs,
      onError: (error) => events.emit('trouble', { worker, what: 'logging the reconcile summary', error }),
    })
    loop.start()
    // The current pause has the length of the old interval.
    const unsubscribe = events.onInternal('settingsChanged', (changed) => {
      if (changed.worker === worker && changed.table === tableName(this.#table)) loop.hasten()
    })
    // REC-11: also in a process that has no log of its own.
    const report = (message: string): void => {
      const { pollMs, leaseMs, concurrency } = settings()
      const { name: role = RECONCILE } = this.#options
      log.info({ worker, role, table: tableName(this.#table), pollMs, leaseMs, concurrency }, message)
    }
    report('started')
    this.#stopSummaries = async () => {
      unsubscribe()
      await loop.stop()
      summary.close()
      report('stopped')
    }
    return Promise.resolve()
  }

  async close(): Promise<void> {
    await this.#stopSummaries()
  }

  async reconcile(context: HandlerContext<Row>): Promise<Outcome | undefined> {
    this.#summary?.count('scanned')
    try {
      return await this.#apply(context, await this.#observe(context))
    } catch (error) {
      // The lease is lost, the reconciler has to stop, or the outside has no room. None of these is an observer error.
      if (context.signal.aborted || error instanceof SaturatedError) throw error
      this.#summary?.count('errors')
      return this.#stayOpen({ error: errorText(error) })
    }
  }

  async #observe({ row, id, token, signal, log }: HandlerContext<Row>): Promise<unknown> {
    const { observe, timeoutMs } = this.#options
    const timeout = timeoutMs === undefined ? undefined : timeoutSignal(timeoutMs)
    const either = timeout === undefined ? signal : AbortSignal.any([signal, timeout])
    // An observer that ignores its signal must not hold its slot. What it returns later is ignored.
    return untilAborted(either, async () => observe(row, { id, token, signal: either, log }))
  }

  async #apply(context: HandlerContext<Row>, answer: unknown): Promise<Outcome | undefined> {
    if (answer === undefined || answer === null) return this.#stayOpen()
    const { status: to, values } = this.#checked(answer)
    const from = String(Reflect.get(context.row, this.#status))
    if (to === from && Object.keys(values).length === 0) return this.#stayOpen()
    const transition = this.#transitions.find((one) => one.from === from && one.to === to)
    if (transition === undefined) throw this.#notAllowed(from, to)
    const outcome = settleAs(transition.outcome, this.#args(values))
    return this.#options.onApplied === undefined
      ? outcome
      : this.#applyWithEffects(context, outcome, transition)
  }

  /** Writes the transition and runs `onApplied`, in one transaction. */
  async #applyWithEffects(
    context: HandlerContext<Row>,
    outcome: Outcome,
    { from, to }: Transition,
  ): Promise<Outcome | undefined> {
    try {
      await this.#transaction(async () =>
        this.#db?.transaction(async (tx) => {
          await context.settleIn(tx, outcome)
          // Both are statuses of the declared transitions, which have this type.
          await this.#options.onApplied?.(tx, { row: context.row, from: from as Status, to: to as Status })
        }),
      )
      return undefined
    } catch (error) {
      if (!isLeaseholdError(error, 'FENCED_OFF') || context.signal.aborted) throw error
      // The status has been changed meanwhile. If instead the lease was lost, this settlement is fenced off as well.
      return settleAs(SKIPPED)
    }
  }

  #stayOpen(why: { readonly error?: string } = {}): Outcome {
    return settleAs(OPEN, { delay_ms: this.#options.everyMs ?? DEFAULT_EVERY_MS, ...why })
  }

  /** Checks the answer of an observer, which may have been written without types. */
  #checked(answer: unknown): { status: string; values: Readonly<Record<string, unknown>> } {
    if (typeof answer === 'string') return { status: answer, values: {} }
    const { status, values = {} }: { status?: unknown; values?: unknown } = Object(answer)
    if (
      typeof status !== 'string' ||
      typeof values !== 'object' ||
      values === null ||
      Array.isArray(values)
    ) {
      throw new TypeError(
        `observe answered ${shortened(answer)}, but must answer with a status, { status, values } or undefined`,
      )
    }
    const known = this.#options.values ?? {}
    for (const [column, value] of Object.entries(values)) {
      if (!Object.hasOwn(known, column))
        throw new TypeError(`observe answered with a value for ${column}, which \`values\` does not name`)
      refuseUnstorable(column, value)
    }
    return { status, values: { ...values } }
  }

  #args(values: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
    const columns = Object.keys(this.#options.values ?? {})
    return Object.fromEntries(columns.map((column) => [argumentOf(column), values[column] ?? null]))
  }

  #notAllowed(from: string, to: string): Error {
    const targets = this.#transitions.filter((one) => one.from === from).map((one) => one.to)
    const may =
      targets.length === 0
        ? 'nothing is allowed'
        : `only ${targets.join(', ')} ${targets.length === 1 ? 'is' : 'are'} allowed`
    return new Error(`observe answered ${shortened(to)}, but from ${from} ${may}`)
  }
}

/** An answer as it appears in an error. It may be anything, even something that cannot be inspected. */
function shortened(answer: unknown): string {
  try {
    return inspect(answer, {
      depth: 1,
      breakLength: Infinity,
      maxStringLength: 100,
      maxArrayLength: 10,
    }).slice(0, MAX_SHOWN_CHARACTERS)
  } catch {
    return `a value of type ${typeof answer} that cannot be shown`
  }
}

const MAX_SHOWN_CHARACTERS = 500

/** Values travel as JSON, in one statement with those of other rows. */
function refuseUnstorable(column: string, value: unknown): void {
  if (value === undefined || typeof value === 'bigint') return
  const text = payloadText(value, `values.${column}`)
  if ('problem' in text) throw new TypeError(`observe answered ${shortened(value)}: ${text.problem}`)
  const bytes = Buffer.byteLength(text.text)
  if (bytes > MAX_PAYLOAD_BYTES)
    throw new TypeError(
      `observe answered ${shortened(value)}: values.${column} has ${bytes} bytes, and at most ${MAX_PAYLOAD_BYTES} are allowed`,
    )
}

/** As `AbortSignal.timeout`, with an error that says what timed out. */
function timeoutSignal(timeoutMs: number): AbortSignal {
  const controller = new AbortController()
  const reason = new Error(`nothing was observed within ${timeoutMs} ms`)
  setTimeout(() => controller.abort(reason), timeoutMs).unref()
  return controller.signal
}

/** PostgreSQL truncates longer names. */
const MAX_NAME_BYTES = 63

function columnProblems(field: string, column: unknown): string[] {
  const problems = checkText(field, column, 'the name of a column')
  if (problems.length > 0 || typeof column !== 'string' || Buffer.byteLength(column) <= MAX_NAME_BYTES)
    return problems
  return [`${field} names the column ${shortened(column)}, which is longer than ${MAX_NAME_BYTES} bytes`]
}

const OPTIONS = namesOf<ReconcilerOptions<object, string>>({
  table: true,
  transitions: true,
  observe: true,
  status: true,
  values: true,
  onApplied: true,
  everyMs: true,
  timeoutMs: true,
  name: true,
  settings: true,
  bucket: true,
})

/** Refuses options that cannot work, naming all problems. They may have been written without types. */
function refuseInvalidOptions<Row extends object, Status extends string>(
  options: ReconcilerOptions<Row, Status>,
): void {
  refuseUnknownOptions('reconciler', options, OPTIONS)
  refuseUnknownOptions('reconciler, settings', options.settings ?? {}, DECLARED_SETTING_NAMES)
  const { observe, onApplied, everyMs, timeoutMs, status, values = {}, table, name } = options
  const isTime = (ms: number | undefined): boolean => ms === undefined || (ms > 0 && ms <= MAX_TIMER_MS)
  const problems = [
    ...(typeof observe === 'function' ? [] : ['observe must be a function']),
    ...(onApplied === undefined || typeof onApplied === 'function' ? [] : ['onApplied must be a function']),
    ...(isTime(everyMs) ? [] : [`everyMs is ${everyMs}, but must be a number of milliseconds above 0`]),
    ...(isTime(timeoutMs) ? [] : [`timeoutMs is ${timeoutMs}, but must be a number of milliseconds above 0`]),
    ...(status === undefined ? [] : columnProblems('status', status)),
    ...(name === undefined ? [] : checkText('name', name, 'the name of the worker')),
    ...Object.keys(values).flatMap((column) => columnProblems('values', column)),
    ...(typeof table?.name === 'string' ? [] : ['table must be a lease table, made with leaseTable()']),
    ...(table?.columns === undefined || table.columns.includes(status ?? 'status')
      ? []
      : [`the columns of the table lack ${status ?? 'status'}, which the reconciler has to read`]),
    ...Object.entries(values)
      .filter(([column, type]) => typeof type !== 'string' || type === '' || column === (status ?? 'status'))
      .map(([column]) => `values.${column} must be the SQL type of a column other than the status`),
  ]
  if (problems.length > 0)
    throw new LeaseholdError('SETTING_INVALID', `The reconciler cannot work: ${problems.join('; ')}.`)
}
