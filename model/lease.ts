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
  readonly reapLooksAtTime: boolean
}

export const PROTOCOL: Protocol = {
  guard: 'owner and token',
  replayKeepsToken: true,
  trustFrom: 'sent',
  clockLag: 0,
  uniqueKey: true,
  reapLooksAtTime: true,
}

type Status = 'pending' | 'leased' | 'done' | 'dead'

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
}

interface Lease {
  readonly token: number
  readonly nth: number
  readonly trust: number
  readonly sent: boolean
}

type Kind = 'idle' | 'claim' | 'claimed' | 'end' | 'ended' | 'renew' | 'renewed' | 'lost'

/** A request, or the answer to one. Fields that its kind does not have are 0. */
interface Message {
  readonly kind: Kind
  readonly w: number
  /** -1: a claim that has found no row yet. */
  readonly r: number
  readonly token: number
  readonly nth: number
  readonly trust: number
  readonly as: Outcome
}

export interface State {
  readonly rows: readonly Row[]
  /** By worker, then by row. */
  readonly leases: readonly (readonly Lease[])[]
  readonly main: readonly Message[]
  readonly beat: readonly Message[]
  readonly stray: readonly Message[]
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
}

function message(kind: Kind, w: number, fields: Partial<Message> = {}): Message {
  return { kind, w, r: 0, token: 0, nth: 0, trust: 0, as: 'done', ...fields }
}

const IDLE = message('idle', 0)

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
  const { keys, maxAttempts, maxClaims, maxStray, outcomes, eviction } = bounds
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

  function isHead(state: State, r: number): boolean {
    const isAfterPending = at(othersOfKey, r).some((s) => s < r && rowOf(state, s).status === 'pending')
    return !isAfterPending && !othersInFlight(state, r)
  }

  function isClaimable({ status, wait }: Row): boolean {
    return status === 'pending' && wait === 0
  }

  function indexAllows(state: State, r: number): boolean {
    return !protocol.uniqueKey || !othersInFlight(state, r)
  }

  function claimed(row: Row, owner: number): Row {
    const token = row.token + 1
    const highest = Math.max(row.highest, token)
    return { ...row, status: 'leased', owner, left: bounds.lease, token, nth: row.nth + 1, highest }
  }

  function holds({ owner, token }: Row, m: Message): boolean {
    if (protocol.guard === 'none') return true
    return owner === m.w && (protocol.guard === 'owner' || token === m.token)
  }

  function isStale(row: Row, m: Message): boolean {
    return row.status !== 'leased' || row.nth !== m.nth
  }

  function canRenew(row: Row, m: Message): boolean {
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

  function withMain(state: State, w: number, m: Message): State {
    return { ...state, main: replaced(state.main, w, m) }
  }

  function withBeat(state: State, w: number, m: Message): State {
    return { ...state, beat: replaced(state.beat, w, m) }
  }

  function withLease(state: State, w: number, r: number, lease: Lease): State {
    return { ...state, leases: replaced(state.leases, w, replaced(at(state.leases, w), r, lease)) }
  }

  /** The request changes its row, if it may. */
  function written(state: State, m: Message, row: Row): State {
    return { ...withRow(state, m.r, row), stale: state.stale || isStale(rowOf(state, m.r), m) }
  }

  function strayFrom(m: Message): Message {
    if (m.kind === 'claim') return { ...m, trust: 0, r: -1 }
    return m.kind === 'renew' ? { ...m, trust: 0 } : m
  }

  function withStray(state: State, left: readonly Message[]): State | undefined {
    const known = new Set(state.stray.map(encodeMessage))
    const added = left
      .filter(({ kind }) => kind === 'claim' || kind === 'end' || kind === 'renew')
      .map(strayFrom)
      .filter((m) => !known.has(encodeMessage(m)))
    if (added.length === 0 || state.stray.length + added.length > maxStray) return undefined
    const stray = [...state.stray, ...added].sort((a, b) => encodeMessage(a) - encodeMessage(b))
    return { ...state, stray }
  }

  function stepsOfWorker(state: State, w: number, visit: (action: string, next: State) => void): void {
    const isUp = at(state.up, w)
    const main = at(state.main, w)
    const beat = at(state.beat, w)
    const leases = at(state.leases, w)
    const who = `worker ${w + 1}`
    const what = (r: number): string => `${who}, row ${r + 1}`

    if (isUp && main.kind === 'idle') {
      visit(`SendClaim ${who}`, withMain(state, w, message('claim', w, { r: -1, trust: trusted })))
      for (const r of rows) {
        const lease = at(leases, r)
        if (lease.trust === 0) continue
        for (const as of outcomes) {
          if (as === 'retry' && rowOf(state, r).attempts + 1 >= maxAttempts) continue
          const { token, nth } = lease
          const sent = withLease(state, w, r, { ...lease, sent: true })
          visit(`SendEnd ${what(r)}: ${as}`, withMain(sent, w, message('end', w, { r, token, nth, as })))
        }
      }
    }

    if (main.kind === 'claim') {
      if (main.r === -1) {
        for (const r of rows) {
          const row = rowOf(state, r)
          if (row.nth < maxClaims && isClaimable(row) && isHead(state, r))
            visit(`FindRow ${what(r)}`, withMain(state, w, { ...main, r }))
        }
      } else {
        const { r, trust } = main
        const row = rowOf(state, r)
        if (isClaimable(row) && indexAllows(state, r)) {
          const taken = claimed(row, w)
          const answer = message('claimed', w, { r, trust, token: taken.token, nth: taken.nth })
          visit(`TakeRow ${what(r)}`, withMain(withRow(state, r, taken), w, answer))
        } else visit(`MissRow ${what(r)}`, withMain(state, w, IDLE))
      }
    } else if (main.kind === 'claimed') {
      const { r, token, nth } = main
      const trust = protocol.trustFrom === 'answer' ? trusted : main.trust
      const lease = trust === 0 ? NO_LEASE : { token, nth, trust, sent: false }
      visit(`HearClaim ${what(r)}`, withLease(withMain(state, w, IDLE), w, r, lease))
    } else if (main.kind === 'end') {
      const { r, token } = main
      const answer = message('ended', w, { r, token })
      const row = rowOf(state, r)
      if (holds(row, main))
        visit(
          `EndLease ${what(r)}: ${main.as}`,
          withMain(written(state, main, ended(row, main.as)), w, answer),
        )
      else visit(`FenceOff ${what(r)}`, withMain(state, w, answer))
    } else if (main.kind === 'ended') {
      const { r, token } = main
      const heard = withMain(state, w, IDLE)
      visit(`HearEnd ${what(r)}`, at(leases, r).token === token ? withLease(heard, w, r, NO_LEASE) : heard)
    }

    if (isUp && beat.kind === 'idle') {
      for (const r of rows) {
        const { trust, token, nth } = at(leases, r)
        if (trust === 0 || trust >= trusted) continue
        visit(
          `SendRenewal ${what(r)}`,
          withBeat(state, w, message('renew', w, { r, token, nth, trust: trusted })),
        )
      }
    } else if (beat.kind === 'renew') {
      const row = rowOf(state, beat.r)
      if (canRenew(row, beat)) {
        const renewed = written(state, beat, { ...row, left: bounds.lease })
        visit(`Renew ${what(beat.r)}`, withBeat(renewed, w, { ...beat, kind: 'renewed' }))
      } else visit(`RefuseRenewal ${what(beat.r)}`, withBeat(state, w, { ...beat, kind: 'lost', trust: 0 }))
    } else if (beat.kind === 'renewed' || beat.kind === 'lost') {
      visit(`HearRenewal ${what(beat.r)}`, heardRenewal(withBeat(state, w, IDLE), w, beat))
    }

    if (main.kind !== 'idle') {
      const left = withMain(state, w, IDLE)
      visit(`GiveUp ${who}`, left)
      const stray = withStray(left, [main])
      if (stray !== undefined) visit(`GiveUp ${who}, the request stays on its way`, stray)
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

  function heardRenewal(state: State, w: number, { r, kind, token, trust }: Message): State {
    const lease = at(at(state.leases, w), r)
    if (lease.token !== token || lease.trust === 0) return state
    const trustedNow = protocol.trustFrom === 'answer' && kind === 'renewed' ? trusted : trust
    return withLease(state, w, r, trustedNow === 0 ? NO_LEASE : { ...lease, trust: trustedNow })
  }

  function stepsOfRow(state: State, r: number, visit: (action: string, next: State) => void): void {
    const row = rowOf(state, r)
    const which = `row ${r + 1}`
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

  function stepsOfStray(state: State, m: Message, visit: (action: string, next: State) => void): void {
    const rest = { ...state, stray: state.stray.filter((other) => other !== m) }
    visit(`LoseStray ${m.kind} of worker ${m.w + 1}`, rest)
    if (m.kind === 'claim') {
      for (const r of rows) {
        const row = rowOf(state, r)
        if (row.nth < maxClaims && isClaimable(row) && isHead(state, r))
          visit(`StrayClaim worker ${m.w + 1}, row ${r + 1}`, withRow(rest, r, claimed(row, m.w)))
      }
      return
    }
    const row = rowOf(state, m.r)
    const what = `worker ${m.w + 1}, row ${m.r + 1}`
    if (m.kind === 'end' && holds(row, m))
      visit(`StrayEnd ${what}: ${m.as}`, written(rest, m, ended(row, m.as)))
    if (m.kind === 'renew' && canRenew(row, m))
      visit(`StrayRenewal ${what}`, written(rest, m, { ...row, left: bounds.lease }))
  }

  function tick(state: State): State {
    const older = (m: Message): Message => (m.trust === 0 ? m : { ...m, trust: m.trust - 1 })
    return {
      ...state,
      rows: state.rows.map((row) =>
        row.left === 0 && row.wait === 0 ? row : { ...row, left: less(row.left), wait: less(row.wait) },
      ),
      leases: state.leases.map((ofWorker) =>
        ofWorker.map((lease) => (lease.trust <= 1 ? NO_LEASE : { ...lease, trust: lease.trust - 1 })),
      ),
      main: state.main.map(older),
      beat: state.beat.map(older),
    }
  }

  function canMoveOn(state: State, r: number): boolean {
    const { status, wait } = rowOf(state, r)
    return status === 'leased' || (status === 'pending' && (wait > 0 || isHead(state, r)))
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
          at(othersOfKey, s).every((r) => r > s || rowOf(state, r).finishedOnce),
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
      rows: rows.map(() => NEW_ROW),
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
  return !/^(Crash|GiveUp|GiveUpRenewal|Replay|SendRenewal|Evict)\b|: (retry|release|dead)$/.test(action)
}

/** All rows are finished, or the bound on claims keeps the model from going on. */
export function isFinished(bounds: Bounds): (state: State) => boolean {
  return ({ rows }) =>
    rows.every(({ status }) => status === 'done' || status === 'dead') ||
    rows.some(({ status, nth }) => status === 'pending' && nth >= bounds.maxClaims)
}

// A state as a text: one character, or two, for each of its parts.

const STATUSES: readonly Status[] = ['pending', 'leased', 'done', 'dead']
const KINDS: readonly Kind[] = ['idle', 'claim', 'claimed', 'end', 'ended', 'renew', 'renewed', 'lost']
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

function encodeMessage({ kind, w, r, token, nth, trust, as }: Message): number {
  return packed(KINDS.indexOf(kind), w, r + 1, token, nth, trust, OUTCOMES.indexOf(as))
}

function decodeMessage(all: number): Message {
  return {
    kind: at(KINDS, digit(all, 6)),
    w: digit(all, 5),
    r: digit(all, 4) - 1,
    token: digit(all, 3),
    nth: digit(all, 2),
    trust: digit(all, 1),
    as: at(OUTCOMES, digit(all, 0)),
  }
}

function encode(state: State): string {
  const codes: number[] = []
  const both = (all: number): void => void codes.push(all & 0x7fff, all >> 15)
  for (const row of state.rows) {
    both(packed(STATUSES.indexOf(row.status), row.owner + 1, row.left, row.token, row.nth, row.highest))
    codes.push(packed(row.attempts, row.expiries, row.wait, row.failures, row.finishedOnce ? 1 : 0))
  }
  for (const ofWorker of state.leases)
    for (const { token, nth, trust, sent } of ofWorker) codes.push(packed(token, nth, trust, sent ? 1 : 0))
  state.main.forEach((m) => both(encodeMessage(m)))
  state.beat.forEach((m) => both(encodeMessage(m)))
  state.up.forEach((isUp) => codes.push(isUp ? 1 : 0))
  codes.push(state.stale ? 1 : 0)
  state.stray.forEach((m) => both(encodeMessage(m)))
  return String.fromCharCode(...codes)
}

function decode(text: string, bounds: Bounds): State {
  let next = 0
  const one = (): number => text.charCodeAt(next++)
  const both = (): number => one() | (one() << 15)
  const rows = bounds.keys.map((): Row => {
    const claimed = both()
    const counted = one()
    return {
      status: at(STATUSES, digit(claimed, 5)),
      owner: digit(claimed, 4) - 1,
      left: digit(claimed, 3),
      token: digit(claimed, 2),
      nth: digit(claimed, 1),
      highest: digit(claimed, 0),
      attempts: digit(counted, 4),
      expiries: digit(counted, 3),
      wait: digit(counted, 2),
      failures: digit(counted, 1),
      finishedOnce: digit(counted, 0) === 1,
    }
  })
  const workers = range(bounds.workers)
  const leases = workers.map(() =>
    rows.map((): Lease => {
      const all = one()
      return { token: digit(all, 3), nth: digit(all, 2), trust: digit(all, 1), sent: digit(all, 0) === 1 }
    }),
  )
  const main = workers.map(() => decodeMessage(both()))
  const beat = workers.map(() => decodeMessage(both()))
  const up = workers.map(() => one() === 1)
  const stale = one() === 1
  const stray: Message[] = []
  while (next < text.length) stray.push(decodeMessage(both()))
  return { rows, leases, main, beat, stray, up, stale }
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
