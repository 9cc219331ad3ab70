import type { Database } from '../postgres/database.ts'
import { reaperAlive } from '../worker/registry.ts'
import type { Check } from './health.ts'

/** As long as a worker without a visible session may be silent before it is missed. */
const REAPER_WITHIN_MS = 30_000
const QUERY_TIMEOUT_MS = 2_000

export async function isReaperAlive(db: Database, schema: string): Promise<boolean> {
  return db.transaction(async (tx) => reaperAlive(tx, schema, REAPER_WITHIN_MS), {
    queryTimeoutMs: QUERY_TIMEOUT_MS,
  })
}

/** RULE-020-020: workers without a reaper anywhere leave what they held when they die. */
export function reaperSomewhere(db: Database, schema: string): Check {
  return {
    name: 'reaper',
    async run() {
      if (await isReaperAlive(db, schema)) return 'alive'
      throw new Error('no reaper is alive anywhere: run `leasehold work`, or `leasehold work --only reaper`')
    },
  }
}

export type RunState = 'starting' | 'running' | 'stopping'

/** The workers of this process: not ready before they run, and not any more once they are told to stop. */
export function workersRun(state: () => RunState): Check {
  return {
    name: 'workers',
    async run() {
      const now = state()
      if (now !== 'running') throw new Error(now)
      return Promise.resolve(now)
    },
  }
}
