import type { Queryable } from '../postgres/queryable.ts'
import type { Events } from './events.ts'
import { readSettings } from './live-settings.ts'
import type { SettingsLayers } from './settings-layers.ts'
import type { WorkerSettings } from './settings.ts'

/** Reads what the `settings` table says of a worker, and lays it over what was declared. */
export interface SettingsFollower {
  /** `undefined`: what is stored cannot work. It is told, and must keep no worker from running or from starting. */
  read(name: string, table: string, layers: SettingsLayers): Promise<WorkerSettings | undefined>
}

export function createSettingsFollower(options: {
  readonly db: Queryable
  readonly schema: string
  readonly worker: string
  readonly events: Events
}): SettingsFollower {
  const { db, schema, worker, events } = options
  return {
    async read(name, table, layers) {
      const stored = await readSettings(db, schema, name)
      try {
        return layers.store(stored)
      } catch (error) {
        events.emit('settingsRefused', { worker, table, error })
        return undefined
      }
    },
  }
}
