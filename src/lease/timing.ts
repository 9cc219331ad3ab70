import { LeaseholdError } from '../errors.ts'

export interface Timing {
  readonly leaseMs: number
  readonly heartbeatMs: number
  readonly reaperIntervalMs: number
  readonly shutdownTimeoutMs: number
}

/** RULE-020-002: the three durations the source document recommends. */
export const LEASE_MS = { default: 30_000, heavy: 60_000, external: 120_000 } as const

/** RULE-020-022: the three intervals the source document recommends. */
export const REAPER_INTERVAL_MS = { default: 10_000, highVolume: 5_000, lowVolume: 30_000 } as const

/**
 * Completes a timing from the lease duration and refuses one that cannot keep a lease safe.
 * Every rule is checked and reported at once, with its numbers.
 */
export function timing(given: Partial<Timing> = {}): Timing {
  const leaseMs = given.leaseMs ?? LEASE_MS.default
  const complete: Timing = {
    leaseMs,
    // D2: strictly less than a third.
    heartbeatMs: given.heartbeatMs ?? leaseMs * 0.3,
    reaperIntervalMs: given.reaperIntervalMs ?? Math.min(REAPER_INTERVAL_MS.default, leaseMs / 3),
    shutdownTimeoutMs: given.shutdownTimeoutMs ?? leaseMs * 0.8,
  }
  const broken = brokenRules(complete)
  if (broken.length > 0) {
    throw new LeaseholdError('SETTING_INVALID', `The timing cannot work: ${broken.join('; ')}.`)
  }
  return complete
}

function brokenRules({ leaseMs, heartbeatMs, reaperIntervalMs, shutdownTimeoutMs }: Timing): string[] {
  const broken: string[] = []
  for (const [setting, value] of Object.entries({
    leaseMs,
    heartbeatMs,
    reaperIntervalMs,
    shutdownTimeoutMs,
  })) {
    const mayBeZero = setting === 'shutdownTimeoutMs'
    if (!Number.isFinite(value) || (mayBeZero ? value < 0 : value <= 0)) {
      broken.push(`${setting} is ${value}, but must be a number of milliseconds above 0`)
    }
  }
  // The comparisons below would only repeat what is already wrong with the lease itself.
  if (broken.length > 0) return broken

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
