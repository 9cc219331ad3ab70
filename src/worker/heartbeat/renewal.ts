/** The renewal of leases: one loop for each worker of the process. */
import { type Clock, systemClock } from '../../clock.ts'
import { leaseStore, type LeaseStore } from '../../lease/store.ts'
import { type Database, openDatabase } from '../../postgres/database.ts'
import { createLoop, type HastenableLoop } from '../loop.ts'
import { type HeldRow, HeldRows, type RowToRenew } from './held-rows.ts'
import type { FromHeartbeat, HeartbeatConfig, RenewalTiming, ToHeartbeat } from './messages.ts'

/** One statement renews all rows in flight, unless there are more than this. */
const MAX_ROWS_PER_RENEWAL = 5_000

/**
 * A row that another session has locked is renewed after a part of the heartbeat, and not at the next one: claims that
 * compete for its ordering key lock it for milliseconds, and could do so at three heartbeats in a row.
 */
const LOCKED_ROW_RETRIES_PER_HEARTBEAT = 8
const MAX_LOCKED_ROW_RETRY_MS = 1_000

export interface Renewal {
  readonly loop: HastenableLoop
  /** A row whose address is not in the shared memory. */
  hold(row: HeldRow, address: string): void
  change(timing: RenewalTiming): void
}

export interface RenewalOptions {
  /** Of the worker. */
  readonly name: string
  readonly store: Pick<LeaseStore, 'renew' | 'leaseAt' | 'byNode'>
  readonly held: HeldRows
  readonly timing: RenewalTiming
  readonly clock: Clock
  readonly send: (message: FromHeartbeat) => void
}

/** Renews the leases of one worker: one timer, one statement per heartbeat, nothing while no row is held. */
export function createRenewal(options: RenewalOptions): Renewal {
  const { name, store, held, clock, send } = options
  let { timing } = options
  let beganAt = clock.monotonicNow()
  /** Rows that the last renewal found locked. */
  let locked: RowToRenew[] = []
  /** All rows are to be renewed, also those that were just claimed. */
  let isHastened = false
  /** The nodes on which the last renewal failed. */
  const failing = new Set<string>()
  /** The first heartbeat comes one interval after the start: what is held before that was just claimed or renewed. */
  let isFirst = true
  /** By index: the addresses that are not in the shared memory. */
  const longAddresses = new Map<number, { readonly generation: number; readonly address: string }>()

  async function beat(): Promise<void> {
    const isRetry = locked.length > 0 && clock.monotonicNow() < beganAt + timing.heartbeatMs
    const candidates = isRetry ? locked.filter((row) => held.isHeld(row)) : longHeld()
    locked = []
    if (!isRetry) beganAt = clock.monotonicNow()
    if (isFirst) {
      isFirst = false
      return
    }
    const byLease = new Map(candidates.map((row) => [store.leaseAt(row.address, row.token), row]))
    const nodes = store.byNode([...byLease.keys()])
    // One node that cannot be reached costs no other its leases: it comes last in the next heartbeat.
    const inOrder = [...nodes.keys()].sort((a, b) => Number(failing.has(a)) - Number(failing.has(b)))
    for (const node of inOrder) {
      const isRenewed = await renewAll((nodes.get(node) ?? []).flatMap((lease) => byLease.get(lease) ?? []))
      if (isRenewed) failing.delete(node)
      else failing.add(node)
    }
  }

  /** The rows that live long enough to be renewed; the next heartbeat comes early enough for those that were just claimed. */
  function longHeld(): RowToRenew[] {
    for (const [index, { generation }] of longAddresses)
      if (!held.isHeld({ index, generation })) longAddresses.delete(index)
    const moment = isHastened ? Number.POSITIVE_INFINITY : clock.monotonicNow() - timing.heartbeatMs / 2
    isHastened = false
    return held.claimedBefore(moment, ({ index, generation }) => {
      const known = longAddresses.get(index)
      return known?.generation === generation ? known.address : undefined
    })
  }

  /** False: they, or some of them, could not be renewed. */
  async function renewAll(ofNode: readonly RowToRenew[]): Promise<boolean> {
    let isRenewed = true
    for (const [leaseMs, due] of dueAmong(ofNode)) {
      for (let from = 0; from < due.length; from += MAX_ROWS_PER_RENEWAL) {
        isRenewed =
          (await renewWithOneRetry(due.slice(from, from + MAX_ROWS_PER_RENEWAL), leaseMs)) && isRenewed
      }
    }
    return isRenewed
  }

  /** The rows by the lease they get: the last one ends with the longest hold, and is not renewed. */
  function dueAmong(candidates: readonly RowToRenew[]): Map<number, RowToRenew[]> {
    const now = clock.monotonicNow()
    const due = new Map<number, RowToRenew[]>()
    const step = timing.heartbeatMs / 8
    for (const row of candidates) {
      const remaining = row.claimedAt + timing.maxLeases * timing.leaseMs - now
      // The first heartbeat of the last lease falls within one interval of its start; the second allows for a late one.
      if (remaining <= timing.leaseMs - 2 * timing.heartbeatMs) continue
      // Rounded, so that rows of many claims still share a few statements.
      const leaseMs = remaining >= timing.leaseMs ? timing.leaseMs : Math.floor(remaining / step) * step
      const alike = due.get(leaseMs)
      if (alike === undefined) due.set(leaseMs, [row])
      else alike.push(row)
    }
    return due
  }

  /** RULE-020-012: a database that cannot be reached ends the processing. One retry tells an outage from a hiccup. */
  async function renewWithOneRetry(batch: readonly RowToRenew[], leaseMs: number): Promise<boolean> {
    try {
      await renew(batch, leaseMs)
      return true
    } catch {
      const still = batch.filter((row) => held.isHeld(row))
      try {
        await renew(still, leaseMs)
        return true
      } catch (error) {
        // All of them are lost before any loss is reported: the slot of the first must not be given to the next.
        // What is finished may still be settled for as long as its lease is trusted: the database decides by the token.
        const lost = still.filter((row) => !held.isFinished(row) && held.lose(row))
        send({
          type: 'renewalFailed',
          name,
          ids: still.map((row) => store.leaseAt(row.address, 0n).id),
          error,
        })
        for (const row of lost) send({ type: 'lost', name, row, reason: 'heartbeatFailed' })
        return false
      }
    }
  }

  async function renew(batch: readonly RowToRenew[], leaseMs: number): Promise<void> {
    if (batch.length === 0) return
    const startedAt = clock.monotonicNow()
    const byLease = new Map(batch.map((row) => [store.leaseAt(row.address, row.token), row]))
    const renewal = await store.renew([...byLease.keys()], leaseMs)
    for (const lease of renewal.renewed) {
      const row = byLease.get(lease)
      if (row !== undefined) held.renewed(row, renewal.trustedUntil)
    }
    for (const lease of renewal.busy) {
      const row = byLease.get(lease)
      if (row !== undefined) locked.push(row)
    }
    for (const lease of renewal.lost) {
      const row = byLease.get(lease)
      // A row that was settled meanwhile is no longer held, and not lost.
      if (row !== undefined && held.lose(row)) send({ type: 'lost', name, row, reason: 'taken' })
    }
    const durationMs = clock.monotonicNow() - startedAt
    send({ type: 'renewed', name, count: renewal.renewed.length, busy: renewal.busy.length, durationMs })
  }

  function lockedRetryMs(): number {
    if (locked.length === 0) return Number.POSITIVE_INFINITY
    return Math.min(MAX_LOCKED_ROW_RETRY_MS, timing.heartbeatMs / LOCKED_ROW_RETRIES_PER_HEARTBEAT)
  }

  /** All rows are renewed now. */
  function hasten(): void {
    isHastened = true
    beganAt = Number.NEGATIVE_INFINITY
    loop.hasten()
  }

  const loop = createLoop({
    name: `renewal of ${name}`,
    work: beat,
    // From start to start, not from the end of one to the start of the next: a slow statement must not stretch it.
    pauseMs: () =>
      Math.max(0, Math.min(beganAt + timing.heartbeatMs - clock.monotonicNow(), lockedRetryMs())),
    onError: (error) => send({ type: 'trouble', what: `the renewal of ${name}`, error }),
  })

  return {
    loop: { ...loop, hasten },
    hold({ index, generation }, address) {
      longAddresses.set(index, { generation, address })
    },
    change(changed) {
      timing = changed
      // A shorter lease may be over before the next heartbeat of the old one.
      hasten()
    },
  }
}

/** A renewal that takes longer than this counts as failed; the lease must outlast two attempts. */
const RENEWAL_TIMEOUT_MS = 5_000

type OfType<Type extends ToHeartbeat['type']> = Extract<ToHeartbeat, { readonly type: Type }>

/** The renewals of a worker process, one for each of its workers, and the connections they share. */
export class Renewals {
  readonly db: Database
  readonly #owner: string
  readonly #send: (message: FromHeartbeat) => void
  readonly #byName = new Map<string, Renewal>()

  constructor({ databaseUrl, worker }: HeartbeatConfig, send: (message: FromHeartbeat) => void) {
    this.#owner = worker.id
    this.#send = send
    this.db = openDatabase({
      url: databaseUrl,
      applicationName: `leasehold heartbeat ${worker.id}`.slice(0, 63),
      // Several, so that a lock on one table does not delay the renewals of the others.
      maxConnections: 3,
      queryTimeoutMs: RENEWAL_TIMEOUT_MS,
      neededRole: 'worker',
    })
  }

  serve({ name, table, shape, bucket, held, timing }: OfType<'serve'>): void {
    const renewal = createRenewal({
      name,
      store: leaseStore(this.db, table, shape, {
        owner: this.#owner,
        bucket,
        onDataError: (report) => this.#send({ type: 'dataError', name, ...report }),
      }),
      held: new HeldRows(held),
      timing,
      clock: systemClock,
      send: this.#send,
    })
    this.#byName.set(name, renewal)
    renewal.loop.start()
  }

  hold({ name, row, address }: OfType<'hold'>): void {
    this.#byName.get(name)?.hold(row, address)
  }

  change({ name, timing }: OfType<'timing'>): void {
    this.#byName.get(name)?.change(timing)
  }

  /** The next heartbeats are due now. */
  hasten(): void {
    for (const { loop } of this.#byName.values()) loop.hasten()
  }

  async stop(): Promise<void> {
    await Promise.all([...this.#byName.values()].map(async ({ loop }) => loop.stop()))
  }
}
