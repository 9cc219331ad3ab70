import { LeaseholdError } from '../errors.ts'
import { MAX_BATCH } from '../lease/table-sql.ts'
import { timing, type Timing } from '../lease/timing.ts'
import { byField, problemsWith, type Rule, type Rules, TRUE_OR_FALSE } from '../rules.ts'
import { MAX_HELD } from './heartbeat/held-rows.ts'

/** What can be changed while a worker runs. */
export interface WorkerSettings extends Timing {
  /** Slots: how many rows are processed at once (RULE-020-041). */
  readonly concurrency: number
  /** The most rows that are claimed ahead of the slots; how many really are depends on how fast the handlers are. */
  readonly prefetch: number
  /** The most bytes of rows in flight, where the table says how large a row is; one row may always be claimed. */
  readonly prefetchBytes: number
  /** The most rows of one claim, and of one settlement. */
  readonly batch: number
  /** How many claims and settlements may be on their way at once. Counts from the start of the worker on. */
  readonly claimLoops: number
  /** How often an idle worker claims when nothing wakes it. Jittered upwards by up to a half. */
  readonly pollMs: number
  /** How long a finished row may wait for others, to be settled in one statement with them. */
  readonly settleDelayMs: number
  /** For how many leases a row may be held; then its handler is told to stop and its lease is lost (RULE-020-051). */
  readonly maxLeases: number
  /** Nothing is claimed while it is true; rows in flight are finished. */
  readonly paused: boolean
}

const DAY_MS = 86_400_000
const HOUR_MS = 3_600_000

/** What each setting must be. */
export const WORKER_SETTING_RULES: Rules<WorkerSettings> = {
  // The minimum refuses a lease of 30, which was meant in seconds.
  leaseMs: milliseconds(250, DAY_MS),
  heartbeatMs: milliseconds(25, DAY_MS),
  reaperIntervalMs: milliseconds(25, DAY_MS),
  shutdownTimeoutMs: milliseconds(0, DAY_MS),
  concurrency: whole(1, 100_000),
  prefetch: whole(0, 100_000),
  prefetchBytes: whole(1, 1_073_741_824),
  batch: whole(1, MAX_BATCH),
  claimLoops: whole(1, 16),
  pollMs: milliseconds(10, HOUR_MS),
  settleDelayMs: milliseconds(0, 1_000),
  maxLeases: whole(1, 10_000),
  paused: TRUE_OR_FALSE,
}

export const WORKER_SETTING_NAMES: readonly string[] = Object.keys(WORKER_SETTING_RULES)

function milliseconds(from: number, to: number): Rule {
  return {
    holds: (value) => typeof value === 'number' && value >= from && value <= to,
    text: `a number of milliseconds from ${from} to ${to}`,
  }
}

function whole(from: number, to: number): Rule {
  return {
    holds: (value) => Number.isInteger(value) && Number(value) >= from && Number(value) <= to,
    text: `a whole number from ${from} to ${to}`,
  }
}

export const DEFAULT_WORKER_SETTINGS = {
  concurrency: 10,
  prefetch: 2_000,
  prefetchBytes: 16_777_216,
  batch: 500,
  claimLoops: 2,
  pollMs: 1_000,
  settleDelayMs: 10,
  maxLeases: 3,
  paused: false,
} as const satisfies Omit<WorkerSettings, keyof Timing>

/** Completes the settings and refuses them whole when any of them, or their combination, cannot work. */
export function workerSettings(given: Partial<WorkerSettings> = {}): WorkerSettings {
  const problems = settingProblems(given)
  if (problems.length > 0)
    throw new LeaseholdError('SETTING_INVALID', `The settings cannot work: ${problems.join('; ')}.`, {
      problems: byField(problems, WORKER_SETTING_NAMES),
    })
  const set = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined))
  return refuseTooMany({ ...DEFAULT_WORKER_SETTINGS, ...set, ...timing(given) })
}

/** What is wrong with single settings; whether they fit each other depends on the rest of them. */
export function settingProblems(given: object): string[] {
  return problemsWith(given, WORKER_SETTING_RULES, { what: 'setting' })
}

function refuseTooMany(settings: WorkerSettings): WorkerSettings {
  const { concurrency, prefetch } = settings
  if (concurrency + prefetch <= MAX_HELD) return settings
  const problem = `concurrency (${concurrency}) and prefetch (${prefetch}) together must be at most ${MAX_HELD}: lower one of them`
  throw new LeaseholdError('SETTING_INVALID', `The settings cannot work: ${problem}.`, {
    problems: ['concurrency', 'prefetch'].map((field) => ({ field, detail: problem })),
  })
}

type Given = Partial<WorkerSettings>

const TIMING = ['leaseMs', 'heartbeatMs', 'reaperIntervalMs', 'shutdownTimeoutMs'] as const

/**
 * Where a worker's settings come from, later ones first: changes in this process, the `settings` table, the worker's
 * declaration, the process. Each layer is stored as it was given, so that defaults are derived anew each time: a new lease
 * brings its own heartbeat. A change in this process that cannot work together with the other layers is refused whole. Of
 * what is stored, settings that cannot work are left out, and the others apply: a pause above all.
 */
export class SettingsLayers {
  readonly #declared: Given
  /** What the table says, and what of it applies. */
  #read: Given = {}
  #stored: Given = {}
  #changed: Given = {}

  constructor(process: Given = {}, declared: Given = {}) {
    this.#declared = { ...process, ...declared }
  }

  /** What the worker was started with. */
  get declared(): Given {
    return this.#declared
  }

  /**
   * What the `settings` table says now. A change there overrides earlier changes in this process. With an error: some of
   * it cannot work, and does not apply; it is reported once.
   */
  store(stored: Given = {}): { readonly settings: WorkerSettings; readonly refused?: unknown } {
    const isNews = JSON.stringify(stored) !== JSON.stringify(this.#read)
    if (isNews) this.#changed = {}
    this.#read = stored
    try {
      const settings = workerSettings({ ...this.#declared, ...stored, ...this.#changed })
      this.#stored = stored
      return { settings }
    } catch (error) {
      this.#stored = this.#usableOf(stored)
      const settings = workerSettings({ ...this.#declared, ...this.#stored, ...this.#changed })
      return { settings, ...(isNews ? { refused: error } : {}) }
    }
  }

  /** The timings are tried together first: a longer lease may be what makes a longer heartbeat possible. */
  #usableOf(stored: Given): Given {
    const timings = Object.entries(stored).filter(([name]) => TIMING.some((each) => each === name))
    const alone = Object.entries(stored).map(([name, value]) => ({ [name]: value }))
    const usable: Given = {}
    for (const some of [Object.fromEntries(timings), ...alone]) {
      try {
        workerSettings({ ...this.#declared, ...usable, ...some, ...this.#changed })
        Object.assign(usable, some)
      } catch {
        // Reported together with the others, by the error of the whole.
      }
    }
    return usable
  }

  change(patch: Given): WorkerSettings {
    const changed = { ...this.#changed, ...patch }
    const settings = workerSettings({ ...this.#declared, ...this.#stored, ...changed })
    this.#changed = changed
    return settings
  }
}
