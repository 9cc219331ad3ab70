import { inspect } from 'node:util'

import { LeaseholdError } from '../../errors.ts'

/** What one receiver may cost us. All of them are whole numbers of at least 1. */
export interface PostLimits {
  /** Name, connection and TLS together. */
  readonly connectTimeoutMs: number
  /** From the start until the head of the answer is there. */
  readonly headTimeoutMs: number
  /** How long the body is read after the head. The status is the answer: it costs time only for the excerpt. */
  readonly bodyTimeoutMs: number
  readonly maxHeaderBytes: number
  /** A body is read so far; a longer one ends the connection. */
  readonly maxResponseBytes: number
  /** What is kept of the body. */
  readonly excerptBytes: number
  /** How long an idle connection is kept. Also how long an address stays in use after its name has moved. */
  readonly keepAliveMs: number
  /** Connections kept for one origin; more may be open at the same time, and end with their request. */
  readonly keptPerOrigin: number
  /** Connections kept for all origins together. */
  readonly keptConnections: number
}

export const DEFAULT_LIMITS: PostLimits = {
  connectTimeoutMs: 10_000,
  headTimeoutMs: 60_000,
  bodyTimeoutMs: 5_000,
  maxHeaderBytes: 16 * 1_024,
  maxResponseBytes: 16 * 1_024,
  excerptBytes: 1_024,
  // Shorter than what servers keep (2 s is the shortest usual one), so that none closes what we are about to use.
  keepAliveMs: 1_000,
  keptPerOrigin: 64,
  keptConnections: 1_024,
}

export function usableLimits(given: Partial<PostLimits> = {}): PostLimits {
  const limits = { ...DEFAULT_LIMITS, ...given }
  for (const [name, value] of Object.entries(limits)) wholeNumber(name, value)
  return limits
}

const LONGEST_TIMER_MS = 2_147_483_647

export function wholeNumber(setting: string, value: number): number {
  if (Number.isSafeInteger(value) && value >= 1 && value <= LONGEST_TIMER_MS) return value
  throw new LeaseholdError(
    'SETTING_INVALID',
    `The setting ${setting} of webhook requests cannot be ${inspect(value)}.`,
    { remedy: `Give a whole number from 1 to ${LONGEST_TIMER_MS}.` },
  )
}
