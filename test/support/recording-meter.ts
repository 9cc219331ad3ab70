import type { Meter } from '../../src/observe/opentelemetry.ts'

type Callback = Parameters<ReturnType<Meter['createObservableGauge']>['addCallback']>[0]

/** A meter that writes down what reaches it, as `name value attributes`. */
export function recordingApi() {
  const written: string[] = []
  const kinds: Record<string, string> = {}
  const callbacks = new Map<string, Set<Callback>>()
  const write = (name: string) => (value: number, attributes: unknown) =>
    void written.push(`${name} ${value} ${JSON.stringify(attributes)}`)
  const meter: Meter = {
    createCounter(name) {
      kinds[name] = 'counter'
      return { add: write(name) }
    },
    createHistogram(name) {
      kinds[name] = 'histogram'
      return { record: write(name) }
    },
    createObservableGauge(name) {
      kinds[name] = 'gauge'
      const own = new Set<Callback>()
      callbacks.set(name, own)
      return {
        addCallback: (callback) => void own.add(callback),
        removeCallback: (callback) => void own.delete(callback),
      }
    },
  }
  const meters: string[] = []
  const getMeter = (name: string, version?: string): Meter => {
    meters.push(`${name} ${version}`)
    return meter
  }
  /** As an SDK does when it exports. */
  async function collect(): Promise<void> {
    for (const [name, own] of callbacks) {
      for (const callback of own) await callback({ observe: write(name) })
    }
  }
  return { api: { metrics: { getMeter } }, written, kinds, meters, collect }
}
