/**
 * A worker process that `leasehold work --processes` has started, and what it and its supervisor tell each other. The
 * channel between them is also how it learns that the supervisor has died: it then stops.
 */
import { createHash } from 'node:crypto'
import { type ErrorCode, isLeaseholdError, messageOf } from '../errors.ts'
import { tableName } from '../lease/index.ts'
import type { Metrics } from '../observe/prometheus.ts'
import { isRecord } from '../rules.ts'
import type { Database } from '../postgres/index.ts'
import type { WorkDeclaration } from '../worker/index.ts'
import { type Run, UsageError } from './command.ts'
import { textFlag } from './flags.ts'
import { runProcess, type Startup } from './process.ts'
import { type ChosenWork, SHUTDOWN_OVERHEAD_MS, startWorkerProcess } from './worker-process.ts'

/** What a supervisor gives to a process that it starts, as the value of the hidden flag `--supervised`. */
export interface Order {
  /** The worker id of the process. The supervisor chooses it, so that it can take back the leases whenever it dies. */
  readonly id: string
  /** The tables that the supervisor reaps, each as the `fingerprint` of its declaration. */
  readonly reaps: readonly string[]
}

/** Why a process cannot run, or has ended. */
export interface Refusal {
  /** Of a `LeaseholdError`. Any other error has its stack instead. */
  readonly code?: ErrorCode
  readonly message: string
  readonly stack?: string | undefined
}

export type ToSupervisor =
  /** `otherTables`: those that it declares otherwise than the supervisor, which has read an older config file. */
  | { readonly type: 'ready'; readonly otherTables: readonly string[] }
  /** How long it takes to stop at most. Said before it is ready, and when its settings have changed. */
  | { readonly type: 'stopWithin'; readonly ms: number }
  /** It takes no more rows: it was told to stop, or got a signal, or nobody caught an error. */
  | { readonly type: 'stopping' }
  /** It exits. */
  | ({ readonly type: 'refused' } & Refusal)
  | { readonly type: 'metrics'; readonly request: number; readonly text: string }

export type FromSupervisor =
  | { readonly type: 'stop' }
  | { readonly type: 'metrics'; readonly request: number }

/** What all processes of one command line have in common. */
export interface WorkOptions {
  readonly run: Run
  readonly databaseUrl: string
  readonly work: ChosenWork
  /** Opens the pool for checks and metrics once the database answers and is migrated. */
  readonly openDatabase: (startup: Startup) => Promise<Database>
}

export function orderOf(flags: Run['flags']): Order | undefined {
  const text = textFlag(flags, 'supervised')
  if (text === undefined) return undefined
  const order: unknown = process.send === undefined ? undefined : parsed(text)
  if (isOrder(order)) return order
  throw new UsageError(
    `--supervised is ${JSON.stringify(text)}: only \`leasehold work --processes\` gives this flag, to the processes that it starts. Leave it out.`,
  )
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function isOrder(value: unknown): value is Order {
  return isRecord(value) && typeof value['id'] === 'string' && Array.isArray(value['reaps'])
}

/**
 * Runs the workers until the supervisor says stop or is not there any more. SIGTERM stops it as well. SIGINT and SIGHUP do
 * not: a terminal sends them to the whole process group, and it is the supervisor that decides what they mean.
 */
export async function runSupervised(
  { run, databaseUrl, work, openDatabase }: WorkOptions,
  { id, reaps }: Order,
): Promise<number> {
  const { version } = run
  // All processes write into one log, so each of their entries has the worker id.
  const log = run.log.child({}, { formatters: { log: (fields) => ({ worker: id, ...fields }) } })
  const loaded = { ...run.loaded, settings: { ...run.loaded.settings, workerId: id } }
  const otherTables = work.declared
    .filter((declaration) => !reaps.includes(fingerprint(declaration, version)))
    .map(({ table }) => tableName(table))
  const own = { ...work, reaper: work.reaper && otherTables.length > 0 }
  try {
    return await runProcess(
      { ...run, log },
      async (startup) => {
        const metrics = obeySupervisor(startup)
        const db = await openDatabase(startup)
        const running = await startWorkerProcess(
          { loaded, version, log, db, databaseUrl, work: own, http: 'off', withoutDatabaseGauges: true },
          startup,
        )
        metrics.show(running.metrics)
        const tellStopWithin = async (): Promise<void> =>
          tellSupervisor({ type: 'stopWithin', ms: running.shutdownTimeoutMs() + SHUTDOWN_OVERHEAD_MS })
        running.events.on('settingsChanged', () => void tellStopWithin())
        await tellStopWithin()
        await tellSupervisor({ type: 'ready', otherTables })
        return ''
      },
      { SIGINT: () => {}, SIGHUP: () => {} },
    )
  } catch (error) {
    if (!process.connected) throw error
    // The supervisor reports it, once for all of its processes.
    await tellSupervisor({ type: 'refused', ...refusalOf(error) })
    return 1
  }
}

function refusalOf(error: unknown): Refusal {
  const message = messageOf(error)
  if (isLeaseholdError(error)) return { code: error.code, message }
  return { message, stack: error instanceof Error ? error.stack : undefined }
}

/**
 * Of everything by which a table is reaped and maintained, the release of Leasehold included. After a roll-over a process
 * that finds another one than the supervisor has reaps the table itself.
 */
export function fingerprint({ table, bucket, maintenance }: WorkDeclaration, version: string): string {
  const { everyMs, settings } = maintenance ?? {}
  const declared = JSON.stringify([version, table, bucket, maintenance !== undefined, everyMs, settings])
  return createHash('sha256').update(declared).digest('hex').slice(0, 16)
}

function obeySupervisor(startup: Startup): { show(metrics: Metrics): void } {
  let shown: Metrics | undefined
  process.on('message', (message: FromSupervisor) => {
    if (message.type === 'stop') startup.stop()
    if (message.type === 'metrics') void answer(message.request)
  })
  process.on('disconnect', () => startup.stop())
  startup.signal.addEventListener('abort', () => void tellSupervisor({ type: 'stopping' }), { once: true })
  // The supervisor may have died while this process was loading.
  if (!process.connected) startup.stop()
  // It must not keep a process alive that has stopped.
  process.channel?.unref()

  async function answer(request: number): Promise<void> {
    const text = (await shown?.render()) ?? ''
    await tellSupervisor({ type: 'metrics', request, text })
  }

  return { show: (metrics) => void (shown = metrics) }
}

/** Resolves once it is sent, or cannot be sent, because the supervisor is not there any more. */
async function tellSupervisor(message: ToSupervisor): Promise<void> {
  await new Promise<void>((resolve) => {
    if (process.send === undefined || !process.connected) resolve()
    else process.send(message, undefined, undefined, () => resolve())
  })
}
