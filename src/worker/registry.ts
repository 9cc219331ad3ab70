/** Who works: each worker is known by its id, from the moment it starts until a day after it has ended. */
import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { packageVersion } from '../version.ts'
import { LeaseholdError } from '../errors.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { forgetStatement, reaperAliveStatement, workersStatement } from './registry-sql.ts'

export { farewell, presence, type PresenceRow } from './registry-sql.ts'

export interface WorkerInfo {
  readonly id: string
  readonly host: string
  readonly pid: number
  readonly version: string
  readonly roles: readonly string[]
}

/**
 * - `missing`: its session is gone, or nothing was heard of it; it may come back.
 * - `dead`: it did not come back, and its leases were taken back.
 */
export type WorkerState = 'alive' | 'missing' | 'dead' | 'stopped'

export interface WorkerRow extends WorkerInfo {
  readonly state: WorkerState
  readonly startedAt: Date
  readonly lastSeenAt: Date
  readonly inFlight: number
  readonly stoppedAt: Date | null
  readonly diedAt: Date | null
  /** Whether its death would be noticed before its leases end. */
  readonly sessionVisible: boolean
}

/** This process as a worker. The id is unique unless somebody gives one that is not (RULE-020-032). */
export function describeWorker(roles: readonly string[], options: { readonly id?: string } = {}): WorkerInfo {
  const host = hostname()
  const id = options.id ?? `${host}-${process.pid}-${randomBytes(6).toString('hex')}`
  // In a table without a token column the owner is id#token, and what a dead worker held is found by its start.
  if (id.trim() === '' || id.includes('#')) {
    throw new LeaseholdError('SETTING_INVALID', `The worker id is ${JSON.stringify(id)}.`, {
      remedy: 'Give every worker a unique id that is not empty and has no # in it, or none at all.',
    })
  }
  return { id, host, pid: process.pid, version: packageVersion(), roles }
}

/** In the order in which they started. */
export async function listWorkers(db: Queryable, schema: string): Promise<WorkerRow[]> {
  const { rows } = await db.query<WorkerRow>(workersStatement(schema))
  return rows
}

/** Whether a reaper was heard of within this time, anywhere (RULE-020-020). */
export async function reaperAlive(db: Queryable, schema: string, withinMs: number): Promise<boolean> {
  const { rows } = await db.query<{ alive: boolean }>(reaperAliveStatement(schema, withinMs))
  return rows[0]?.alive === true
}

/** Deletes a bounded number of workers that ended more than a day ago, and says how many. */
export async function forgetWorkers(db: Queryable, schema: string): Promise<number> {
  const { rowCount } = await db.query(forgetStatement(schema))
  return rowCount ?? 0
}
