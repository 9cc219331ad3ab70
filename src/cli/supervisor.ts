/**
 * `leasehold work --processes N`: a supervisor and N worker processes. The supervisor claims nothing. It reaps for all of
 * them, restarts one that ends, takes back its leases at once, and replaces them one after the other on SIGHUP.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { type ErrorCode, LeaseholdError } from '../errors.ts'
import type { Logger } from '../observe/log.ts'
import { mergeMetrics } from '../observe/prometheus.ts'
import { within } from '../timeout.ts'
import { describeWorker } from '../worker/registry/registry.ts'
import { REAPER } from '../worker/work-declaration.ts'
import { withoutPassword } from '../database-url.ts'
import type { Run } from './command.ts'
import { flagName } from './flags.ts'
import { counted, duration } from './output.ts'
import { type Part, runProcess } from './process.ts'
import {
  fingerprint,
  type FromSupervisor,
  type Order,
  type Refusal,
  type ToSupervisor,
  type WorkOptions,
} from './supervised.ts'
import { readyMessage, SHUTDOWN_OVERHEAD_MS, startWorkerProcess } from './worker-process.ts'

export const MAX_PROCESSES = 256

/** A process that ends is restarted after 200 ms, then after twice as long each time, up to 30 s. */
const FIRST_RESTART_MS = 200
const MAX_RESTART_MS = 30_000
/** A process that ran for this long has proved that it can: its end is the first one. */
const PROVEN_AFTER_MS = 60_000
/** How long a process may take to become ready, besides waiting for the database. */
const READY_WITHIN_MS = 60_000
/** Of a process that was told to stop, in addition to what it takes by its own account. */
const STOP_MARGIN_MS = 3_000
const METRICS_WITHIN_MS = 2_000
const EVICT_WITHIN_MS = 2_000
/** These pass, so the process is restarted as if it had crashed. Any other error at the first start ends the supervisor. */
const PASSING = new Set<ErrorCode | undefined>(['DATABASE_UNAVAILABLE', 'QUERY_TIMEOUT'])
/**
 * A running process handles these. One that loads its modules is ended by them; it holds nothing yet, and a terminal or a
 * service manager sends them to the supervisor and its processes at the same time.
 */
const STOP_SIGNALS = new Set<NodeJS.Signals | null>(['SIGHUP', 'SIGINT', 'SIGTERM'])

/** Runs until it is told to stop. The exit code is 1 when one of the processes did not stop cleanly. */
export async function supervise(
  { run, databaseUrl, work, openDatabase }: WorkOptions,
  processes: number,
): Promise<number> {
  const { log, version, flags, terminal } = run
  if (work.workers.length === 0) throw nothingToShare(processes)
  const { settings } = run.loaded
  const id = settings.workerId ?? describeWorker([]).id
  const loaded = { ...run.loaded, settings: { ...settings, workerId: id } }
  // It takes back the leases of its own processes whether or not `--only` names the reaper.
  const declared = work.reaper ? work.declared : work.workers
  const reaps = declared.map((declaration) => fingerprint(declaration, version))
  let supervisor: Supervisor | undefined

  return runProcess(
    run,
    async (startup) => {
      const db = await openDatabase(startup)
      const running = await startWorkerProcess(
        {
          loaded,
          version,
          log,
          db,
          databaseUrl,
          work: { workers: [], reaper: true, declared },
          http: flags['http'] === false ? 'off' : 'anyFreePort',
          checks: [{ name: 'processes', run: async () => readinessOf(supervisor) }],
          allMetrics: async (own) => mergeMetrics([own, ...((await supervisor?.metrics()) ?? [])]),
        },
        startup,
      )
      supervisor = new Supervisor({
        // A given id is the same after a restart, when processes of a supervisor that was killed may still be stopping.
        id: settings.workerId === undefined ? id : `${id}-${process.pid}`,
        processes,
        start: (order) => startProcess(flags, { ...order, reaps }),
        evict: async (worker) => running.runtime?.evict(worker),
        reapExcept: (tables) => running.runtime?.reapExcept(tables),
        stopWithinMs: settings.timing.shutdownTimeoutMs + SHUTDOWN_OVERHEAD_MS,
        readyWithinMs: settings.databaseWaitMs + READY_WITHIN_MS,
        log,
      })
      startup.add(supervisor)
      await startup.unlessStopping(supervisor.start())
      const roles = [...work.workers.map(({ name }) => name), REAPER]
      return readyMessage(
        version,
        { ...running, roles, processes: `${processes}, and this one, which supervises them` },
        withoutPassword(databaseUrl),
      )
    },
    // A terminal that is closed sends SIGHUP too, and then nobody wants new processes.
    terminal.hasTerminal ? {} : { SIGHUP: () => supervisor?.rollOver() },
  )
}

async function readinessOf(supervisor: Supervisor | undefined): Promise<string> {
  if (supervisor === undefined) throw new Error('starting')
  return supervisor.readiness()
}

function nothingToShare(processes: number): LeaseholdError {
  return new LeaseholdError(
    'SETTING_INVALID',
    `--processes is ${processes}, but there are no workers for them: --only names the reaper alone.`,
    { remedy: 'Leave --processes out, or name workers in --only.' },
  )
}

/** The same command line, with other values for the flags that are the supervisor's own. */
function startProcess(flags: Run['flags'], order: Order): ChildProcess {
  const { processes: _, http: __, ...shared } = flags
  const args = Object.entries(shared).map(([name, value]) => `${flagName(name)}=${String(value)}`)
  // The file that node was started with, for example bin/leasehold.cjs: after an update, that of the new release.
  return fork(process.argv[1] ?? '', ['work', ...args, `--supervised=${JSON.stringify(order)}`], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
}

interface Exit {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
}

/** One worker process, from its start until it has exited. */
class Child {
  readonly id: string
  readonly startedAt = performance.now()
  /** Resolves when it is ready or refused, or has exited before that. */
  readonly begun: Promise<void>
  readonly ended: Promise<Exit>
  readonly #process: ChildProcess
  readonly #metrics = new Map<number, (text: string) => void>()
  #requests = 0
  /** Ready to take rows. */
  isReady = false
  /** It was ready, and stops without having been told to. */
  hasLeft = false
  otherTables: readonly string[] = []
  exit: Exit | undefined
  refusal: Refusal | undefined
  stopWithinMs: number

  constructor(id: string, started: ChildProcess, stopWithinMs: number, onLeave: () => void) {
    this.id = id
    this.#process = started
    this.stopWithinMs = stopWithinMs
    let begin = (): void => {}
    this.begun = new Promise((resolve) => {
      begin = resolve
    })
    started.on('message', (message: ToSupervisor | null) => {
      // A handler may use the channel too, for whatever message.
      switch (message?.type) {
        case 'metrics':
          this.#metrics.get(message.request)?.(message.text)
          break
        case 'stopWithin':
          this.stopWithinMs = message.ms
          break
        case 'ready':
          this.isReady = true
          this.otherTables = message.otherTables
          begin()
          break
        case 'stopping':
          if (!this.isReady) break
          this.isReady = false
          this.hasLeft = true
          onLeave()
          break
        case 'refused':
          this.refusal = message
          begin()
          break
        case undefined:
          break
      }
    })
    this.ended = new Promise((resolve) => {
      const end = (code: number | null, signal: NodeJS.Signals | null): void => {
        this.exit ??= { code, signal }
        this.isReady = false
        begin()
        resolve(this.exit)
      }
      started.on('exit', end)
      // It could not be started at all, as on a machine that has too many processes; `exit` may not follow.
      started.on('error', () => {
        if (started.pid === undefined) end(null, null)
      })
    })
  }

  get pid(): number | undefined {
    return this.#process.pid
  }

  /** Tells it to stop, and kills it when it takes longer than it may. Returns whether it has stopped cleanly. */
  async stop(log: Logger): Promise<boolean> {
    this.isReady = false
    this.#tell({ type: 'stop' })
    if (!(await within(this.stopWithinMs, this.ended))) {
      log.error(
        { worker: this.id, pid: this.pid, ms: this.stopWithinMs },
        'did not stop in time, and is killed',
      )
      this.kill()
    }
    const { code, signal } = await this.ended
    return code === 0 || STOP_SIGNALS.has(signal)
  }

  kill(): void {
    this.#process.kill('SIGKILL')
  }

  /** The text of its metrics; empty if it does not answer. */
  async metrics(): Promise<string> {
    this.#requests += 1
    const request = this.#requests
    let text = ''
    const answered = new Promise<void>((resolve) => {
      this.#metrics.set(request, (answer) => {
        text = answer
        resolve()
      })
    })
    this.#tell({ type: 'metrics', request })
    await within(METRICS_WITHIN_MS, Promise.race([answered, this.ended]))
    this.#metrics.delete(request)
    return text
  }

  /** A process that has exited, or is about to, does not need to hear it. */
  #tell(message: FromSupervisor): void {
    if (this.#process.connected) this.#process.send(message, () => {})
  }
}

/** One of the N processes, and what replaces it when it ends. */
interface Slot {
  child: Child | undefined
  /** Ends in a row, without a proven process in between. */
  failures: number
  restart: NodeJS.Timeout | undefined
  /** A roll-over is starting a new process here: nothing else is to. */
  isReplacing: boolean
}

interface SupervisorOptions {
  /** What the worker ids of the processes begin with; their number follows. */
  readonly id: string
  readonly processes: number
  readonly start: (order: Pick<Order, 'id'>) => ChildProcess
  /** Takes back what the process held, which has exited. */
  readonly evict: (id: string) => Promise<void>
  /** Leaves the reaping of these tables, and of no others, to the processes. */
  readonly reapExcept: (tables: readonly string[]) => void
  /** Of a process that has not yet said how long it takes. */
  readonly stopWithinMs: number
  readonly readyWithinMs: number
  readonly log: Logger
}

export class Supervisor implements Part {
  readonly name = 'processes'
  readonly #options: SupervisorOptions
  readonly #log: Logger
  readonly #slots: readonly Slot[]
  readonly #living = new Set<Child>()
  readonly #evictions = new Set<Promise<void>>()
  #started = 0
  #hasStarted = false
  #isStopping = false
  #isRollOverWanted = false
  #isRollingOver = false
  #reapedByOthers: readonly string[] = []

  constructor(options: SupervisorOptions) {
    this.#options = options
    this.#log = options.log
    this.#slots = Array.from({ length: options.processes }, () => ({
      child: undefined,
      failures: 0,
      restart: undefined,
      isReplacing: false,
    }))
  }

  /**
   * Starts one process, and when that has shown that it can run, the others. Resolves when each is ready or has ended; one
   * that has ended is restarted. If the first one is refused, the others would be too, so that is the supervisor's error.
   */
  async start(): Promise<void> {
    const [first, ...others] = this.#slots.map((slot) => async () => this.#fill(slot))
    const refusal = (await first?.())?.refusal
    if (refusal !== undefined && !PASSING.has(refusal.code)) throw errorOf(refusal)
    if (this.#isStopping) return
    await Promise.all(others.map(async (fill) => fill()))
    this.#hasStarted = true
    if (this.#isRollOverWanted) void this.#rollOverWhileWanted()
  }

  /** What `/readyz` says of the processes; rejects when not every one of them is ready. */
  async readiness(): Promise<string> {
    const ready = this.#slots.filter(({ child }) => child?.isReady === true).length
    const text = `${ready} of ${this.#slots.length} are ready`
    if (this.#isStopping) throw new Error('stopping')
    if (ready < this.#slots.length) throw new Error(text)
    return Promise.resolve(text)
  }

  async metrics(): Promise<string[]> {
    return Promise.all([...this.#living].map(async (child) => child.metrics()))
  }

  /** Replaces every process by a new one, one after the other. During a roll-over: once more after it. */
  rollOver(): void {
    this.#isRollOverWanted = true
    // A process that is starting may have read the old config file already. So it is replaced when all have started.
    if (this.#hasStarted && !this.#isRollingOver) void this.#rollOverWhileWanted()
  }

  get stopWithinMs(): number {
    const times = [...this.#living].map((child) => child.stopWithinMs)
    return Math.max(0, ...times) + STOP_MARGIN_MS + EVICT_WITHIN_MS
  }

  stopText(): string {
    const waits = duration(Math.max(0, ...[...this.#living].map((child) => child.stopWithinMs)))
    return `${counted(this.#living.size, 'process', 'processes')}, which may take up to ${waits}`
  }

  async stop(): Promise<{ readonly clean: boolean }> {
    this.#isStopping = true
    for (const { restart } of this.#slots) clearTimeout(restart)
    const stopped = await Promise.all([...this.#living].map(async (child) => child.stop(this.#log)))
    // The reaper is stopped next.
    await within(EVICT_WITHIN_MS, Promise.all(this.#evictions))
    return { clean: stopped.every(Boolean) }
  }

  abandon(): void {
    for (const child of this.#living) child.kill()
  }

  async #fill(slot: Slot): Promise<Child | undefined> {
    slot.restart = undefined
    const child = this.#startChild(slot)
    slot.child = child
    if (child === undefined) this.#restartLater(slot)
    else if (!(await within(this.#options.readyWithinMs, child.begun))) {
      this.#reportNotReady(child, 'a process did not become ready in time, and is killed')
      child.kill()
    }
    return child
  }

  /** Returns undefined if the operating system has no room for another process. */
  #startChild(slot: Slot): Child | undefined {
    this.#started += 1
    const id = `${this.#options.id}-${this.#started}`
    const { start, stopWithinMs } = this.#options
    try {
      const child: Child = new Child(id, start({ id }), stopWithinMs, () => this.#onLeave(slot, child))
      this.#living.add(child)
      void this.#onBegun(child)
      void child.ended.then((exit) => this.#onEnd(slot, child, exit))
      return child
    } catch (error) {
      this.#log.error({ worker: id, err: error }, 'a worker process could not be started')
      return undefined
    }
  }

  async #onBegun(child: Child): Promise<void> {
    await child.begun
    if (!child.isReady) return
    this.#log.info({ worker: child.id, pid: child.pid }, 'a worker process is ready')
    this.#shareReaping()
  }

  /** It finishes what it runs, which may take a while. Another one takes its place meanwhile. */
  #onLeave(slot: Slot, child: Child): void {
    if (slot.child !== child || this.#isStopping || slot.isReplacing) return
    slot.child = undefined
    const restartInMs = this.#restartLater(slot, child)
    this.#log.error(
      { worker: child.id, pid: child.pid, restartInMs },
      'a worker process stops without having been told to, and another one is started',
    )
  }

  #onEnd(slot: Slot, child: Child, { code, signal }: Exit): void {
    this.#living.delete(child)
    // Also after exit code 0: a handler may have called process.exit(). Of one that has stopped, nothing is left.
    this.#evict(child)
    this.#shareReaping()
    const entry = { worker: child.id, pid: child.pid, code, signal, ...reasonOf(child) }
    if (slot.child === child) {
      slot.child = undefined
      if (this.#isStopping || slot.isReplacing) return
      const restartInMs = this.#restartLater(slot, child)
      this.#log.error({ ...entry, restartInMs }, 'a worker process has ended, and another one is started')
    } else if (child.hasLeft && child.refusal !== undefined) {
      this.#log.error(entry, 'a worker process has ended')
    }
  }

  /** A process that declares a table otherwise has read a newer config file, and reaps the table by that. */
  #shareReaping(): void {
    if (this.#isStopping) return
    const others = [...this.#living].flatMap(({ isReady, otherTables }) => (isReady ? otherTables : []))
    const tables = [...new Set(others)]
    this.#options.reapExcept(tables)
    if (tables.length > 0 && tables.join(' ') !== this.#reapedByOthers.join(' '))
      this.#log.info(
        { tables },
        'the processes reap these tables, which they declare otherwise than their supervisor',
      )
    this.#reapedByOthers = tables
  }

  #restartLater(slot: Slot, ended?: Child): number {
    if (ended !== undefined && performance.now() - ended.startedAt >= PROVEN_AFTER_MS) slot.failures = 0
    const restartInMs = Math.min(MAX_RESTART_MS, FIRST_RESTART_MS * 2 ** slot.failures)
    slot.failures += 1
    slot.restart = setTimeout(() => void this.#fill(slot), restartInMs)
    return restartInMs
  }

  /** It has exited, so nobody works on its rows any more: there is no need to miss its session first. */
  #evict({ id }: Child): void {
    const eviction = this.#options
      .evict(id)
      .catch((error: unknown) => this.#log.error({ worker: id, err: error }, 'its leases have to expire'))
      .finally(() => this.#evictions.delete(eviction))
    this.#evictions.add(eviction)
  }

  async #rollOverWhileWanted(): Promise<void> {
    this.#isRollingOver = true
    while (this.#isRollOverWanted && !this.#isStopping) {
      this.#isRollOverWanted = false
      this.#log.info('rolling over: each process is replaced by a new one')
      let replaced = 0
      for (const slot of this.#slots) {
        if (this.#isStopping || !(await this.#replace(slot))) break
        replaced += 1
      }
      if (replaced === this.#slots.length) this.#log.info({ replaced }, 'rolled over')
    }
    this.#isRollingOver = false
  }

  /** The old process is stopped when the new one is ready, so that there is no moment without one. */
  async #replace(slot: Slot): Promise<boolean> {
    clearTimeout(slot.restart)
    slot.isReplacing = true
    const child = this.#startChild(slot)
    if (child !== undefined) await within(this.#options.readyWithinMs, child.begun)
    slot.isReplacing = false
    // What is running then is stopped by `stop`.
    if (this.#isStopping) return false
    if (child?.isReady !== true) {
      if (child !== undefined) this.#reportNotReady(child, ROLL_OVER_FAILED)
      child?.kill()
      if (slot.child === undefined) this.#restartLater(slot)
      return false
    }
    const old = slot.child
    slot.child = child
    slot.failures = 0
    await old?.stop(this.#log)
    return true
  }

  #reportNotReady(child: Child, message: string): void {
    const { id, pid, exit, startedAt } = child
    const ms = Math.round(performance.now() - startedAt)
    this.#log.error({ worker: id, pid, ...exit, ms, ...reasonOf(child) }, message)
  }
}

const ROLL_OVER_FAILED =
  'a new process did not become ready: the roll-over ends here, and the processes that run continue'

function reasonOf({ refusal }: Child): { readonly err?: Error } {
  return refusal === undefined ? {} : { err: errorOf(refusal) }
}

function errorOf({ code, message, stack }: Refusal): Error {
  if (code !== undefined) return new LeaseholdError(code, message)
  return Object.assign(new Error(message), { stack })
}
