/**
 * How the claims of one bucket find rows, and where each scan starts.
 *
 * While an old snapshot is open anywhere in the database, the index entries of finished rows cannot be removed, and every
 * scan from the start walks past all of them (docs/decisions/003-claim-cursor.md). So a scan continues where the one
 * before it ended. What becomes claimable before the cursor (a late commit, a released row) is found by a scan from the
 * start, which is made as often as its measured cost allows.
 *
 * The next row of an ordering key is claimed together with the settlement of the one before it: the worker knows the keys
 * of the rows that it settles. Keys for which there is no room at that moment are remembered, and named by a later claim.
 */
import type { Clock } from '../clock.ts'
import type { Statement } from '../postgres/queryable.ts'
import type { ClaimReader, FoundRow, Group } from './claims.ts'
import type { ExcludedRows } from './data-errors.ts'
import type { AnswerRow, StatementRunner, Values } from './runner.ts'
import type { LeaseStatement } from './statement.ts'
import type { Way } from './statements.ts'
import { INSTANT, LOWEST } from './table-sql.ts'

/** Scans from the start may take this share of the time, apart from what it takes to claim the rows that they find. */
const SHARE_FOR_FULL_SCANS = 0.03

/** The share while the cursor has reached the end and a scan from the start is unfinished. */
const SHARE_WHEN_DRAINED = 0.1

/** However long a scan from the start took (it may have waited for a lock), the next one is due after this. */
const MAX_FULL_SCAN_PAUSE_MS = 5_000

/** A scan from the start that takes less than this is made whenever the cursor has nothing more. */
const CHEAP_SCAN_MS = 5

/** How much the latest pipeline counts in what claiming or settling a row costs, apart from scans from the start. */
const WEIGHT_OF_LATEST = 0.2

/** A cursor that has come to the end of what is due starts where it was before this time: most transactions are shorter. */
const OVERLAP_MS = 250
const SAMPLE_EVERY_MS = 25

/** How long a way that had nothing to claim is left out, as long as another way has rows; and after a wake-up. */
const RECHECK_MS = 250
const RECHECK_AFTER_WAKE_MS = 50

/** How many rows with an ordering key a scan reads: several may be of one key, or of a key that waits. */
const EXTRA_ROWS = 50
const ROWS_READ = 1_000
/** About 20 ms. */
const MAX_ROWS_READ = 16_000

/** A walk from key to key visits at most this many keys in one statement: about 10 ms. */
const MAX_KEYS_PER_WALK = 1_000

/** How many keys are remembered that can continue: the next rows of others are found by a scan from the start. */
const MAX_CONTINUED = 10_000

/** The part of the room that is left to other keys and rows, when the keys that continue could take all of it. */
const SHARE_FOR_OTHERS = 0.25

/** Suspects are few, so they are looked for this often. */
const SUSPECTS_EVERY_MS = 100

/** How often an idle worker looks for suspects that nothing has announced. */
const SUSPECTS_POLL_MS = 30_000

type Cursor = readonly string[]

/** What a claim may take of suspects. */
export interface SuspectRoom {
  readonly suspects: number
  /** No other suspect is in flight: one that has to run alone may be taken. */
  readonly alone: boolean
}

/** What there is room for. */
export interface ClaimRoom {
  readonly rows: number
  /** Infinite where the table does not say how large a row is. */
  readonly bytes: number
  readonly leaseMs: number
  /** Where the table has groups. */
  readonly groups?: readonly Group[] | undefined
  readonly suspects?: SuspectRoom | undefined
  /** Claim the next rows of keys that can continue, and look for no others. */
  readonly continueOnly?: boolean | undefined
}

/** What the claims of one pipeline have found. */
export interface Harvest<Row> {
  readonly rows: FoundRow<Row>[]
  readonly suspects: string[]
  /** The only suspect is one that has to run alone, as far as is known. */
  alone: boolean
  dueInMs: number | undefined
  /** How many of the rows are the next ones of keys that continue. */
  continued: number
  /** A claim of the pipeline has the room for suspects, of which there is one offer for all buckets. */
  offersSuspects: boolean
  /** A claim was stopped by a row or has lost a race: there may be more. */
  isInterrupted: boolean
  /** The ways that were scanned from the start. */
  readonly fullScans: Set<WayState>
}

export function emptyHarvest<Row>(): Harvest<Row> {
  return {
    rows: [],
    suspects: [],
    alone: false,
    dueInMs: undefined,
    continued: 0,
    offersSuspects: false,
    isInterrupted: false,
    fullScans: new Set(),
  }
}

/** A claim that is due, to be sent together with others. */
export interface DueClaim {
  readonly statement: Statement
  readonly leaseMs: number
  /** The ids of the rows it would take, without taking them. */
  readonly find: Statement | undefined
  /** Its rows are suspects. */
  readonly suspects?: { readonly alone: boolean }
  /** The statement was carried out. */
  answered(rows: readonly AnswerRow[]): void
  /** It was not. */
  failed(): void
}

interface WayState {
  cursor: Cursor | undefined
  /** The one before it: where the next scan starts, so that neighbours that committed out of order are found. */
  previous: Cursor | undefined
  /** Where the cursor was, the oldest first. */
  samples: { readonly at: number; readonly cursor: Cursor }[]
  /** The last scan from the cursor on did not come to the end. */
  more: boolean
  /** How many rows the next one reads, by ordering key: more and more, as long as none of them can be claimed. */
  rows: number
  /** Where a scan from the start goes on that takes several claims: rows that wait for others are read and not claimed. */
  fullScanCursor: Cursor | undefined
  fullScanRows: number
  /** What the last claim of a scan from the start has cost, and when the next one is affordable. */
  fullScanMs: number
  nextFullScan: number
  /** A pipeline that scans from the start is on its way. */
  isFullScanUnderWay: boolean
  /** The last scan was one from the start, and came to the end. */
  hasSeenAll: boolean
  /** It had no more rows. */
  drainedUntil: number
  /** It had no rows at all. */
  emptyUntil: number
}

interface Start {
  readonly cursor: Cursor | undefined
  readonly isFullScan: boolean
}

/** Groups have no cursor: each scan begins with the first row of each. */
const ALL_GROUPS: Start = { cursor: undefined, isFullScan: false }

/** The walk of a group's ordering keys that has not come to the last key. */
interface Walk {
  /** Where it goes on. */
  readonly next: string
  /** It has found rows to claim. */
  readonly found: boolean
  /** How often something had become claimable when it began at the first key. */
  readonly wakes: number
}

export class Scans<Row extends object> {
  readonly #runner: StatementRunner
  readonly #reader: ClaimReader<Row>
  readonly #bucket: number | undefined
  readonly #clock: Clock
  readonly #excluded: ExcludedRows
  readonly #ways: ReadonlyMap<Way, WayState>
  readonly #continued = new Set<string>()
  readonly #walks = new Map<string, Walk>()
  #turn = 0
  #lastWay: Way | undefined
  /** Where suspects are claimed by a pipeline of their own: the last one was. */
  #wereSuspectsLast = false
  /** When they may be looked for again. */
  #suspectsAt = Number.NEGATIVE_INFINITY
  /** Something may have become claimable since they were looked for. */
  #areSuspectsAnnounced = true
  /** The last claim found no suspect that may run in company. */
  #hasOnlyLonely = false
  /** It had room for one that has to run alone, so the next claim may take one. */
  #isLonelyNext = false
  /** Another bucket had the room for suspects in the last pipeline. */
  #doSuspectsWait = false
  /** What a row costs in pipelines without a scan from the start. */
  #msPerRow = 0
  /** How often something may have become claimable: a claim that began before does not know of it. */
  #wakes = 0
  /** The next due row was asked for, and nothing has changed since. */
  #isDueKnown = false
  /** The last claim found nothing, and all others before it, since something was announced. */
  #foundNothing = false

  constructor(
    runner: StatementRunner,
    reader: ClaimReader<Row>,
    { bucket, clock, excluded }: { bucket: number | undefined; clock: Clock; excluded: ExcludedRows },
  ) {
    this.#runner = runner
    this.#reader = reader
    this.#bucket = bucket
    this.#clock = clock
    this.#excluded = excluded
    this.#ways = new Map([...runner.statements.scans.keys()].map((way) => [way, newState()]))
  }

  get ways(): readonly Way[] {
    return [...this.#ways.keys()]
  }

  /** Something may have become claimable. */
  wake(): void {
    this.#wakes += 1
    this.#isDueKnown = false
    this.#foundNothing = false
    this.#areSuspectsAnnounced = true
    const recheckAt = this.#now() + RECHECK_AFTER_WAKE_MS
    for (const state of this.#ways.values()) {
      state.drainedUntil = Number.NEGATIVE_INFINITY
      state.emptyUntil = Math.min(state.emptyUntil, recheckAt)
    }
  }

  /** The next rows of these ordering keys may be claimable. */
  continueKeys(keys: Iterable<string>): void {
    this.#isDueKnown = false
    this.#foundNothing = false
    const byKey = this.#ways.get('key')
    // A walk through a group finds the next rows of its keys.
    if (this.#hasGroups && byKey !== undefined) {
      byKey.drainedUntil = Number.NEGATIVE_INFINITY
      this.#wakes += 1
    }
    if (this.#runner.statements.nextOfKeys === undefined) return
    for (const key of keys) if (this.#continued.size < MAX_CONTINUED) this.#continued.add(key)
  }

  /** There may be more to claim at this moment. */
  get more(): boolean {
    return this.#continued.size > 0 || this.ways.some((way) => this.hasMore(way))
  }

  hasMore(way: Way): boolean {
    return this.#ways.get(way)?.more === true
  }

  /** The walk of this group has stopped before the last key. */
  isWalking(group: string): boolean {
    return this.#walks.has(group)
  }

  /** How many keys can continue. */
  get continued(): number {
    return this.#continued.size
  }

  /** Nothing more can be claimed at this moment, as far as is known. */
  get isDrained(): boolean {
    const now = this.#now()
    if (this.#isLonelyNext || this.#doSuspectsWait) return false
    return this.#continued.size === 0 && [...this.#ways.values()].every((way) => way.drainedUntil > now)
  }

  /** There was nothing to claim, and nothing has changed since, as far as is known. */
  get #isQuiet(): boolean {
    const now = this.#now()
    // Groups are scanned as a whole each time.
    const isDue = (way: WayState): boolean => !way.hasSeenAll && way.nextFullScan <= now
    if (!this.#hasGroups && [...this.#ways.values()].some(isDue)) return false
    return this.#runner.statements.nextDue === undefined ? this.#foundNothing : this.#isDueKnown
  }

  /** It is worth asking when the next row is due. */
  get isDueUnknown(): boolean {
    return this.#runner.statements.nextDue !== undefined && !this.#isDueKnown
  }

  /** In how long a scan from the start is affordable that may find rows before the cursor, or suspects may be looked for. */
  get nextScanInMs(): number | undefined {
    const now = this.#now()
    const fullScans = [...this.#ways.values()].flatMap((way) =>
      way.more || way.hasSeenAll ? [] : [way.nextFullScan],
    )
    const suspects = this.#isCountingExpiries && this.#areSuspectsAnnounced ? [this.#suspectsAt] : []
    const next = Math.min(...[...fullScans, ...suspects].filter((at) => at > now))
    return next === Number.POSITIVE_INFINITY ? undefined : next - now
  }

  /** Everything that is due, for as many rows as there is room. */
  plan(room: ClaimRoom, harvest: Harvest<Row>): DueClaim[] {
    if (room.continueOnly === true) return this.planContinued(room, harvest)
    this.#turn += 1
    if (room.suspects === undefined) this.#isLonelyNext = false
    const now = this.#now()
    // When the next suspect is due is known with that of the next row.
    const isQuiet = this.#isQuiet
    const isPoll = isQuiet && !this.#areSuspectsAnnounced
    const suspectsAt = isPoll ? this.#suspectsAt + SUSPECTS_POLL_MS : this.#suspectsAt
    const areDue = room.suspects !== undefined && now >= suspectsAt && this.#isCountingExpiries
    this.#doSuspectsWait = areDue && harvest.offersSuspects
    const isSuspectsTurn = areDue && !harvest.offersSuspects
    const isSingle = this.#hasGroups || room.rows === 1
    this.#wereSuspectsLast = isSuspectsTurn && isSingle && !this.#wereSuspectsLast
    if (this.#wereSuspectsLast) {
      const claim = this.claimSuspects(room, room.rows, harvest)
      if (claim !== undefined) return [claim]
    }
    const forSuspects =
      isSuspectsTurn && !isSingle ? Math.min(room.suspects?.suspects ?? 0, room.rows - 1) : 0
    const ways = this.#waysInTurn(now, isQuiet)
    const keys = Math.min(
      this.#continued.size,
      room.rows - forSuspects - this.#reservedForOthers(room.rows, ways),
    )
    const free = room.rows - forSuspects - Math.max(0, keys)
    const scans = this.#hasGroups ? ways.slice(0, 1) : free === 1 ? ways.slice(0, 1) : ways
    const bytes = share(room.bytes, (keys > 0 ? 1 : 0) + scans.length)
    const claims: DueClaim[] = []
    if (keys > 0) claims.push(this.#claimNextOfKeys(keys, { ...room, bytes }, harvest))
    for (const [i, way] of scans.entries()) {
      const rows = Math.floor(free / scans.length) + (i < free % scans.length ? 1 : 0)
      if (rows > 0) claims.push(this.scan(way, { ...room, rows, bytes }, harvest))
    }
    const suspects = forSuspects > 0 ? this.claimSuspects(room, forSuspects, harvest) : undefined
    return suspects === undefined ? claims : [...claims, suspects]
  }

  /** The next rows of keys that continue, and nothing else. */
  planContinued(room: ClaimRoom, harvest: Harvest<Row>): DueClaim[] {
    const keys = Math.min(this.#continued.size, room.rows)
    return keys > 0 ? [this.#claimNextOfKeys(keys, room, harvest)] : []
  }

  /** The pipeline took so long, and settled and claimed so many rows. */
  took(ms: number, rows: number, { fullScans }: Harvest<Row>): void {
    const now = this.#now()
    if (rows > 0 && fullScans.size === 0) {
      const weight = this.#msPerRow === 0 ? 1 : WEIGHT_OF_LATEST
      this.#msPerRow += weight * (ms / rows - this.#msPerRow)
    }
    for (const state of this.#ways.values()) {
      if (!fullScans.has(state)) continue
      state.isFullScanUnderWay = false
      state.fullScanMs = Math.max(0, ms - rows * this.#msPerRow)
      const isUnfinished = !state.more && state.fullScanCursor !== undefined
      const share = isUnfinished ? SHARE_WHEN_DRAINED : SHARE_FOR_FULL_SCANS
      state.nextFullScan = now + Math.min(state.fullScanMs / share, MAX_FULL_SCAN_PAUSE_MS)
    }
  }

  /** Asks when the next row is due. */
  askNextDue({ groups = [] }: ClaimRoom, harvest: Harvest<Row>): DueClaim | undefined {
    const { nextDue } = this.#runner.statements
    if (nextDue === undefined) return undefined
    const wakes = this.#wakes
    return this.#due(nextDue, undefined, { groups: groups.map(({ group }) => group) }, (rows) => {
      const [dueInMs] = rows[0] ?? []
      if (typeof dueInMs === 'number') harvest.dueInMs = Math.min(dueInMs, harvest.dueInMs ?? Infinity)
      this.#isDueKnown = wakes === this.#wakes
    })
  }

  /** Claims suspects: as many as may run at once, or one that has to run alone. */
  claimSuspects(
    { leaseMs, suspects, groups = [] }: ClaimRoom,
    limit: number,
    harvest: Harvest<Row>,
  ): DueClaim | undefined {
    const statements = this.#runner.statements.claimSuspects
    if (statements === undefined) return undefined
    harvest.offersSuspects = true
    const { suspects: most = 1, alone = true } = suspects ?? {}
    const takesAny = alone && (most === 1 || this.#hasOnlyLonely)
    // Each may be of the same group.
    const room = Math.min(...groups.map((group) => group.room))
    const values = {
      leaseMs,
      alone: takesAny,
      limit: takesAny ? 1 : Math.min(most, limit, room),
      groups: groups.map(({ group }) => group),
    }
    this.#suspectsAt = this.#now() + SUSPECTS_EVERY_MS
    this.#areSuspectsAnnounced = false
    const due = this.#due(statements.claim, statements.find, values, (rows) => {
      const found = this.#reader.read(rows, this.#bucket)
      this.#hasOnlyLonely = found.length === 0 && !takesAny
      this.#isLonelyNext = this.#hasOnlyLonely && alone
      if (found.length > 0 || this.#hasOnlyLonely) this.#suspectsAt = Number.NEGATIVE_INFINITY
      harvest.rows.push(...found)
      harvest.suspects.push(...found.map(({ lease }) => lease.id))
      harvest.alone = takesAny
    })
    return { ...due, suspects: { alone: takesAny } }
  }

  #claimNextOfKeys(count: number, room: ClaimRoom, harvest: Harvest<Row>): DueClaim {
    const statements = this.#runner.statements.nextOfKeys
    if (statements === undefined) throw new TypeError('the table has no ordering keys')
    const keys = [...this.#continued].slice(0, count)
    for (const key of keys) this.#continued.delete(key)
    const values = { keys, limit: count, bytes: finite(room.bytes), leaseMs: room.leaseMs }
    return this.#due(
      statements.claim,
      statements.find,
      values,
      (rows) => {
        const found = this.#reader.read(rows, this.#bucket)
        harvest.rows.push(...found)
        harvest.continued += found.length
        // Some did not fit into the byte budget.
        if (this.#foundIn(rows) > found.length) this.continueKeys(keys)
      },
      () => this.continueKeys(keys),
    )
  }

  /** A scan by one way. */
  scan(way: Way, room: ClaimRoom, harvest: Harvest<Row>): DueClaim {
    const state = this.#ways.get(way) ?? newState()
    if (this.#hasGroups) return this.#scanGroups(way, state, room, harvest)
    return way === 'order' ? this.#scanInOrder(state, room, harvest) : this.#scanArrived(state, room, harvest)
  }

  #scanInOrder(state: WayState, room: ClaimRoom, harvest: Harvest<Row>): DueClaim {
    const start = this.#start(state)
    const lowest = this.#runner.t.lowestCursor
    const values = { ...this.#scanValues(room), ...cursorValues(start.cursor ?? lowest ?? []) }
    return this.#dueScan('order', values, { start, harvest }, (rows) => {
      const found = this.#reader.read(rows, this.#bucket)
      harvest.rows.push(...found)
      const more = found.length >= room.rows || this.#foundIn(rows) > found.length
      const last = lowest === undefined ? undefined : this.#cursorAt(found.at(-1))
      // A scan from the start that found little was about rows before the cursor.
      if (last !== undefined && (more || !start.isFullScan || state.cursor === undefined))
        this.#moveCursor(state, last)
      state.more = more
      if (start.isFullScan) state.fullScanCursor = undefined
      return true
    })
  }

  #scanArrived(state: WayState, room: ClaimRoom, harvest: Harvest<Row>): DueClaim {
    const start = this.#start(state)
    const usual = Math.min(ROWS_READ, 2 * room.rows + EXTRA_ROWS)
    const toRead = start.isFullScan ? state.fullScanRows : Math.max(usual, state.rows)
    const lowest = this.#runner.t.arrival.map((column) => column.lowest)
    const values = { ...this.#scanValues(room), rows: toRead, ...cursorValues(start.cursor ?? lowest) }
    return this.#dueScan('key', values, { start, harvest }, (rows) => {
      const claimed = rows.filter(([token]) => token !== null)
      const found = this.#reader.read(claimed, this.#bucket)
      harvest.rows.push(...found)
      const at = this.#reader.end + (this.#isSized ? 1 : 0)
      const [read = 0, readTo, noRoomFrom] = rows[0]?.slice(at, at + 3) ?? []
      const isWhole = Number(read) < toRead
      const hadRoom = found.length < room.rows && this.#foundIn(claimed) <= found.length
      const readOrTakenTo = noRoomFrom ?? readTo
      const end = typeof readOrTakenTo === 'string' ? this.#arrivalAt(readOrTakenTo) : undefined
      if (start.isFullScan) {
        // One that found rows starts anew: it would go on through the backlog that the cursor has yet to reach.
        const isOver = isWhole || found.length > 0
        state.fullScanCursor = isOver ? undefined : (end ?? start.cursor)
        state.fullScanRows = isOver ? ROWS_READ : twice(toRead)
        // It goes on, or the cursor has more to read: what it found says nothing of what comes after the cursor.
        if (!isWhole && state.cursor !== undefined && (state.more || found.length === 0)) return false
      }
      state.more = !isWhole || !hadRoom
      state.rows = !start.isFullScan && state.more && found.length === 0 ? twice(toRead) : 0
      if (end !== undefined) this.#moveCursor(state, end)
      return true
    })
  }

  #scanGroups(way: Way, state: WayState, room: ClaimRoom, harvest: Harvest<Row>): DueClaim {
    const { groups = [] } = room
    const names = groups.map(({ group }) => group)
    const lowest = this.#runner.t.orderingKey?.lowest
    const before = new Map(names.map((name) => [name, this.#walks.get(name)]))
    const values = {
      ...this.#scanValues(room),
      groups: names,
      rooms: groups.map((each) => each.room),
      groupCursors: names.map((name) => before.get(name)?.next ?? lowest),
      steps: Math.max(2, Math.ceil(MAX_KEYS_PER_WALK / Math.max(1, names.length))),
    }
    const wakes = this.#wakes
    return this.#dueScan(way, values, { start: ALL_GROUPS, harvest }, (rows) => {
      const claimed = rows.filter(([token]) => token !== null)
      const found = this.#reader.read(claimed, this.#bucket)
      harvest.rows.push(...found)
      state.more = found.length >= room.rows || this.#foundIn(claimed) > found.length
      if (way === 'key') state.more = this.#rememberWalks(rows, before, wakes, harvest) || state.more
      return true
    })
  }

  /** Where the walk of each group has stopped. True: there may be more, after that or before where it began. */
  #rememberWalks(
    rows: readonly AnswerRow[],
    before: ReadonlyMap<string, Walk | undefined>,
    wakes: number,
    harvest: Harvest<Row>,
  ): boolean {
    const at = this.#reader.end + (this.#isSized ? 1 : 0) + 1
    const groupOf = (values: AnswerRow): string => String(values[at])
    const found = new Set(rows.filter(([token]) => token !== null).map(groupOf))
    let more = false
    for (const values of rows) {
      const group = groupOf(values)
      const [stoppedAt, dueInMs] = values.slice(at + 1, at + 3)
      const earlier = before.get(group)
      const hasFound = found.has(group) || earlier?.found === true
      if (typeof dueInMs === 'number') harvest.dueInMs = Math.min(dueInMs, harvest.dueInMs ?? Infinity)
      const began = earlier?.wakes ?? wakes
      if (typeof stoppedAt === 'string') {
        const next = successor(this.#runner, stoppedAt)
        this.#walks.set(group, { next, found: hasFound, wakes: began })
        more = true
        continue
      }
      this.#walks.delete(group)
      // Where all walks from the first key to the last found nothing, and nothing was announced meanwhile, there is nothing.
      more ||= earlier !== undefined && (hasFound || began !== this.#wakes)
    }
    return more
  }

  #dueScan(
    way: Way,
    values: Values,
    { start, harvest }: { readonly start: Start; readonly harvest: Harvest<Row> },
    answered: (rows: readonly AnswerRow[]) => boolean,
  ): DueClaim {
    const statements = this.#runner.statements.scans.get(way)
    const state = this.#ways.get(way)
    if (statements === undefined || state === undefined)
      throw new TypeError(`the table is not claimed by ${way}`)
    if (start.isFullScan) harvest.fullScans.add(state)
    const wakes = this.#wakes
    return this.#due(
      statements.claim,
      statements.find,
      values,
      (rows) => {
        const tellsEnd = answered(rows)
        state.hasSeenAll = start.isFullScan && state.fullScanCursor === undefined
        const isDrained = !state.more && wakes === this.#wakes
        const recheckAt = this.#now() + RECHECK_MS
        if (tellsEnd) state.drainedUntil = isDrained ? recheckAt : Number.NEGATIVE_INFINITY
        const isEmpty = !state.more && rows.every(([token]) => token === null)
        state.emptyUntil = isEmpty ? recheckAt : Number.NEGATIVE_INFINITY
      },
      () => {
        if (!start.isFullScan) return
        state.nextFullScan = Number.NEGATIVE_INFINITY
        state.isFullScanUnderWay = false
      },
    )
  }

  #due(
    claim: LeaseStatement,
    find: LeaseStatement | undefined,
    values: Values,
    answered: (rows: readonly AnswerRow[]) => void,
    failed: () => void = () => undefined,
  ): DueClaim {
    const all = {
      ...values,
      bucket: this.#bucket,
      ...this.#runner.idArrays('excluded', this.#excluded.current()),
    }
    return {
      statement: this.#runner.bind(claim, all),
      leaseMs: Number(values['leaseMs'] ?? 0),
      find: find === undefined ? undefined : this.#runner.bind(find, all),
      answered: (rows) => {
        const wakes = this.#wakes
        const foundSome = rows.some(([token]) => token !== null)
        if (foundSome) this.#isDueKnown = false
        answered(rows)
        this.#foundNothing = !foundSome && wakes === this.#wakes && this.isDrained
      },
      failed,
    }
  }

  /** Where the next scan of a way starts, and whether it is one from the start. */
  #start(state: WayState): Start {
    const now = this.#now()
    const { more, fullScanCursor, fullScanMs, nextFullScan } = state
    const isCheap = !more && fullScanCursor === undefined && fullScanMs < CHEAP_SCAN_MS
    if ((now >= nextFullScan || isCheap || state.cursor === undefined) && !state.isFullScanUnderWay) {
      // Another scan that starts meanwhile does not do the same.
      state.nextFullScan = now + MAX_FULL_SCAN_PAUSE_MS
      state.isFullScanUnderWay = true
      return { cursor: fullScanCursor, isFullScan: true }
    }
    if (more) return { cursor: state.previous ?? state.cursor, isFullScan: false }
    const past = state.samples.findLast(({ at }) => at <= now - OVERLAP_MS) ?? state.samples[0]
    return { cursor: past?.cursor ?? state.cursor, isFullScan: false }
  }

  #moveCursor(state: WayState, cursor: Cursor): void {
    const now = this.#now()
    state.previous = state.cursor
    state.cursor = cursor
    if (now - (state.samples.at(-1)?.at ?? Number.NEGATIVE_INFINITY) < SAMPLE_EVERY_MS) return
    state.samples.push({ at: now, cursor })
    const last = state.samples.findLastIndex(({ at }) => at <= now - OVERLAP_MS)
    if (last > 0) state.samples.splice(0, last)
  }

  /** The ways that may have rows: another one comes first each time. */
  #waysInTurn(now: number, isQuiet: boolean): Way[] {
    const ways = this.ways
    const those = (until: 'emptyUntil' | 'drainedUntil'): Way[] =>
      ways.filter((way) => (this.#ways.get(way)?.[until] ?? 0) <= now)
    const among = [those('emptyUntil'), those('drainedUntil'), ways].find((some) => some.length > 0) ?? ways
    const next = this.#lastWay === undefined ? 0 : (among.indexOf(this.#lastWay) + 1) % among.length
    const inTurn = [...among.slice(next), ...among.slice(0, next)]
    this.#lastWay = inTurn[0]
    if (!isQuiet) return inTurn
    // Nothing was announced: one way at a time is tried, in case an announcement was lost.
    for (const way of this.#ways.values()) way.drainedUntil = now + RECHECK_MS
    return inTurn.slice(0, 1)
  }

  /** Busy keys must not keep all slots: while others may have rows, some of the room is theirs. */
  #reservedForOthers(rows: number, ways: readonly Way[]): number {
    const haveMore = ways.some((way) => this.#ways.get(way)?.more === true)
    if (!haveMore) return 0
    // Of little room: all of it, every so often.
    return Math.floor(rows * SHARE_FOR_OTHERS) || ((this.#turn * SHARE_FOR_OTHERS) % 1 === 0 ? 1 : 0)
  }

  #scanValues({ rows, bytes, leaseMs }: ClaimRoom): Values {
    return { limit: rows, bytes: finite(bytes), leaseMs }
  }

  /** How many rows a claim found, with those for which its byte budget was too small. */
  #foundIn(rows: readonly AnswerRow[]): number {
    return this.#isSized ? Number(rows[0]?.[this.#reader.end] ?? 0) : 0
  }

  /** The cursor at this row; undefined where a null is in its order. A text sorts as its collation says: then before it. */
  #cursorAt(row: FoundRow<Row> | undefined): Cursor | undefined {
    const texts = row && this.#reader.orderOf(row)
    if (texts === undefined) return undefined
    const cursor: string[] = []
    let isExact = true
    for (const [i, { type }] of this.#runner.t.order.entries()) {
      const text = texts[i] ?? null
      if (text === null) return undefined
      isExact &&= !COLLATED.has(type)
      cursor.push(isExact ? cursorValue(text, type) : (LOWEST[type] ?? ''))
    }
    return cursor
  }

  #arrivalAt(readTo: string): Cursor {
    const { arrival } = this.#runner.t
    // The text of a moment has no such character.
    const mark = arrival.length > 1 ? readTo.indexOf('|') : -1
    const texts = mark < 0 ? [readTo] : [readTo.slice(0, mark), readTo.slice(mark + 1)]
    return texts.map((text, i) => cursorValue(text, arrival[i]?.type ?? 'text'))
  }

  get #hasGroups(): boolean {
    return this.#runner.t.group !== undefined
  }

  get #isSized(): boolean {
    return this.#runner.table.bytes !== undefined
  }

  get #isCountingExpiries(): boolean {
    return this.#runner.statements.claimSuspects !== undefined
  }

  #now(): number {
    return this.#clock.monotonicNow()
  }
}

const COLLATED = new Set(['text', 'character varying'])

function newState(): WayState {
  return {
    cursor: undefined,
    previous: undefined,
    samples: [],
    more: false,
    rows: 0,
    fullScanCursor: undefined,
    fullScanRows: ROWS_READ,
    fullScanMs: 0,
    nextFullScan: Number.NEGATIVE_INFINITY,
    isFullScanUnderWay: false,
    hasSeenAll: false,
    drainedUntil: Number.NEGATIVE_INFINITY,
    emptyUntil: Number.NEGATIVE_INFINITY,
  }
}

function cursorValues(cursor: Cursor): Values {
  return Object.fromEntries(cursor.map((value, i) => [`cursor${i + 1}`, value]))
}

/** Moments are returned in UTC. */
function cursorValue(text: string, type: string): string {
  return type === INSTANT && !text.endsWith('infinity') ? `${text}+00` : text
}

function finite(bytes: number): number {
  return Math.min(bytes, Number.MAX_SAFE_INTEGER)
}

function share(bytes: number, parts: number): number {
  return Math.max(1, Math.floor(bytes / Math.max(1, parts)))
}

function twice(rows: number): number {
  return Math.min(MAX_ROWS_READ, Math.max(ROWS_READ, 2 * rows))
}

const INTEGERS = new Set(['smallint', 'integer', 'bigint'])

/**
 * The lowest key above this one: a walk goes on after the key at which it stopped. Inclusive of it, a claim with room for
 * one row would find the same locked head for ever.
 */
function successor({ t }: StatementRunner, key: string): string {
  const type = t.orderingKey?.type ?? 'text'
  if (type === 'uuid') {
    const next = (BigInt(`0x${key.replaceAll('-', '')}`) + 1n).toString(16).padStart(32, '0').slice(-32)
    return next.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
  }
  // No text sorts between a text and the same with the smallest character after it.
  return INTEGERS.has(type) ? String(BigInt(key) + 1n) : `${key}\u0001`
}
