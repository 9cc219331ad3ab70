/**
 * What is known of the renewals of a lease. A renewal writes nothing but the end of the lease, so they are not counted: the
 * last one follows from that end and the length of the leases of its process, and their number from the time since the
 * claim and the heartbeat interval.
 */
import { storedSettings, type StoredSettings } from '../worker/registry/stored-settings.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { listWorkers, type WorkerRow, type WorkerState } from '../worker/registry/registry.ts'
import { SettingsLayers, type WorkerSettings } from '../worker/settings.ts'

/** A lease is late without a renewal for this many heartbeat intervals. */
const LATE_AFTER_INTERVALS = 1.5

export interface Renewals {
  /** When it was last renewed; where the table does not store the claim, claimed or renewed. Null: not yet, or unknown. */
  readonly renewedAt: Date | null
  /** About how often. Null: the table does not store when it was claimed. */
  readonly renewals: number | null
  /** A renewal should have come by now. */
  readonly isLate: boolean
}

/** A lease with these settings, by the clock of the database. */
export function renewalsOf(
  lease: { readonly since: Date | null; readonly until: Date; readonly now: Date },
  { leaseMs, heartbeatMs }: Pick<WorkerSettings, 'leaseMs' | 'heartbeatMs'>,
): Renewals {
  const [since, now] = [lease.since?.getTime(), lease.now.getTime()]
  // A change of leaseMs after the last renewal makes it wrong until the next one, but not earlier than the claim.
  const begun = Math.max(lease.until.getTime() - leaseMs, since ?? -Infinity)
  // The length of the lease is another one than its process is known to have.
  if (begun > now) return { renewedAt: null, renewals: null, isLate: false }
  const renewals = since === undefined ? null : Math.round((begun - since) / heartbeatMs)
  return {
    renewedAt: renewals === 0 ? null : new Date(begun),
    renewals,
    isLate: now - begun > LATE_AFTER_INTERVALS * heartbeatMs,
  }
}

/**
 * The settings that a process applies to a worker: what it was started with, what of the stored settings can work with
 * that, and defaults. What was changed within the process is not known. Undefined: its version has other settings.
 */
export function appliedSettings(
  declared: object | undefined,
  stored: Partial<WorkerSettings> | undefined,
): WorkerSettings | undefined {
  if (declared === undefined) return undefined
  const { groups: _, ...own }: { readonly groups?: unknown } = declared
  try {
    return new SettingsLayers({}, own).store(stored).settings
  } catch {
    return undefined
  }
}

export interface HolderOfLease {
  readonly ownerState: WorkerState | 'unknown'
  /** The settings of its worker of the table. Undefined: they are not known. */
  readonly settings: WorkerSettings | undefined
}

/** Reads the registry and the stored settings once; the answer says what is known of the owner of a lease on a table. */
export async function readHolders(
  db: Queryable,
  schema: string,
): Promise<(owner: string, table: string) => HolderOfLease> {
  const workers = new Map((await listWorkers(db, schema)).map((worker) => [worker.id, worker]))
  const stored = await storedSettings(db, schema)
  return (owner, table) => {
    const worker = workers.get(owner)
    if (worker === undefined) return { ownerState: 'unknown', settings: undefined }
    return { ownerState: worker.state, settings: settingsFor(worker, table, stored) }
  }
}

function settingsFor(
  { serves = {}, declared = {} }: WorkerRow,
  table: string,
  stored: readonly StoredSettings[],
): WorkerSettings | undefined {
  const name = Object.keys(serves).find((each) => serves[each]?.table === table)
  if (name === undefined) return undefined
  return appliedSettings(declared[name], stored.find((each) => each.name === name)?.value)
}
