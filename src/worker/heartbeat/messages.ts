/** What a worker process and its heartbeat tell each other. Plain data: it crosses a thread. */
import type { DataErrorReport } from '../../lease/data-errors.ts'
import type { TableShape } from '../../lease/inspect.ts'
import type { LeaseTable } from '../../lease/table.ts'
import type { LossReason } from '../events.ts'
import type { HeldRow } from './held-rows.ts'
import type { Counters } from '../registry/counters.ts'
import type { Pause, WorkerInfo } from '../registry/registry.ts'

export interface HeartbeatConfig {
  readonly databaseUrl: string
  /** Leads to the server itself, for the session that listens and shows that this process is alive. */
  readonly listenUrl: string
  readonly schema: string
  readonly worker: WorkerInfo
  /** It is in the registry already. */
  readonly isRegistered: boolean
  /** Wake-ups and settings arrive by NOTIFY. Without it everything works by polling. */
  readonly listen: boolean
  /** How often this process says that it is alive. */
  readonly presenceMs: number
}

/** The settings that the renewal depends on. */
export interface RenewalTiming {
  readonly leaseMs: number
  readonly heartbeatMs: number
  readonly maxLeases: number
}

export type ToHeartbeat =
  | {
      readonly type: 'serve'
      /** The worker, of which there may be several on one table. */
      readonly name: string
      readonly table: LeaseTable
      readonly shape: TableShape
      readonly bucket: number | 'all'
      readonly held: SharedArrayBuffer
      readonly timing: RenewalTiming
    }
  | { readonly type: 'timing'; readonly name: string; readonly timing: RenewalTiming }
  /** A row whose address is too long for the shared memory. */
  | { readonly type: 'hold'; readonly name: string; readonly row: HeldRow; readonly address: string }
  /** What the registry is to show of the process. */
  | {
      readonly type: 'activity'
      readonly inFlight: number
      readonly paused: readonly Pause[]
      /** The tables that it reaps, as `schema.table`. */
      readonly reaps: readonly string[]
      readonly counters: Counters
    }
  /** The process claims nothing more: the registry is to show that it has no role but the reaper's. */
  | { readonly type: 'stopping' }
  /** Not clean: rows are still leased, and this process is to be missed by the reapers of others. */
  | { readonly type: 'stop'; readonly clean: boolean }

export type FromHeartbeat =
  | { readonly type: 'ready' }
  | {
      readonly type: 'renewed'
      readonly name: string
      readonly count: number
      readonly busy: number
      readonly durationMs: number
    }
  | {
      readonly type: 'renewalFailed'
      readonly name: string
      readonly ids: readonly string[]
      readonly error: unknown
    }
  | ({ readonly type: 'dataError'; readonly name: string } & DataErrorReport)
  | { readonly type: 'lost'; readonly name: string; readonly row: HeldRow; readonly reason: LossReason }
  | { readonly type: 'woken'; readonly name: string }
  | { readonly type: 'settingsChanged'; readonly name: string }
  | { readonly type: 'listening' }
  | { readonly type: 'notListening'; readonly error: unknown }
  /** This process is in the registry, so many run each worker, by its name, and the tables have so many buckets. */
  | {
      readonly type: 'present'
      readonly processes: Readonly<Record<string, number>>
      readonly buckets: number
    }
  /** This process had been declared dead. */
  | { readonly type: 'returned' }
  | { readonly type: 'trouble'; readonly what: string; readonly error: unknown }
  | { readonly type: 'stopped' }

/** One end of the connection between the two. */
export interface Port<Incoming, Outgoing> {
  post(message: Outgoing): void
  onMessage(listener: (message: Incoming) => void): void
}
