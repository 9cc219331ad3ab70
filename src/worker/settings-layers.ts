import { workerSettings, type WorkerSettings } from './settings.ts'

type Given = Partial<WorkerSettings>

/**
 * Where a worker's settings come from: the process, its declaration, the `settings` table, and what was changed in this
 * process since. They are kept as they were given, so that what nobody gave is derived anew each time: a new lease
 * brings its own heartbeat. A layer that cannot work together with the others is refused, and nothing changes.
 */
export class SettingsLayers {
  readonly #declared: Given
  #stored: Given = {}
  #changed: Given = {}

  constructor(process: Given = {}, declared: Given = {}) {
    this.#declared = { ...process, ...declared }
  }

  /** What the table says now. Said anew, it counts for more than what was changed here before. */
  store(stored: Given = {}): WorkerSettings {
    const isNews = JSON.stringify(stored) !== JSON.stringify(this.#stored)
    const changed = isNews ? {} : this.#changed
    const settings = workerSettings({ ...this.#declared, ...stored, ...changed })
    this.#stored = stored
    this.#changed = changed
    return settings
  }

  change(patch: Given): WorkerSettings {
    const changed = { ...this.#changed, ...patch }
    const settings = workerSettings({ ...this.#declared, ...this.#stored, ...changed })
    this.#changed = changed
    return settings
  }
}
