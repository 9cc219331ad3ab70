/** The states of jobs and chunks (SYNC-03), which are derived from their columns, and what leads from one to another. */
export const SYNC_STATES = ['AVAILABLE', 'RUNNING', 'EXPIRED', 'COMPLETED', 'FAILED'] as const

export type SyncState = (typeof SYNC_STATES)[number]

/**
 * What leads from one state to another; `undefined` cannot happen. A completed or failed row is final for its job: only an
 * operator's retry or a new job reopens it.
 */
export const TRANSITIONS: Readonly<Record<SyncState, Readonly<Record<SyncState, string | undefined>>>> = {
  AVAILABLE: {
    AVAILABLE: undefined,
    RUNNING: 'claim',
    EXPIRED: undefined,
    COMPLETED: undefined,
    FAILED: 'cancel',
  },
  RUNNING: {
    AVAILABLE: 'retry, release or check',
    RUNNING: 'renew',
    EXPIRED: 'time',
    COMPLETED: 'complete',
    FAILED: 'fail or cancel',
  },
  EXPIRED: {
    AVAILABLE: 'reap',
    RUNNING: 'claim',
    EXPIRED: undefined,
    COMPLETED: undefined,
    FAILED: 'cancel',
  },
  COMPLETED: {
    AVAILABLE: 'a new job',
    RUNNING: undefined,
    EXPIRED: undefined,
    COMPLETED: undefined,
    FAILED: undefined,
  },
  FAILED: {
    AVAILABLE: 'an operator’s retry, or a new job',
    RUNNING: undefined,
    EXPIRED: undefined,
    COMPLETED: undefined,
    FAILED: undefined,
  },
}
