import type { Clock } from '../clock.ts'
import type { Lease } from '../lease/lease.ts'
import type { LeaseStore } from '../lease/store.ts'
import type { HeldRows } from './held-rows.ts'
import type { FromLifeline, RenewalTiming, RowsToRenew, RowToRenew } from './lifeline-messages.ts'
import { createLoop, type HastenableLoop } from './loop.ts'
import { RowsInRenewal } from './rows-to-renew.ts'

/** One statement renews all rows in flight, unless there are more than this. */
const LARGEST_RENEWAL = 5_000

/** RULE-020-051: no row is held for longer than three leases, however often it could be renewed. */
export const LONGEST_HOLD = 3

export interface Renewal {
  readonly loop: HastenableLoop
  hold(rows: RowsToRenew): void
  change(timing: RenewalTiming): void
}

export interface RenewalOptions {
  /** Of the worker whose rows these are. */
  readonly name: string
  readonly store: Pick<LeaseStore, 'renew' | 'owner'>
  readonly held: HeldRows
  readonly timing: RenewalTiming
  readonly clock: Clock
  readonly tell: (message: FromLifeline) => void
}

/** Keeps the leases of one table's rows alive: one timer, one statement a beat, nothing while no row is held. */
export function createRenewal(options: RenewalOptions): Renewal {
  const { name, store, held, clock, tell } = options
  let { timing } = options
  let beganAt = clock.monotonicNow()
  /** The first beat comes an interval after the start: what is held by then has just been claimed, or renewed. */
  let isFirst = true
  const rows = new RowsInRenewal(held)

  async function beat(): Promise<void> {
    beganAt = clock.monotonicNow()
    if (isFirst) {
      isFirst = false
      return
    }
    for (const [leaseMs, due] of dueRows()) {
      for (let from = 0; from < due.length; from += LARGEST_RENEWAL) {
        await renewWithOneRetry(due.slice(from, from + LARGEST_RENEWAL), leaseMs)
      }
    }
  }

  /** Those still in processing, by the lease they get: the last one ends with the longest hold, and is not renewed. */
  function dueRows(): Map<number, RowToRenew[]> {
    const now = clock.monotonicNow()
    const due = new Map<number, RowToRenew[]>()
    const step = timing.heartbeatMs / 8
    for (const row of rows.current()) {
      const left = row.claimedAt + LONGEST_HOLD * timing.leaseMs - now
      // The first beat of the last lease falls within one interval of its start; a second interval for a late one.
      if (left <= timing.leaseMs - 2 * timing.heartbeatMs) continue
      // Rounded, so that rows of many claims still share a few statements.
      const leaseMs = left >= timing.leaseMs ? timing.leaseMs : Math.floor(left / step) * step
      const alike = due.get(leaseMs)
      if (alike === undefined) due.set(leaseMs, [row])
      else alike.push(row)
    }
    return due
  }

  /** RULE-020-012: a database that cannot be reached ends the processing. One try again tells it from a hiccup. */
  async function renewWithOneRetry(batch: readonly RowToRenew[], leaseMs: number): Promise<void> {
    try {
      await renew(batch, leaseMs)
    } catch {
      const still = batch.filter((row) => held.isHeld(row))
      try {
        await renew(still, leaseMs)
      } catch (error) {
        // All of them before anybody hears of one: the slot of the first must not go to the next.
        // What is finished may still be settled for as long as its lease is trusted: the database decides by the token.
        const lost = still.filter((row) => !held.isFinished(row) && held.lose(row))
        tell({ type: 'renewalFailed', name, ids: still.map(({ id }) => id), error })
        for (const row of lost) tell({ type: 'lost', name, row, reason: 'heartbeatFailed' })
      }
    }
  }

  async function renew(batch: readonly RowToRenew[], leaseMs: number): Promise<void> {
    if (batch.length === 0) return
    const startedAt = clock.monotonicNow()
    const byLease = new Map(batch.map((row) => [leaseOf(row), row]))
    const renewal = await store.renew([...byLease.keys()], leaseMs)
    for (const lease of renewal.renewed) {
      const row = byLease.get(lease)
      if (row !== undefined) held.renewed(row, renewal.trustedUntil)
    }
    for (const lease of renewal.lost) {
      const row = byLease.get(lease)
      // A row that was settled meanwhile is not lost: it was given up.
      if (row !== undefined && held.lose(row)) tell({ type: 'lost', name, row, reason: 'taken' })
    }
    const durationMs = clock.monotonicNow() - startedAt
    tell({ type: 'renewed', name, count: renewal.renewed.length, busy: renewal.busy.length, durationMs })
  }

  function leaseOf({ id, token }: RowToRenew): Lease {
    return { id, owner: store.owner, token, until: new Date(0) }
  }

  const loop = createLoop({
    name: `renewal of ${name}`,
    work: beat,
    // From beat to beat, not from the end of one to the start of the next: a slow statement must not stretch it.
    pauseMs: () => Math.max(0, beganAt + timing.heartbeatMs - clock.monotonicNow()),
    onError: (error) => tell({ type: 'trouble', what: `the renewal of ${name}`, error }),
  })

  return {
    loop,
    hold(batch) {
      rows.add(batch)
    },
    change(changed) {
      timing = changed
      // A shorter lease may be over before the beat that the old one needed.
      loop.hasten()
    },
  }
}
