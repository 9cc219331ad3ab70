import { LeaseholdError } from '../errors.ts'
import type { Lease } from '../lease/lease.ts'
import type { Claim, Claimed } from '../lease/store.ts'
import type { LossReason } from './events.ts'
import type { HeldRow, HeldRows } from './held-rows.ts'
import type { RowToRenew } from './lifeline-messages.ts'
import type { Outcome } from './outcome.ts'

interface ClaimFacts {
  readonly leaseMs: number
  readonly claimedAt: number
  readonly attempt: number
  readonly isSuspect: boolean
  readonly bytes: number
}

/** One row in the worker's hands, from its claim until it is settled, given back or lost. */
export class Handling<Row> implements RowToRenew {
  readonly lease: Lease
  readonly row: Row
  readonly index: number
  readonly generation: number
  readonly claimedAt: number
  /** When it was claimed, by the database's clock. */
  readonly databaseClaimedAt: number
  readonly attempt: number
  /** A suspect: as long as it is in flight, this process claims no other one (D10). */
  hasSuspectSlot: boolean
  /** Its share of the bytes that were claimed with it. */
  readonly bytes: number
  /** `running`: its handler has not come back yet. `abandoned`: the same, and the row was lost meanwhile. */
  state: 'idle' | 'running' | 'abandoned' = 'idle'
  /** The key that bounds it, once it was started. */
  limitedBy: string | undefined = undefined
  /** Made when somebody asks for the signal, or when there is a reason to fire it. */
  abort: AbortController | undefined = undefined
  lost: LossReason | undefined = undefined
  /** The handler settled it in a transaction of its own. */
  settledAs: Outcome | undefined = undefined
  /** Whoever knows the groups was told that it no longer takes up room. */
  hasLeftGroup = false

  constructor({ lease, row }: Claimed<Row>, held: HeldRow, facts: ClaimFacts) {
    this.lease = lease
    this.row = row
    this.index = held.index
    this.generation = held.generation
    this.claimedAt = facts.claimedAt
    this.databaseClaimedAt = lease.until.getTime() - facts.leaseMs
    this.attempt = facts.attempt
    this.hasSuspectSlot = facts.isSuspect
    this.bytes = facts.bytes
  }

  get id(): string {
    return this.lease.id
  }

  get token(): bigint {
    return this.lease.token
  }
}

/** The rows of a claim, taken in hand. */
export function handlingsOf<Row extends object>(
  claim: Claim<Row>,
  {
    attempts,
    held,
    claimedAt,
  }: { readonly attempts: string | undefined; readonly held: HeldRows; readonly claimedAt: number },
): Handling<Row>[] {
  const { leaseMs } = claim
  const bytes = (claim.bytes ?? 0) / Math.max(1, claim.claimed.length)
  return claim.claimed.map((claimed) => {
    const counted: unknown = attempts === undefined ? 0 : Reflect.get(claimed.row, attempts)
    const attempt = Number(counted ?? 0) + 1
    const isSuspect = claimed.lease.id === claim.suspect
    return new Handling(claimed, held.take(claim.trustedUntil), {
      claimedAt,
      leaseMs,
      attempt,
      isSuspect,
      bytes,
    })
  })
}

/** How events name the row. */
export function refTo(
  { lease: { owner, id, token } }: Handling<unknown>,
  table: string,
): { worker: string; table: string; id: string; token: bigint } {
  return { worker: owner, table, id, token }
}

/** Why a signal fires. */
export type AbortReason = LossReason | 'stopping'

const EXPLANATIONS: Readonly<Record<AbortReason, string>> = {
  taken: 'another worker, or the reaper, has taken the row',
  untrusted: 'the lease could not be confirmed in time',
  heartbeatFailed: 'the database could not be reached to renew the lease',
  tooLong: 'the row was held for three lease durations',
  stopping: 'the worker is stopping and its time for that is over',
}

export function signalOf(handling: Handling<unknown>): AbortSignal {
  handling.abort ??= new AbortController()
  return handling.abort.signal
}

/** Fires the handler's signal; what it writes from now on for this row is fenced off. */
export function abortHandling(handling: Handling<unknown>, reason: AbortReason): void {
  handling.abort ??= new AbortController()
  const { id, token } = handling.lease
  const message = `The lease on row ${id} (token ${token}) is over: ${EXPLANATIONS[reason]}.`
  handling.abort.abort(
    new LeaseholdError('LEASE_LOST', message, { remedy: 'Stop working on the row.', cause: reason }),
  )
}
