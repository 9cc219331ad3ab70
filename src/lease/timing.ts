import { LeaseholdError } from '../errors.ts'
import { byField, describeValue } from '../rules.ts'

export interface Timing {
  /** How long a lease lasts. */
  readonly leaseMs: number
  /** The interval between renewals of a lease. */
  readonly heartbeatMs: number
  /** The interval between runs of the reaper. */
  readonly reaperIntervalMs: number
  /** How long running handlers may take to finish at shutdown. */
  readonly shutdownTimeoutMs: number
}

/** RULE-020-002: the default, and what the profiles of a worker stand for. */
export const LEASE_MS = { default: 30_000, heavy: 60_000, externalCalls: 120_000 } as const

/** RULE-020-022: the default, and what the profiles of the reaper stand for. */
export const REAPER_INTERVAL_MS = { default: 10_000, highVolume: 5_000, lowVolume: 30_000 } as const

/**
 * Completes a timing from the lease duration and refuses one that cannot keep a lease safe.
 * Every rule is checked and reported at once, with its numbers.
 */
export function timing(given: Partial<Timing> = {}): Timing {
  refuse(invalidNumbers(given))
  const leaseMs = given.leaseMs ?? LEASE_MS.default
  const complete: Timing = {
    leaseMs,
    // D2: strictly less than a third.
    heartbeatMs: given.heartbeatMs ?? leaseMs * 0.3,
    reaperIntervalMs: given.reaperIntervalMs ?? Math.min(REAPER_INTERVAL_MS.default, leaseMs / 3),
    shutdownTimeoutMs: given.shutdownTimeoutMs ?? leaseMs * 0.8,
  }
  refuse(brokenRules(complete))
  return complete
}

function refuse(broken: readonly string[]): void {
  if (broken.length === 0) return
  throw new LeaseholdError('SETTING_INVALID', `The timing cannot work: ${broken.join('; ')}.`, {
    problems: byField(broken, ['leaseMs', 'heartbeatMs', 'reaperIntervalMs', 'shutdownTimeoutMs']),
  })
}

/** Of what was given: everything that is derived from an invalid lease is invalid as well, and not worth a word. */
function invalidNumbers({
  leaseMs,
  heartbeatMs,
  reaperIntervalMs,
  shutdownTimeoutMs,
}: Partial<Timing>): string[] {
  return Object.entries({ leaseMs, heartbeatMs, reaperIntervalMs, shutdownTimeoutMs }).flatMap(
    ([setting, value]) => {
      if (value === undefined) return []
      const mayBeZero = setting === 'shutdownTimeoutMs'
      const isValid = Number.isFinite(value) && (mayBeZero ? value >= 0 : value > 0)
      const rule = `a number of milliseconds ${mayBeZero ? 'from' : 'above'} 0`
      return isValid ? [] : [`${setting} is ${describeValue(value)}, but must be ${rule}`]
    },
  )
}

function brokenRules({ leaseMs, heartbeatMs, reaperIntervalMs, shutdownTimeoutMs }: Timing): string[] {
  const broken: string[] = []
  if (heartbeatMs * 3 >= leaseMs) {
    broken.push(
      `heartbeatMs is ${heartbeatMs}, but must be less than a third of leaseMs (${leaseMs} / 3 = ${round(leaseMs / 3)}): lower it or lengthen the lease`,
    )
  }
  if (reaperIntervalMs >= leaseMs) {
    broken.push(
      `reaperIntervalMs is ${reaperIntervalMs}, but must be less than leaseMs (${leaseMs}): lower it or lengthen the lease`,
    )
  }
  if (shutdownTimeoutMs > leaseMs) {
    broken.push(
      `shutdownTimeoutMs is ${shutdownTimeoutMs}, but must be at most leaseMs (${leaseMs}): lower it or lengthen the lease`,
    )
  }
  return broken
}

function round(ms: number): number {
  return Math.round(ms * 10) / 10
}
