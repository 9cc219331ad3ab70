/**
 * The lease protocol as guarded actions: the same as `lease.tla`, action by action and under the same names, for a checker
 * that visits millions of states. The comments are there; a test compares the two by the number of their states.
 */
import type { Model } from './checker.ts'

export type Outcome = 'done' | 'dead' | 'retry' | 'release'

export interface Bounds {
  readonly workers: number
  /** The ordering key of each row; undefined where it has none. */
  readonly keys: readonly (string | undefined)[]
  readonly lease: number
  readonly maxAttempts: number
  readonly maxClaims: number
  readonly maxStray: number
  /** The rows, counted from 0, whose transactions have not yet committed at the start, and may commit or not. */
  readonly late: readonly number[]
  /** What a pipeline claims after a settlement. */
  readonly claims: readonly ('next' | 'any')[]
  readonly outcomes: readonly Outcome[]
  readonly eviction: 'none' | 'dead' | 'any'
}

/** What the mutants change. */
export interface Protocol {
  readonly guard: 'owner and token' | 'owner' | 'none'
  readonly replayKeepsToken: boolean
  readonly trustFrom: 'sent' | 'answer'
  readonly clockLag: number
  readonly uniqueKey: boolean
  readonly recheck: boolean
  readonly nextOfKey: 'first' | 'after'
  readonly hears: 'commit' | 'statement'
  readonly reapLooksAtTime: boolean
}

export const PROTOCOL: Protocol = {
  guard: 'owner and token',
  replayKeepsToken: true,
  trustFrom: 'sent',
  clockLag: 0,
  uniqueKey: true,
  recheck: true,
  nextOfKey: 'first',
  hears: 'commit',
  reapLooksAtTime: true,
}

type Status = 'pending' | 'leased' | 'done' | 'dead' | 'unwritten'

export interface Row {
  readonly status: Status
  /** The number of the worker; -1: nobody. */
  readonly owner: number
  readonly left: number
  readonly token: number
  readonly attempts: number
  readonly expiries: number
  readonly wait: number
  readonly nth: number
  readonly failures: number
  readonly finishedOnce: boolean
  readonly highest: number
  /** The last row of its key that had been claimed when it was committed, counted from 1; 0: none. */
  readonly after: number
}

interface Lease {
  readonly token: number
  readonly nth: number
  readonly trust: number
  readonly sent: boolean
}

interface Claim {
  readonly token: number
  readonly nth: number
}

interface Idle {
  readonly kind: 'idle'
}

interface Pipeline {
  readonly kind: 'pipeline'
  readonly w: number
  /** The row that it settles; -1: none. */
  readonly r: number
  readonly as: Outcome
  readonly token: number
  readonly nth: number
  readonly trust: number
  readonly step: 'sent' | 'next' | 'any' | 'last'
  readonly settled: 'no' | 'ended' | 'fenced' | 'skipped'
  /** The row that a claim has found and not yet taken; -1: none. */
  readonly found: number
  readonly writes: readonly (Row | undefined)[]
}

interface Answer {
  readonly kind: 'committed'
  readonly w: number
  readonly r: number
  readonly token: number
  readonly trust: number
  readonly claims: readonly (Claim | undefined)[]
}

interface Renewal {
  readonly kind: 'renew' | 'renewed' | 'lost'
  readonly w: number
  readonly r: number
  readonly token: number
  readonly nth: number
  readonly trust: number
}

type Stray = Pipeline | Renewal
type Message = Idle | Pipeline | Answer | Renewal
type Visit = (action: string, next: State) => void

export interface State {
  readonly rows: readonly Row[]
  /** By worker, then by row. */
  readonly leases: readonly (readonly Lease[])[]
  readonly main: readonly (Idle | Pipeline | Answer)[]
  readonly beat: readonly (Idle | Renewal)[]
  readonly stray: readonly Stray[]
  readonly up: readonly boolean[]
  readonly stale: boolean
}

const NOBODY = -1
const NO_LEASE: Lease = { token: 0, nth: 0, trust: 0, sent: false }
const NEW_ROW: Row = {
  status: 'pending',
  owner: NOBODY,
  left: 0,
  token: 0,
  attempts: 0,
  expiries: 0,
  wait: 0,
  nth: 0,
  failures: 0,
  finishedOnce: false,
  highest: 0,
  after: 0,
}
const NO_ROW = -1
const DONE: Row = { ...NEW_ROW, status: 'done' }
const IDLE: Idle = { kind: 'idle' }

export const INVARIANTS = [
  'StaleWriteChangesNothing',
  'OneTrustedLease',
  'TokenNeverDecreases',
  'OneInFlightPerKey',
  'KeysAreInOrder',
  'DeadOnlyAfterFailure',
  'AttemptsAreBounded',
  'NothingIsLost',
  'NothingIsStuck',
] as const

export type Invariant = (typeof INVARIANTS)[number]

export function leaseModel(
  bounds: Bounds,
  protocol: Protocol = PROTOCOL,
  checked: readonly Invariant[] = INVARIANTS,
): Model<State> {
  const { keys, maxAttempts, maxClaims, maxStray, claims, outcomes, eviction } = bounds
  const workers = range(bounds.workers)
  const rows = range(keys.length)
  const trusted = bounds.lease + protocol.clockLag
  const othersOfKey = rows.map((r) =>
    rows.filter((s) => s !== r && keys[r] !== undefined && keys[s] === keys[r]),
  )

  const rowOf = (state: State, r: number): Row => at(state.rows, r)
  const inFlight = (state: State, r: number): boolean => rowOf(state, r).status === 'leased'
  const othersInFlight = (state: State, r: number): boolean =>
    at(othersOfKey, r).some((s) => inFlight(state, s))

  function isLocked(r: number, others: readonly Message[]): boolean {
    return others.some((m) => m.kind === 'pipeline' && m.writes[r] !== undefined)
  }

  function everybody({ main, stray }: State): Message[] {
    return [...main, ...stray]
  }

  function sees({ rows: committed }: State, { writes }: Pipeline): readonly Row[] {
    return committed.map((row, r) => writes[r] ?? row)
  }

  function isHead(seen: readonly Row[], r: number): boolean {
    return at(othersOfKey, r).every((s) => {
      const { status } = at(seen, s)
      return status !== 'leased' && (s > r || status !== 'pending')
    })
  }

  function isClaimable({ status, wait }: Row): boolean {
    return status === 'pending' && wait === 0
  }

  function canFind(seen: readonly Row[], r: number): boolean {
    const row = at(seen, r)
    return row.nth < maxClaims && isClaimable(row) && isHead(seen, r)
  }

  function indexRefuses(state: State, m: Pipeline, others: readonly Message[]): boolean {
    if (!protocol.uniqueKey) return false
    return at(othersOfKey, m.found).some(
      (s) => !isLocked(s, others) && (m.writes[s] ?? rowOf(state, s)).status === 'leased',
    )
  }

  function indexWaits(state: State, m: Pipeline, others: readonly Message[]): boolean {
    if (!protocol.uniqueKey) return false
    return at(othersOfKey, m.found).some((s) =>
      others.some((n) => {
        const written = n.kind === 'pipeline' ? n.writes[s] : undefined
        return written !== undefined && (written.status === 'leased' || inFlight(state, s))
      }),
    )
  }

  function claimed(row: Row, owner: number, left: number): Row {
    const token = row.token + 1
    const highest = Math.max(row.highest, token)
    return { ...row, status: 'leased', owner, left, token, nth: row.nth + 1, highest }
  }

  function holds({ owner, token }: Row, m: Stray): boolean {
    if (protocol.guard === 'none') return true
    return owner === m.w && (protocol.guard === 'owner' || token === m.token)
  }

  function isStale(row: Row, m: Stray): boolean {
    return row.status !== 'leased' || row.nth !== m.nth
  }

  function canRenew(row: Row, m: Renewal): boolean {
    return holds(row, m) && row.status === 'leased' && row.left > 0
  }

  function ended(row: Row, as: Outcome): Row {
    const free = { ...row, owner: NOBODY, left: 0 }
    const failed = { attempts: row.attempts + 1, failures: row.failures + 1 }
    const rows: Readonly<Record<Outcome, Row>> = {
      done: { ...free, status: 'done', finishedOnce: true },
      dead: { ...free, ...failed, status: 'dead', finishedOnce: true },
      retry: { ...free, ...failed, status: 'pending', wait: 1, expiries: 0 },
      release: { ...free, status: 'pending' },
    }
    return rows[as]
  }

  function takenBack(row: Row): Row {
    const counted = {
      ...row,
      owner: NOBODY,
      left: 0,
      attempts: row.attempts + 1,
      expiries: row.expiries + 1,
      failures: row.failures + 1,
    }
    return row.attempts + 1 >= maxAttempts
      ? { ...counted, status: 'dead', finishedOnce: true }
      : { ...counted, status: 'pending', wait: row.expiries === 0 ? 0 : 1 }
  }

  function withRow(state: State, r: number, row: Row): State {
    return { ...state, rows: replaced(state.rows, r, row) }
  }

  function withMain(state: State, w: number, m: Idle | Pipeline | Answer): State {
    return { ...state, main: replaced(state.main, w, m) }
  }

  function withBeat(state: State, w: number, m: Idle | Renewal): State {
    return { ...state, beat: replaced(state.beat, w, m) }
  }

  function withLease(state: State, w: number, r: number, lease: Lease): State {
    return { ...state, leases: replaced(state.leases, w, replaced(at(state.leases, w), r, lease)) }
  }

  function renewed(state: State, m: Renewal): State {
    const row = rowOf(state, m.r)
    return {
      ...withRow(state, m.r, { ...row, left: bounds.lease }),
      stale: state.stale || isStale(row, m),
    }
  }

  /** Undefined: there would be too many. */
  function withStray(state: State, left: readonly Message[]): State | undefined {
    const known = new Set(state.stray.map(textOf))
    const added = left
      .filter(isStray)
      .map((m) => (m.kind === 'pipeline' ? m : { ...m, trust: 0 }))
      .filter((m) => !known.has(textOf(m)))
    if (added.length === 0 || state.stray.length + added.length > maxStray) return undefined
    return { ...state, stray: sorted([...state.stray, ...added]) }
  }

  function pipeline(w: number): Pipeline {
    return {
      kind: 'pipeline',
      w,
      r: NO_ROW,
      as: 'done',
      token: 0,
      nth: 0,
      trust: trusted,
      step: 'sent',
      settled: 'no',
      found: NO_ROW,
      writes: rows.map(() => undefined),
    }
  }

  function atStep(m: Pipeline, step: Pipeline['step']): Pipeline {
    if (step !== 'last') return { ...m, step }
    const hasClaims = m.writes.some((row) => row?.status === 'leased')
    return { ...m, step, trust: hasClaims ? m.trust : 0 }
  }

  function afterSettlement(m: Pipeline, settled: Pipeline['settled']): Pipeline {
    const isNextClaimed = claims.includes('next') && keys[m.r] !== undefined
    return atStep(
      { ...m, settled, as: 'done' },
      isNextClaimed ? 'next' : claims.includes('any') ? 'any' : 'last',
    )
  }

  function afterClaim(m: Pipeline): Pipeline {
    const hasMore = m.step === 'next' && claims.includes('any')
    return atStep({ ...m, found: NO_ROW }, hasMore ? 'any' : 'last')
  }

  /** What each statement of an open transaction makes of it. No committed row changes. */
  function statements(
    state: State,
    m: Pipeline,
    others: readonly Message[],
    visit: (action: string, next: Pipeline) => void,
  ): void {
    if (m.step === 'sent' && m.r !== NO_ROW) {
      const row = rowOf(state, m.r)
      const what = `row ${m.r + 1}`
      if (isLocked(m.r, others)) visit(`SkipLocked ${what}`, afterSettlement(m, 'skipped'))
      else if (holds(row, m)) {
        const writes = replaced(m.writes, m.r, ended(row, m.as))
        visit(`EndLease ${what}: ${m.as}`, { ...afterSettlement(m, 'ended'), writes })
      } else visit(`FenceOff ${what}`, afterSettlement(m, 'fenced'))
      return
    }
    const seen = sees(state, m)
    if (m.found === NO_ROW) {
      if (m.step === 'next') {
        const ofKey = protocol.nextOfKey === 'first' ? [m.r, ...at(othersOfKey, m.r)] : laterOfKey(m.r)
        const found = protocol.nextOfKey === 'first' ? seen : seen.map((row, r) => (r < m.r ? DONE : row))
        for (const r of ofKey) if (canFind(found, r)) visit(`FindNext row ${r + 1}`, { ...m, found: r })
      }
      if (m.step === 'last' || (m.step === 'next' && !claims.includes('any'))) return
      for (const r of rows)
        if (canFind(seen, r)) visit(`FindRow row ${r + 1}`, { ...m, step: 'any', found: r })
      return
    }
    const what = `row ${m.found + 1}`
    if (!canTake(seen, m, others)) visit(`MissRow ${what}`, afterClaim(m))
    else if (!indexRefuses(state, m, others) && !indexWaits(state, m, others)) {
      const taken = claimed(at(seen, m.found), m.w, Math.max(0, m.trust - protocol.clockLag))
      visit(`TakeRow ${what}`, afterClaim({ ...m, writes: replaced(m.writes, m.found, taken) }))
    }
  }

  function laterOfKey(r: number): number[] {
    return at(othersOfKey, r).filter((s) => s > r)
  }

  function canTake(seen: readonly Row[], m: Pipeline, others: readonly Message[]): boolean {
    return !isLocked(m.found, others) && (!protocol.recheck || isClaimable(at(seen, m.found)))
  }

  function isRefused(state: State, m: Pipeline, others: readonly Message[]): boolean {
    return m.found !== NO_ROW && canTake(sees(state, m), m, others) && indexRefuses(state, m, others)
  }

  function canCommit({ found, step, r }: Pipeline): boolean {
    return found === NO_ROW && (step !== 'sent' || r === NO_ROW)
  }

  function committed(state: State, m: Pipeline): State {
    const stale = state.stale || (m.settled === 'ended' && isStale(rowOf(state, m.r), m))
    return { ...state, rows: sees(state, m), stale }
  }

  function answer({ w, r, token, trust, settled, writes }: Pipeline): Answer {
    const isOver = settled === 'ended' || settled === 'fenced'
    const claimedRows = writes.map((row) =>
      row?.status === 'leased' ? { token: row.token, nth: row.nth } : undefined,
    )
    return {
      kind: 'committed',
      w,
      r: isOver ? r : NO_ROW,
      token: isOver ? token : 0,
      trust: claimedRows.some((claim) => claim !== undefined) ? trust : 0,
      claims: claimedRows,
    }
  }

  function leaseOf({ token, nth }: Claim, trust: number): Lease {
    return trust === 0 ? NO_LEASE : { token, nth, trust, sent: false }
  }

  function heardPipeline(state: State, w: number, { r, token, trust, claims }: Answer): State {
    const trustedNow = protocol.trustFrom === 'answer' ? trusted : trust
    const leases = at(state.leases, w).map((lease, s) => {
      const claim = claims[s]
      if (claim !== undefined) return leaseOf(claim, trustedNow)
      return s === r && lease.token === token ? NO_LEASE : lease
    })
    return { ...withMain(state, w, IDLE), leases: replaced(state.leases, w, leases) }
  }

  function stepsOfWorker(state: State, w: number, visit: Visit): void {
    const isUp = at(state.up, w)
    const main = at(state.main, w)
    const beat = at(state.beat, w)
    const leases = at(state.leases, w)
    const who = `worker ${w + 1}`
    const what = (r: number): string => `${who}, row ${r + 1}`

    if (isUp && main.kind === 'idle') {
      visit(`SendClaim ${who}`, withMain(state, w, pipeline(w)))
      for (const r of rows) {
        const lease = at(leases, r)
        if (lease.trust === 0) continue
        for (const as of outcomes) {
          if (as === 'retry' && rowOf(state, r).attempts + 1 >= maxAttempts) continue
          const { token, nth } = lease
          const sent = withLease(state, w, r, { ...lease, sent: true })
          visit(
            `SendEnd ${what(r)}: ${as}`,
            withMain(sent, w, {
              ...pipeline(w),
              r,
              token,
              nth,
              as,
              trust: claims.length === 0 ? 0 : trusted,
            }),
          )
        }
      }
    }

    if (main.kind === 'pipeline') {
      const others = [...state.main.filter((_, v) => v !== w), ...state.stray]
      statements(state, main, others, (action, next) =>
        visit(`${action} of ${who}`, withMain(state, w, next)),
      )
      if (isRefused(state, main, others))
        visit(`Refuse ${who}, row ${main.found + 1}`, withMain(state, w, IDLE))
      if (canCommit(main)) visit(`Commit ${who}`, withMain(committed(state, main), w, answer(main)))
      visit(`RollBack ${who}`, withMain(state, w, IDLE))
      if (protocol.hears === 'statement' && main.trust > 0) {
        main.writes.forEach((row, r) => {
          if (row?.status === 'leased' && at(leases, r).nth !== row.nth)
            visit(`HearStatement ${what(r)}`, withLease(state, w, r, leaseOf(row, main.trust)))
        })
      }
    } else if (main.kind === 'committed') visit(`HearPipeline ${who}`, heardPipeline(state, w, main))

    if (isUp && beat.kind === 'idle') {
      for (const r of rows) {
        const { trust, token, nth } = at(leases, r)
        if (trust === 0 || trust >= trusted) continue
        visit(
          `SendRenewal ${what(r)}`,
          withBeat(state, w, { kind: 'renew', w, r, token, nth, trust: trusted }),
        )
      }
    } else if (beat.kind === 'renew') {
      if (isLocked(beat.r, everybody(state))) {
        // It is skipped, and tried again.
      } else if (canRenew(rowOf(state, beat.r), beat))
        visit(`Renew ${what(beat.r)}`, withBeat(renewed(state, beat), w, { ...beat, kind: 'renewed' }))
      else visit(`RefuseRenewal ${what(beat.r)}`, withBeat(state, w, { ...beat, kind: 'lost', trust: 0 }))
    } else if (beat.kind === 'renewed' || beat.kind === 'lost') {
      visit(`HearRenewal ${what(beat.r)}`, heardRenewal(withBeat(state, w, IDLE), w, beat))
    }

    if (main.kind === 'committed') visit(`GiveUp ${who}, the answer is lost`, withMain(state, w, IDLE))
    if (main.kind === 'pipeline') {
      const stray = withStray(withMain(state, w, IDLE), [main])
      if (stray !== undefined) visit(`GiveUp ${who}, the pipeline stays on its way`, stray)
    }
    if (beat.kind !== 'idle') {
      const left = withBeat(state, w, IDLE)
      visit(`GiveUpRenewal ${who}`, left)
      const stray = withStray(left, [beat])
      if (stray !== undefined) visit(`GiveUpRenewal ${who}, the request stays on its way`, stray)
    }
    if (isUp) {
      const left = {
        ...withMain(withBeat(state, w, IDLE), w, IDLE),
        leases: replaced(
          state.leases,
          w,
          rows.map(() => NO_LEASE),
        ),
        up: eviction === 'dead' ? replaced(state.up, w, false) : state.up,
      }
      visit(`Crash ${who}`, left)
      const stray = withStray(left, [main, beat])
      if (stray !== undefined) visit(`Crash ${who}, its requests stay on their way`, stray)
    } else visit(`Restart ${who}`, { ...state, up: replaced(state.up, w, true) })
  }

  function heardRenewal(state: State, w: number, { r, kind, token, trust }: Renewal): State {
    const lease = at(at(state.leases, w), r)
    if (lease.token !== token || lease.trust === 0) return state
    const trustedNow = protocol.trustFrom === 'answer' && kind === 'renewed' ? trusted : trust
    return withLease(state, w, r, trustedNow === 0 ? NO_LEASE : { ...lease, trust: trustedNow })
  }

  function stepsOfRow(state: State, r: number, visit: Visit): void {
    const row = rowOf(state, r)
    const which = `row ${r + 1}`
    if (row.status === 'unwritten')
      visit(
        `CommitLate ${which}`,
        withRow(state, r, { ...row, status: 'pending', after: lastClaimed(state, r) }),
      )
    if (isLocked(r, everybody(state))) return
    if (row.status === 'leased') {
      if (row.left === 0 || !protocol.reapLooksAtTime)
        visit(`Reap ${which}`, withRow(state, r, takenBack(row)))
      const isEvicted = eviction === 'any' || (eviction === 'dead' && !at(state.up, row.owner))
      if (row.left > 0 && isEvicted) visit(`Evict ${which}`, withRow(state, r, takenBack(row)))
    }
    if (row.status === 'done' || row.status === 'dead') {
      const reset = { attempts: 0, expiries: 0, wait: 0, failures: 0 }
      const token = protocol.replayKeepsToken ? row.token : 0
      visit(`Replay ${which}`, withRow(state, r, { ...row, ...reset, status: 'pending', token }))
    }
  }

  /** The last row of its key that was claimed, or that an open transaction is about to claim, counted from 1; 0: none. */
  function lastClaimed(state: State, r: number): number {
    const isClaimed = (s: number): boolean =>
      rowOf(state, s).nth > 0 ||
      everybody(state).some(
        (m) => m.kind === 'pipeline' && (m.found === s || m.writes[s]?.status === 'leased'),
      )
    return Math.max(
      0,
      ...at(othersOfKey, r)
        .filter(isClaimed)
        .map((s) => s + 1),
    )
  }

  function stepsOfStray(state: State, m: Stray, visit: Visit): void {
    const without = state.stray.filter((other) => other !== m)
    const rest = { ...state, stray: without }
    const who = `worker ${m.w + 1}`
    visit(`LoseStray ${m.kind} of ${who}`, rest)
    if (m.kind === 'pipeline') {
      const others = everybody(rest)
      statements(state, m, others, (action, next) =>
        visit(`StrayExecute ${who}: ${action}`, { ...state, stray: sorted([...without, next]) }),
      )
      if (isRefused(state, m, others)) visit(`StrayRefuse ${who}, row ${m.found + 1}`, rest)
      if (canCommit(m)) visit(`StrayCommit ${who}`, { ...committed(state, m), stray: without })
    } else if (!isLocked(m.r, everybody(state)) && canRenew(rowOf(state, m.r), m))
      visit(`StrayRenewal ${who}, row ${m.r + 1}`, renewed(rest, m))
  }

  function tick(state: State): State {
    const aged = (row: Row): Row =>
      row.left === 0 && row.wait === 0 ? row : { ...row, left: less(row.left), wait: less(row.wait) }
    function older<M extends Message>(m: M): M {
      if (m.kind === 'pipeline') {
        const writes = m.writes.map((row) => (row === undefined ? undefined : aged(row)))
        return { ...m, trust: less(m.trust), writes }
      }
      return m.kind === 'idle' || m.trust === 0 ? m : { ...m, trust: m.trust - 1 }
    }
    return {
      ...state,
      rows: state.rows.map(aged),
      leases: state.leases.map((ofWorker) =>
        ofWorker.map((lease) => (lease.trust <= 1 ? NO_LEASE : { ...lease, trust: lease.trust - 1 })),
      ),
      main: state.main.map(older),
      beat: state.beat.map(older),
      stray: sorted(state.stray.map(older)),
    }
  }

  function canMoveOn(state: State, r: number): boolean {
    const { status, wait } = rowOf(state, r)
    return status === 'leased' || (status === 'pending' && (wait > 0 || isHead(state.rows, r)))
  }

  const invariants: Readonly<Record<Invariant, (state: State) => boolean>> = {
    StaleWriteChangesNothing: ({ stale }) => !stale,
    OneTrustedLease: ({ leases }) =>
      rows.every((r) => leases.filter((of) => at(of, r).trust > 0 && !at(of, r).sent).length <= 1),
    TokenNeverDecreases: (state) => state.rows.every(({ token, highest }) => token >= highest),
    OneInFlightPerKey: (state) => rows.every((r) => !inFlight(state, r) || !othersInFlight(state, r)),
    KeysAreInOrder: (state) =>
      rows.every(
        (s) =>
          !rowOf(state, s).finishedOnce ||
          at(othersOfKey, s).every((r) => {
            const { after, status, finishedOnce } = rowOf(state, r)
            return r > s || s < after || status === 'unwritten' || finishedOnce
          }),
      ),
    DeadOnlyAfterFailure: (state) =>
      state.rows.every(({ status, failures }) => status !== 'dead' || failures > 0),
    AttemptsAreBounded: (state) => state.rows.every(({ attempts }) => attempts <= maxAttempts),
    NothingIsLost: (state) =>
      state.rows.every(({ status, owner }) => (status === 'leased') === (owner !== NOBODY)),
    NothingIsStuck: (state) =>
      rows.every(
        (r) =>
          rowOf(state, r).status !== 'pending' ||
          canMoveOn(state, r) ||
          at(othersOfKey, r).some((s) => canMoveOn(state, s)),
      ),
  }

  return {
    initial: {
      rows: rows.map((r) => (bounds.late.includes(r) ? { ...NEW_ROW, status: 'unwritten' } : NEW_ROW)),
      leases: workers.map(() => rows.map(() => NO_LEASE)),
      main: workers.map(() => IDLE),
      beat: workers.map(() => IDLE),
      stray: [],
      up: workers.map(() => true),
      stale: false,
    },
    steps(state, visit) {
      for (const w of workers) stepsOfWorker(state, w, visit)
      for (const r of rows) stepsOfRow(state, r, visit)
      for (const m of state.stray) stepsOfStray(state, m, visit)
      visit('Tick', tick(state))
    },
    encode,
    decode: (text) => decode(text, bounds),
    invariants: Object.fromEntries(checked.map((name) => [name, invariants[name]])),
  }
}

/** Whether the protocol does this by itself: neither a fault, nor an operator, nor a choice to renew or to send back. */
export function isProgress(action: string): boolean {
  return !/^(Crash|GiveUp|GiveUpRenewal|RollBack|Replay|CommitLate|SendRenewal|Evict)\b|: (retry|release|dead)$/.test(
    action,
  )
}

/** All rows are finished, or the bound on claims keeps the model from going on. */
export function isFinished(bounds: Bounds): (state: State) => boolean {
  return ({ rows }) =>
    rows.every(({ status }) => status === 'done' || status === 'dead' || status === 'unwritten') ||
    rows.some(({ status, nth }) => status === 'pending' && nth >= bounds.maxClaims)
}

// A state as a text: one character, or two, for each of its parts.

const STATUSES: readonly Status[] = ['pending', 'leased', 'done', 'dead', 'unwritten']
const KINDS: readonly Message['kind'][] = ['idle', 'pipeline', 'committed', 'renew', 'renewed', 'lost']
const STEPS: readonly Pipeline['step'][] = ['sent', 'next', 'any', 'last']
const SETTLED: readonly Pipeline['settled'][] = ['no', 'ended', 'fenced', 'skipped']
const OUTCOMES: readonly Outcome[] = ['done', 'dead', 'retry', 'release']

/** Numbers in the model stay below 8. */
const DIGIT_BITS = 3

function packed(...digits: readonly number[]): number {
  let all = 0
  for (const digit of digits) all = (all << DIGIT_BITS) | digit
  return all
}

function digit(all: number, fromRight: number): number {
  return (all >> (DIGIT_BITS * fromRight)) & 7
}

/** Appends numbers of up to 15 and up to 30 bits. */
class Writer {
  readonly #codes: number[] = []

  one(all: number): void {
    this.#codes.push(all)
  }

  both(all: number): void {
    this.#codes.push(all & 0x7fff, all >> 15)
  }

  text(): string {
    return String.fromCharCode(...this.#codes)
  }
}

class Reader {
  readonly #text: string
  #next = 0

  constructor(text: string) {
    this.#text = text
  }

  one(): number {
    this.#next += 1
    return this.#text.charCodeAt(this.#next - 1)
  }

  both(): number {
    return this.one() | (this.one() << 15)
  }

  get isAtEnd(): boolean {
    return this.#next === this.#text.length
  }
}

function writeRow(to: Writer, row: Row): void {
  const { owner, left, token, nth, highest, finishedOnce } = row
  to.both(packed(STATUSES.indexOf(row.status), owner + 1, left, token, nth, highest, finishedOnce ? 1 : 0))
  to.one(packed(row.attempts, row.expiries, row.wait, row.failures, row.after))
}

function readRow(from: Reader): Row {
  const claimed = from.both()
  const counted = from.one()
  return {
    status: at(STATUSES, digit(claimed, 6)),
    owner: digit(claimed, 5) - 1,
    left: digit(claimed, 4),
    token: digit(claimed, 3),
    nth: digit(claimed, 2),
    highest: digit(claimed, 1),
    finishedOnce: digit(claimed, 0) === 1,
    attempts: digit(counted, 4),
    expiries: digit(counted, 3),
    wait: digit(counted, 2),
    failures: digit(counted, 1),
    after: digit(counted, 0),
  }
}

function writeMessage(to: Writer, m: Message): void {
  to.one(KINDS.indexOf(m.kind))
  if (m.kind === 'idle') return
  to.both(packed(m.w, m.r + 1, m.token, m.trust, 'nth' in m ? m.nth : 0))
  if (m.kind === 'pipeline') {
    const { as, step, settled, found, writes } = m
    to.one(packed(OUTCOMES.indexOf(as), STEPS.indexOf(step), SETTLED.indexOf(settled), found + 1))
    for (const row of writes) {
      to.one(row === undefined ? 0 : 1)
      if (row !== undefined) writeRow(to, row)
    }
  } else if (m.kind === 'committed') {
    for (const claim of m.claims) to.one(claim === undefined ? 0 : packed(claim.token, claim.nth))
  }
}

function readMessage(from: Reader, rows: number): Message {
  const kind = at(KINDS, from.one())
  if (kind === 'idle') return IDLE
  const head = from.both()
  const [w, r, token, trust, nth] = [
    digit(head, 4),
    digit(head, 3) - 1,
    digit(head, 2),
    digit(head, 1),
    digit(head, 0),
  ]
  if (kind === 'pipeline') {
    const rest = from.one()
    return {
      kind,
      w,
      r,
      token,
      nth,
      trust,
      as: at(OUTCOMES, digit(rest, 3)),
      step: at(STEPS, digit(rest, 2)),
      settled: at(SETTLED, digit(rest, 1)),
      found: digit(rest, 0) - 1,
      writes: range(rows).map(() => (from.one() === 0 ? undefined : readRow(from))),
    }
  }
  if (kind !== 'committed') return { kind, w, r, token, nth, trust }
  const claims = range(rows).map(() => {
    const claim = from.one()
    return claim === 0 ? undefined : { token: digit(claim, 1), nth: digit(claim, 0) }
  })
  return { kind, w, r, token, trust, claims }
}

function textOf(m: Message): string {
  const to = new Writer()
  writeMessage(to, m)
  return to.text()
}

/** Strays are a set. */
function sorted(stray: readonly Stray[]): readonly Stray[] {
  if (stray.length < 2) return stray
  const byText = new Map(stray.map((m) => [textOf(m), m]))
  return [...byText].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, m]) => m)
}

function encode(state: State): string {
  const to = new Writer()
  for (const row of state.rows) writeRow(to, row)
  for (const ofWorker of state.leases)
    for (const { token, nth, trust, sent } of ofWorker) to.one(packed(token, nth, trust, sent ? 1 : 0))
  for (const m of [...state.main, ...state.beat]) writeMessage(to, m)
  state.up.forEach((isUp) => to.one(isUp ? 1 : 0))
  to.one(state.stale ? 1 : 0)
  for (const m of state.stray) writeMessage(to, m)
  return to.text()
}

function decode(text: string, bounds: Bounds): State {
  const from = new Reader(text)
  const count = bounds.keys.length
  const rows = range(count).map(() => readRow(from))
  const workers = range(bounds.workers)
  const leases = workers.map(() =>
    range(count).map((): Lease => {
      const all = from.one()
      return { token: digit(all, 3), nth: digit(all, 2), trust: digit(all, 1), sent: digit(all, 0) === 1 }
    }),
  )
  const messages = <M extends Message>(isOne: (m: Message) => m is M): M => {
    const m = readMessage(from, count)
    if (!isOne(m)) throw new TypeError(`a message of the kind ${m.kind} is not expected here`)
    return m
  }
  const main = workers.map(() => messages(isMain))
  const beat = workers.map(() => messages(isBeat))
  const up = workers.map(() => from.one() === 1)
  const stale = from.one() === 1
  const stray: Stray[] = []
  while (!from.isAtEnd) stray.push(messages(isStray))
  return { rows, leases, main, beat, stray, up, stale }
}

function isMain(m: Message): m is Idle | Pipeline | Answer {
  return m.kind === 'idle' || m.kind === 'pipeline' || m.kind === 'committed'
}

function isBeat(m: Message): m is Idle | Renewal {
  return m.kind === 'idle' || m.kind === 'renew' || m.kind === 'renewed' || m.kind === 'lost'
}

function isStray(m: Message): m is Stray {
  return m.kind === 'pipeline' || m.kind === 'renew'
}

function range(length: number): number[] {
  return Array.from({ length }, (_, i) => i)
}

function replaced<Item>(items: readonly Item[], index: number, item: Item): Item[] {
  const copy = [...items]
  copy[index] = item
  return copy
}

function less(n: number): number {
  return n === 0 ? 0 : n - 1
}

function at<Item>(items: readonly Item[], index: number): Item {
  const item = items[index]
  if (item === undefined) throw new RangeError(`there is no item ${index} among ${items.length}`)
  return item
}
