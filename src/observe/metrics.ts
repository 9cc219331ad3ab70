import type { Events } from '../worker/events.ts'
import type { GaugeSource } from './gauge-source.ts'
import { measure } from './measure.ts'
import type { GaugeName } from './metric-catalog.ts'
import { createNumbers, type Sample } from './prometheus.ts'

export interface MetricsOptions {
  /** What is read at the time of asking. */
  readonly gauges?: readonly GaugeSource[]
}

export interface Metrics {
  /** The Prometheus text. What cannot be read now is left out and counted: the rest is answered all the same. */
  render(): Promise<string>
  /** Ends the listening. */
  close(): void
}

/** Follows the events from now on. */
export function createMetrics(events: Events, { gauges = [] }: MetricsOptions = {}): Metrics {
  const numbers = createNumbers()
  const close = measure(events, numbers)
  return {
    close,
    async render() {
      const answers = await Promise.allSettled(gauges.map(async (source) => source.read()))
      const read = new Map<GaugeName, Sample[]>()
      let errors = 0
      for (const [i, { metric }] of gauges.entries()) {
        const answer = answers[i]
        if (answer?.status === 'fulfilled') read.set(metric, [...(read.get(metric) ?? []), ...answer.value])
        else errors += 1
      }
      numbers.set('scrapeErrors', {}, errors)
      return numbers.text(read)
    },
  }
}
