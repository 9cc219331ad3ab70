import { type Clock, systemClock } from '../clock.ts'
import { within } from '../postgres/deadline.ts'
import type { GaugeName, LabelsOf } from './metric-catalog.ts'
import type { Sample } from './prometheus.ts'

/** A gauge that is read when somebody asks for it, instead of following events. */
export interface GaugeSource {
  readonly metric: GaugeName
  /** Rejects when it cannot be read now. */
  read(): Promise<readonly Sample[]>
}

/** With the labels that the metric has. */
export interface Reading<Name extends GaugeName> {
  readonly labels: LabelsOf<Name>
  readonly value: number
}

export function gauge<Name extends GaugeName>(
  metric: Name,
  read: () => readonly Reading<Name>[],
): GaugeSource {
  return { metric, read: async () => Promise.resolve(read()) }
}

export interface AskOptions {
  /** Nobody who asks waits longer than this. Default 2,000. */
  readonly timeoutMs?: number
  /** How long an answer is kept, a failure too. Default 5,000. */
  readonly keepMs?: number
  readonly clock?: Clock
}

/** A question that took a second is not asked again for twenty: however often we are scraped, it costs 5 %. */
const REST_FACTOR = 20

/** A gauge that has to ask the database: at most one question at a time, and a pause after each. */
export function databaseGauge<Name extends GaugeName>(
  metric: Name,
  ask: () => Promise<readonly Reading<Name>[]>,
  { timeoutMs = 2_000, keepMs = 5_000, clock = systemClock }: AskOptions = {},
): GaugeSource {
  let asking: Promise<void> | undefined
  let kept: { readonly answer: () => readonly Reading<Name>[]; readonly until: number } | undefined

  async function askNow(): Promise<void> {
    const startedAt = clock.monotonicNow()
    const answer = await ask().then(
      (readings) => () => readings,
      (error: unknown) => () => {
        throw error
      },
    )
    const tookMs = clock.monotonicNow() - startedAt
    kept = { answer, until: clock.monotonicNow() + Math.max(keepMs, tookMs * REST_FACTOR) }
    asking = undefined
  }

  return {
    metric,
    async read() {
      if (kept !== undefined && clock.monotonicNow() < kept.until) return kept.answer()
      asking ??= askNow()
      if (!(await within(timeoutMs, asking)) || kept === undefined) {
        throw new Error(`${metric} was not answered within ${timeoutMs} ms`)
      }
      return kept.answer()
    },
  }
}
