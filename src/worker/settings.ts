import { LeaseholdError } from '../errors.ts'
import { MAX_BATCH } from '../lease/table-sql.ts'
import { LEASE_MS, REAPER_INTERVAL_MS, timing, type Timing } from '../lease/timing.ts'
import { byField, describeValue, problemsWith, type Rule, type Rules, TRUE_OR_FALSE } from '../rules.ts'
import { MAX_HELD } from './heartbeat/held-rows.ts'

/** What can be changed while a worker runs. */
export interface WorkerSettings extends Timing {
  /** Slots: how many rows are processed at once (RULE-020-041). */
  readonly concurrency: number
  /** The most rows that are claimed ahead of the slots; how many really are depends on how fast the handlers are. */
  readonly prefetch: number
  /** The most bytes of rows in flight, where the table says how large a row is; one row may always be claimed. */
  readonly prefetchBytes: number
  /** The most rows that one pipeline claims, and the most that it settles. */
  readonly batch: number
  /** How many pipelines may be on their way at once. Several of them claim while there are more rows than a claim takes. Counts from the start of the worker on. */
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

/** Names for figures, so that nobody has to look them up. In a declaration only: what runs has the figures. */
export interface Profiles {
  /** Of the lease: 60 s for `heavy` work, 120 s for `externalCalls`. Instead of `leaseMs`. */
  readonly profile?: 'heavy' | 'externalCalls'
  /** Of the reaper: it runs every 5 s (`highVolume`) or every 30 s (`lowVolume`). Instead of `reaperIntervalMs`. */
  readonly reaperProfile?: 'highVolume' | 'lowVolume'
}

/** The settings that a worker, or a process for all of its workers, is declared with. */
export type DeclaredSettings = Partial<WorkerSettings> & Profiles

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

const PROFILE_RULES: Rules<Profiles> = {
  profile: oneOf('heavy', 'externalCalls'),
  reaperProfile: oneOf('highVolume', 'lowVolume'),
}

export const DECLARED_SETTING_NAMES: readonly string[] = [
  ...WORKER_SETTING_NAMES,
  ...Object.keys(PROFILE_RULES),
]

function oneOf(...names: readonly string[]): Rule {
  return {
    holds: (value) => typeof value === 'string' && names.includes(value),
    text: names.map((name) => describeValue(name)).join(' or '),
  }
}

/**
 * Several declarations as one: the later ones come first. Each profile becomes its figure before that, so that it comes
 * before a figure of an earlier declaration, and after one of a later declaration.
 */
export function declaredSettings(
  ...declared: readonly (DeclaredSettings | undefined)[]
): Partial<WorkerSettings> {
  const all = declared.map((one = {}) => withoutProfiles(one))
  return Object.assign({}, ...all) as Partial<WorkerSettings> // Of parts that each are one.
}

function withoutProfiles(declared: DeclaredSettings): Partial<WorkerSettings> {
  const { profile, reaperProfile, ...settings } = declared
  const wrong = [...problemsWith({ profile, reaperProfile }, PROFILE_RULES), ...givenTwice(declared)]
  if (wrong.length > 0) throw cannotWork(wrong)
  return {
    ...settings,
    ...(profile === undefined ? {} : { leaseMs: LEASE_MS[profile] }),
    ...(reaperProfile === undefined ? {} : { reaperIntervalMs: REAPER_INTERVAL_MS[reaperProfile] }),
  }
}

function givenTwice(declared: DeclaredSettings): string[] {
  const both = [
    ['profile', 'leaseMs'],
    ['reaperProfile', 'reaperIntervalMs'],
  ] as const
  return both.flatMap(([profile, figure]) =>
    declared[profile] === undefined || declared[figure] === undefined
      ? []
      : [`${profile} is given together with ${figure}: leave one of them out`],
  )
}

/** What is wrong with a declaration by itself; whether its settings fit each other depends on the rest of them. */
export function declarationProblems(declared: DeclaredSettings): string[] {
  const rules = { ...WORKER_SETTING_RULES, ...PROFILE_RULES }
  return [...problemsWith(declared, rules, { what: 'setting' }), ...givenTwice(declared)]
}

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
  if (problems.length > 0) throw cannotWork(problems)
  const set = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined))
  return refuseTooMany({ ...DEFAULT_WORKER_SETTINGS, ...set, ...timing(given) })
}

function cannotWork(problems: readonly string[]): LeaseholdError {
  return new LeaseholdError('SETTING_INVALID', `The settings cannot work: ${problems.join('; ')}.`, {
    problems: byField(problems, DECLARED_SETTING_NAMES),
  })
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

  constructor(process?: DeclaredSettings, declared?: DeclaredSettings) {
    this.#declared = declaredSettings(process, declared)
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
