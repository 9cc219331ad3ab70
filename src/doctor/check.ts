/** What a check is, what it is given, and what it finds. */
import type { LeaseTable } from '../lease/table.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { SecretKeys } from '../webhooks/signing/encryption.ts'

/** `error`: work stops, is lost or is done twice, now or after the next failure. `warning`: everything else. */
export type Severity = 'error' | 'warning'

export interface Finding {
  /** The id of the check that found it. */
  readonly check: string
  readonly severity: Severity
  /** What is wrong, as a sentence. */
  readonly text: string
  /** What to do about it, as a sentence. */
  readonly remedy: string
  /** SQL statements or commands that repair it, in order. Each statement is run by itself, outside a transaction. */
  readonly repair?: readonly string[]
}

/** What a check returns; `examine` adds its id. */
export type Problem = Omit<Finding, 'check'>

/** A lease table that somebody works on. */
export interface WorkedTable {
  readonly table: LeaseTable
  /** The name of the worker, by which the registry has its settings and the processes that run it. */
  readonly worker: string
  /** What the worker's retention was declared with; `off`: it has none. Undefined: not known. */
  readonly retention?: object | 'off'
}

/** From when on something is worth a finding. */
export interface Thresholds {
  /** The age of a snapshot or a prepared transaction. */
  readonly oldTransactionMs: number
  /** The age of what a standby needs, in transactions. */
  readonly standbyTransactions: number
  /** How much of the log an inactive replication slot keeps. */
  readonly slotBytes: number
  /** How long a transaction has waited for the lock of an ordering key. */
  readonly keyLockMs: number
  /** The difference between the clocks. */
  readonly clockMs: number
  /** Dead events, failed deliveries or failed jobs; fewer are a remark. */
  readonly deadLetters: number
  /** Dead rows of a table. */
  readonly deadRows: number
  /** How long ago a table with many dead rows was last vacuumed. */
  readonly vacuumedMs: number
  /** How long a lease has been over. */
  readonly expiredMs: number
  /** How long the circuit of an endpoint has been open. */
  readonly circuitOpenMs: number
  /** The age of the oldest transaction id, in transactions. */
  readonly transactionAge: number
}

export const THRESHOLDS: Thresholds = {
  oldTransactionMs: 600_000,
  standbyTransactions: 1_000_000,
  slotBytes: 1_073_741_824,
  keyLockMs: 10_000,
  clockMs: 1_000,
  deadLetters: 100,
  deadRows: 10_000,
  vacuumedMs: 600_000,
  expiredMs: 60_000,
  circuitOpenMs: 3_600_000,
  transactionAge: 1_000_000_000,
}

/** What every check is given. */
export interface Examination {
  readonly db: Database
  readonly schema: string
  readonly thresholds: Thresholds
  /** Runs queries in a read-only transaction whose statements take a bounded time. */
  readonly read: <Found>(work: (tx: Queryable) => Promise<Found>) => Promise<Found>
  /** The same, with the search_path of the role, for tables of the user, whose conditions may call what is there. */
  readonly own: { readonly db: Database; readonly read: Examination['read'] }
  /** Makes something once for all checks of this examination. */
  readonly once: <Made>(name: string, make: () => Promise<Made>) => Promise<Made>
  /** Says what this database role may not see. The check continues with the rest. */
  readonly notSeen: (what: string) => void
  /** Says what is worth knowing, and may be as it is on purpose. It is no finding. */
  readonly remark: (what: string) => void
  /** The tables of the applications. */
  readonly ownTables: readonly WorkedTable[]
  /** The tables of the user's own workers. */
  readonly declaredTables: readonly WorkedTable[]
  readonly secretKeys: SecretKeys | undefined
  /** The URL of the connection that listens; undefined: not known, or of the embedded server. */
  readonly listenUrl: string | undefined
  /** Whether it differs from that of the other connections. */
  readonly hasListenUrl: boolean
  /** A server that Leasehold has started for itself: it has one account, and its settings are ours. */
  readonly embedded: boolean
  readonly version: string
  /** The time of this process, in milliseconds since 1970. */
  readonly now: () => number
}

export interface Check {
  readonly id: string
  /** What is examined, as a noun phrase. */
  readonly title: string
  /** `tables`: left out where the schema has no tables of Leasehold. */
  readonly needs: 'server' | 'tables'
  readonly run: (examination: Examination) => Promise<readonly Problem[]>
}

/** A check that does not apply here, and why. */
export class NotApplicable extends Error {
  override readonly name = 'NotApplicable'
}
