/**
 * The reaper: takes back expired leases (RULE-020-021), and leases of processes that died before they expired (eviction).
 * Any number of reapers may run at once: each row is taken back by one of them, each death is declared by one of them.
 */
import { type Clock, systemClock } from '../../clock.ts'
import { hasCode } from '../../errors.ts'
import type { LeaseStore, Reaped } from '../../lease/store.ts'
import { tableName } from '../../lease/table.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { createDeathWatch, type DeadWorker, declareDead } from './dead-workers.ts'
import { type Events, isDatabaseAway } from '../events.ts'
import { createLoop, type HastenableLoop, type Loop } from '../loop.ts'
import type { OwnersWatch } from './living-owners.ts'
import { forgetAudit, forgetWorkers } from '../registry/registry.ts'

export interface ReaperOptions {
  readonly db: Queryable
  readonly schema: string
  /** The id of this process. */
  readonly worker: string
  readonly stores: readonly LeaseStore[]
  readonly events: Events
  /** Of the table of this store; asked after every run over it. */
  readonly settings: (store: LeaseStore) => { readonly reaperIntervalMs: number; readonly batch?: number }
  /** The ids of expired rows of this store that are not its business: the workers of this process take them back. */
  readonly except?: (store: LeaseStore) => readonly string[]
  /** Whether another process reaps this table, so that this one leaves it alone. Default: none. */
  readonly isLeftToOthers?: (table: string) => boolean
  /** Which owners of expired leases live. Default: nobody asks, and none does. */
  readonly owners?: OwnersWatch
  /** How often to check for dead processes, and how long one may be missing. Default 1,500 and 2,000. */
  readonly eviction?: { readonly checkMs: number; readonly graceMs: number } | false
  /** How long entries of the audit are retained; null: for ever. Default 365 days. */
  readonly auditRetentionMs?: number | null | undefined
  /**
   * Called after each run over tables, with those that this reaper takes care of: one of the last two runs over the table
   * has succeeded. One failure may be an accident; who has never succeeded takes care of nothing (D13).
   */
  readonly onRan?: (tables: readonly string[]) => void
  readonly clock?: Clock
}

/**
 * The rows of a killed process are to run elsewhere within 5 s. Together with `CHECK_WHILE_MISSING_MS` this takes at most
 * 3.75 s, which leaves a second for taking the leases back and for the next claim.
 */
const DEFAULT_EVICTION = { checkMs: 1_500, graceMs: 2_000 }
const DEFAULT_BATCH = 500
const FORGET_EVERY_MS = 3_600_000
/** After so many failures in a row nobody may rely on the reaper of a table. */
const MAX_FAILURES = 2
/** Without tables a reaper only shows that it is alive. */
const PAUSE_WITHOUT_TABLES_MS = 10_000
const AUDIT_RETENTION_MS = 365 * 86_400_000
/** While a process is missing, so that its death is declared when the grace is over and not a whole check later. */
const CHECK_WHILE_MISSING_MS = 250

/** Two: a claim that was on its way when its process died may commit after the first. */
const PASSES = 2
/**
 * A process whose end was seen has died this moment, so claims of it may well be on their way: the passes before the last
 * two follow each other by `CHECK_WHILE_MISSING_MS`, for two seconds, which is the grace of a process that is missing.
 */
const PASSES_AFTER_SEEN_END = PASSES + 8

export interface Reaper extends HastenableLoop {
  /**
   * Takes back at once what a process holds whose end the caller has seen, without waiting until its session is missed.
   * Resolves after the first pass over all tables; without eviction, at once.
   */
  evict(id: string): Promise<void>
}

/** Reaps every table once at the start, then each at its own interval; no error ends it. */
export function createReaper(options: ReaperOptions): Reaper {
  const { eviction = DEFAULT_EVICTION } = options
  const reaping = createReapLoop(options)
  const evicting = eviction === false ? undefined : createEvictionLoop(options, eviction)
  const loops = [reaping, ...(evicting === undefined ? [] : [evicting])]
  return {
    name: 'reaper',
    /** An interval may have changed. */
    hasten: () => reaping.hasten(),
    evict: async (id) => evicting?.evict(id),
    start() {
      for (const loop of loops) loop.start()
    },
    async stop() {
      await Promise.all(loops.map(async (loop) => loop.stop()))
    },
  }
}

/**
 * In a process without a reaper: takes back the expired leases of tables that let claims take them (D5), in the way and at
 * the interval of a reaper. So it neither matters which process finds an expiry, nor is one found in silence.
 */
export function createExpiryLoop(options: Omit<ReaperOptions, 'eviction'>): HastenableLoop {
  const stores = options.stores.filter(({ table }) => table.onExpiry === 'claimable')
  return createReapLoop({ ...options, stores }, { isReaper: false })
}

function createReapLoop(options: ReaperOptions, { isReaper } = { isReaper: true }): HastenableLoop {
  const { db, schema, worker, stores, events, settings, clock = systemClock } = options
  const { auditRetentionMs = AUDIT_RETENTION_MS } = options
  let forgotAt = -Infinity
  /** When each table was last reaped. */
  const reapedAt = new Map<LeaseStore, number>()
  /** How many of the last runs over a table have failed. Before the first one, as many as may not. */
  const failures = new Map(stores.map((store) => [store, MAX_FAILURES]))
  const reapedTables = (): string[] => {
    const { isLeftToOthers = () => false } = options
    const failing = stores.filter((store) => (failures.get(store) ?? 0) >= MAX_FAILURES)
    const failingTables = new Set(failing.map(({ table }) => tableName(table)))
    const all = new Set(stores.map(({ table }) => tableName(table)))
    return [...all].filter((table) => !failingTables.has(table) && !isLeftToOthers(table))
  }
  const dueInMs = (store: LeaseStore): number =>
    (reapedAt.get(store) ?? -Infinity) + settings(store).reaperIntervalMs - clock.monotonicNow()
  async function forgetNowAndThen(): Promise<void> {
    if (clock.monotonicNow() - forgotAt < FORGET_EVERY_MS) return
    await forgetWorkers(db, schema)
    if (auditRetentionMs !== null) await forgetAudit(db, schema, auditRetentionMs)
    forgotAt = clock.monotonicNow()
  }

  return createLoop({
    name: 'reap',
    async work(stop) {
      const startedAt = clock.monotonicNow()
      const due = stores.filter((store) => dueInMs(store) <= 0)
      const counts = await Promise.all(due.map(async (store) => reapTable(options, store, undefined, stop)))
      // From end to start: reaping must not take all of the time, however long it takes.
      due.forEach((store, i) => {
        reapedAt.set(store, clock.monotonicNow())
        failures.set(store, counts[i] === undefined ? (failures.get(store) ?? 0) + 1 : 0)
      })
      options.onRan?.(reapedTables())
      const reached = counts.filter((count) => count !== undefined)
      // A run in which no table could be reached does not count; `reaperFailed` was emitted for each.
      if (isReaper && (reached.length > 0 || stores.length === 0)) {
        const reaped = reached.reduce((total, count) => total + count, 0)
        events.emit('reaperRan', { worker, reaped, durationMs: clock.monotonicNow() - startedAt })
      }
      if (isReaper && !stop.aborted) await forgetNowAndThen()
    },
    pauseMs: () =>
      stores.length === 0 ? PAUSE_WITHOUT_TABLES_MS : Math.max(0, Math.min(...stores.map(dueInMs))),
    onError: (error) => events.emit('reaperFailed', { worker, table: undefined, error }),
  })
}

function createEvictionLoop(
  options: ReaperOptions,
  { checkMs, graceMs }: { readonly checkMs: number; readonly graceMs: number },
): Loop & Pick<Reaper, 'evict'> {
  const { db, schema, worker, stores, events } = options
  const watch = createDeathWatch({ db, schema, self: worker, checkMs, graceMs })
  /** Dead processes whose leases are being taken back, and how many successful passes that still needs. */
  const evicting = new Map<string, number>()
  /** Those that hold nothing in this reaper's tables any more; each reaper takes care of its own tables. */
  const evicted = new Set<string>()
  /** Processes whose end was seen, and the callers that wait for the first pass. */
  const ended = new Map<string, (() => void)[]>()
  let anyMissing = false
  let anyEndedNow = false

  function reportDeath({ id, host, pid, lastSeenAt }: DeadWorker): void {
    events.emit('workerDied', { worker, died: id, host, pid, lastSeenAt })
  }

  /** If the database fails, they stay, and are tried with the next check. */
  async function evictEnded(stop: AbortSignal): Promise<void> {
    anyEndedNow = false
    for (const [id, waiting] of ended) {
      const died = await declareDead(db, schema, id)
      if (died !== undefined) reportDeath(died)
      // A process that stopped in an orderly way is not dead, but may have exited before its handlers returned.
      evicting.set(id, PASSES_AFTER_SEEN_END)
      await evict(id, stop)
      ended.delete(id)
      for (const resolve of waiting) resolve()
    }
  }

  async function evict(id: string, stop: AbortSignal): Promise<void> {
    const counts = await Promise.all(stores.map(async (store) => reapTable(options, store, id, stop)))
    const passes = evicting.get(id) ?? 0
    if (counts.includes(undefined)) return
    if (passes <= 1) {
      evicting.delete(id)
      evicted.add(id)
    } else evicting.set(id, passes - 1)
  }

  const loop = createLoop({
    name: 'eviction',
    async work(stop) {
      await evictEnded(stop)
      const { died, missing, stillDead } = await watch.check([...evicting.keys()])
      anyMissing = missing.length > 0
      for (const one of died) reportDeath(one)
      // One that has returned may hold new leases, which are its own.
      for (const id of evicting.keys()) if (!stillDead.includes(id)) evicting.delete(id)
      for (const id of evicted) if (!stillDead.includes(id)) evicted.delete(id)
      const newlyDead = stillDead.filter((id) => id !== worker && !evicting.has(id) && !evicted.has(id))
      for (const id of newlyDead) evicting.set(id, PASSES)
      for (const { id } of died) evicting.set(id, PASSES)
      for (const id of evicting.keys()) if (!stop.aborted) await evict(id, stop)
    },
    pauseMs() {
      if (anyEndedNow) return 0
      const isRecent = ended.size > 0 || [...evicting.values()].some((passes) => passes > PASSES)
      return anyMissing || isRecent ? Math.min(checkMs, CHECK_WHILE_MISSING_MS) : checkMs
    },
    onError: (error) => {
      // It is the loop that looks at the database most often.
      if (isDatabaseAway(error)) options.owners?.lost()
      events.emit('reaperFailed', { worker, table: undefined, error })
    },
  })
  return {
    ...loop,
    async evict(id) {
      await new Promise<void>((resolve) => {
        ended.set(id, [...(ended.get(id) ?? []), resolve])
        anyEndedNow = true
        loop.hasten()
      })
    },
    async stop() {
      await loop.stop()
      // Another reaper finds them by their sessions.
      for (const waiting of ended.values()) for (const resolve of waiting) resolve()
      ended.clear()
    },
  }
}

/** Takes back expired leases, or all that a dead process holds, in batches. Undefined when it failed (`reaperFailed`). */
async function reapTable(
  { worker, events, settings, except = () => [], isLeftToOthers = () => false, owners }: ReaperOptions,
  store: LeaseStore,
  ownedBy: string | undefined,
  stop: AbortSignal,
): Promise<number | undefined> {
  const table = tableName(store.table)
  if (isLeftToOthers(table)) return 0
  const limit = settings(store).batch ?? DEFAULT_BATCH
  let count = 0
  try {
    for (;;) {
      const which =
        ownedBy === undefined
          ? { except: except(store), ...(owners === undefined ? {} : { living: await owners.find() }) }
          : { ownedBy, reason: `the worker process ${ownedBy} died` }
      const reaped = await store.reap({ limit, ...which })
      for (const row of reaped) events.emit('reaped', reapedEvent(row))
      count += reaped.length
      // A row that stops the statement with a data error makes the batch a little shorter, and there may be more.
      if (reaped.length < limit / 2 || stop.aborted) return count
    }
  } catch (error) {
    // A statement that takes too long may wait for a lock on this table, which says nothing about the database.
    if (isDatabaseAway(error) && !hasCode(error, 'QUERY_TIMEOUT')) owners?.lost()
    events.emit('reaperFailed', { worker, table, error })
    return undefined
  }

  function reapedEvent({ id, token, owner, staleMs, exhausted }: Reaped) {
    const evicted = ownedBy !== undefined
    // A lease that was taken back before it expired was never stale.
    const outcome = exhausted ? ('dead' as const) : ('retry' as const)
    return { worker, table, id, token, owner, staleMs: Math.max(0, staleMs), evicted, outcome }
  }
}
