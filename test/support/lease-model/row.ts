/** The model of one row, and how each report of a verb changes it. It does not contain SQL. */

export const MAX_ATTEMPTS = 3

export interface Holder {
  readonly owner: string
  readonly token: bigint
  readonly alive: boolean
  /** By the database's clock, in ms: the lease ends at this moment or later, as long as it is alive. */
  readonly untilAtLeast: number
}

export interface ModelRow {
  readonly id: string
  readonly state: 'open' | 'done' | 'dead'
  readonly lease: Holder | undefined
  /** Not claimable before the operation `arrive`. */
  readonly waiting: boolean
  readonly attempts: number
  /** Leases that expired, in a table that counts them (D10). */
  readonly expiries: number
  readonly lastError: string | null
  /** The number of writes by code that does not know about leases. No verb may undo them. */
  readonly edits: number
  /** The token of the last claim. It remains after the lease has ended (D3). */
  readonly lastToken: bigint
}

/** How a lease was ended: by a release, or by one of the outcomes. */
export type Ending = 'release' | 'done' | 'dead' | 'retryNow' | 'retryLater'

/** What one operation reports about one row. */
export type RowEvent =
  | { readonly type: 'inserted'; readonly id: string }
  | {
      readonly type: 'claimed'
      readonly owner: string
      readonly token: bigint
      readonly until: number
      readonly leaseMs: number
      /** The counter in the row that the claim returned. */
      readonly attempts: number
    }
  | {
      readonly type: 'renewed'
      readonly owner: string
      readonly leaseMs: number
      readonly said: readonly { readonly token: bigint; readonly outcome: 'renewed' | 'busy' | 'lost' }[]
    }
  | {
      readonly type: 'ended'
      readonly owner: string
      readonly ending: Ending
      readonly rolledBack: boolean
      readonly said: readonly { readonly token: bigint; readonly outcome: 'ended' | 'fencedOff' | 'busy' }[]
    }
  | { readonly type: 'reaped'; readonly owner: string; readonly token: bigint }
  | { readonly type: 'expired' }
  | { readonly type: 'edited' }
  | { readonly type: 'arrived' }
  | { readonly type: 'replayed' }

/** What happens to an expired lease, as the table declares. */
export interface Rules {
  readonly countsExpiries: boolean
}

export interface Context {
  readonly rules: Rules
  /** The table has a token column, whose token grows by exactly one after the first claim. */
  readonly tokenColumn: boolean
  /** The row before the race. */
  readonly start: ModelRow | undefined
  /** Another operation runs at the same time, and may have locked the row. */
  readonly contended: boolean
  /** The database's clock before the race, in ms. */
  readonly startedAt: number
}

export type Step =
  | { readonly legal: true; readonly row: ModelRow }
  | { readonly legal: false; readonly why: string }

/** The error of a settlement. It is different for every lease, so that mixed-up rows in a batch are detected. */
export function reasonOf(id: string, token: bigint): string {
  return `row ${id}, token ${token}: "no", {it's} \\ over`
}

/** The error that the kernel writes into a row whose lease has expired. */
export const EXPIRED =
  'the lease expired: its worker died, lost the database connection, or took longer than maxLeases allows'

/** An expired lease is taken back first, which is an operation of its own. */
export function isClaimable(row: ModelRow): boolean {
  return row.state === 'open' && !row.waiting && row.lease === undefined
}

/** D10: of such rows a claim takes at most one. */
export function isSuspect(row: ModelRow): boolean {
  return row.expiries >= 2
}

/** Whether the operation locked the row, even in a transaction that was rolled back. */
export function touches(event: RowEvent): boolean {
  if (event.type === 'renewed') return event.said.some(({ outcome }) => outcome === 'renewed')
  if (event.type === 'ended') return event.said.some(({ outcome }) => outcome === 'ended')
  return true
}

export function changes(event: RowEvent): boolean {
  return touches(event) && !(event.type === 'ended' && event.rolledBack)
}

/** Returns the row after the event, or why the event is illegal. */
export function follow(row: ModelRow | undefined, event: RowEvent, context: Context): Step {
  if (event.type === 'inserted') {
    return row === undefined ? legal({ ...NEW_ROW, id: event.id }) : illegal('it was inserted twice')
  }
  if (row === undefined) return illegal(`${event.type} before it was inserted`)
  switch (event.type) {
    case 'claimed':
      return followClaim(row, event, context)
    case 'renewed':
      return followRenewal(row, event, context)
    case 'ended':
      return followEnding(row, event, context)
    case 'reaped':
      return followReap(row, event, context)
    case 'expired':
      if (row.lease === undefined) return illegal('its lease was expired, but it has none')
      return legal({ ...row, lease: { ...row.lease, alive: false } })
    case 'edited':
      return legal({ ...row, edits: row.edits + 1 })
    case 'replayed':
      if (row.state === 'open') return illegal('it was replayed, but it is not finished')
      return legal({ ...row, state: 'open', attempts: 0, expiries: 0, waiting: false })
    case 'arrived':
      break
  }
  return row.waiting ? legal({ ...row, waiting: false }) : illegal('it arrived, but was not waiting')
}

const NEW_ROW: Omit<ModelRow, 'id'> = {
  state: 'open',
  lease: undefined,
  waiting: false,
  attempts: 0,
  expiries: 0,
  lastError: null,
  edits: 0,
  lastToken: 0n,
}

type Event<Type extends RowEvent['type']> = Extract<RowEvent, { readonly type: Type }>

function followClaim(row: ModelRow, event: Event<'claimed'>, context: Context): Step {
  const { owner, token, until } = event
  const by = `claimed by ${owner} with token ${token}`
  if (row.lease?.alive === true) return illegal(`two current holders: ${held(row.lease)}, and it was ${by}`)
  if (!isClaimable(row)) return illegal(`${by}, but it was not claimable`)
  if (token <= row.lastToken) return illegal(`the token did not grow: ${by} after token ${row.lastToken}`)
  // The first token of a row is a time, so that it is none that an earlier row of its id had (D12).
  if (context.tokenColumn && row.lastToken !== 0n && token !== row.lastToken + 1n) {
    return illegal(`the token did not grow by one: ${by} after token ${row.lastToken}`)
  }
  // Both clocks are rounded to a millisecond.
  if (until < context.startedAt + event.leaseMs - 1) return illegal(`${by} for less than the lease`)
  const { attempts } = row
  if (event.attempts !== attempts) return illegal(`${by} at attempt ${event.attempts} instead of ${attempts}`)
  return legal({
    ...row,
    lastToken: token,
    lease: { owner, token, alive: true, untilAtLeast: until },
  })
}

function followRenewal(row: ModelRow, event: Event<'renewed'>, context: Context): Step {
  let after = row
  for (const { token, outcome } of event.said) {
    const lease = currentLease(row, event.owner, token)
    const renewable = lease?.alive === true
    if (outcome === 'renewed') {
      if (!renewable) return illegal(notCurrent(row, 'renewed', event.owner, token))
      const untilAtLeast = Math.max(lease.untilAtLeast, context.startedAt + event.leaseMs)
      after = { ...row, lease: { ...lease, untilAtLeast } }
    } else if (outcome === 'lost' && renewable) {
      return illegal(`the renewal of ${held(lease)} was called lost, but the lease is current`)
    } else if (outcome === 'busy') {
      const before = context.start && currentLease(context.start, event.owner, token)
      if (!context.contended || before?.alive !== true) {
        return illegal(`the renewal with token ${token} of ${event.owner} was called busy without a reason`)
      }
    }
  }
  return legal(after)
}

/** An expired lease can be settled as long as the row was not claimed or reaped. */
function followEnding(row: ModelRow, event: Event<'ended'>, context: Context): Step {
  let after = row
  for (const { token, outcome } of event.said) {
    const lease = currentLease(row, event.owner, token)
    if (outcome === 'ended' && lease === undefined) {
      return illegal(notCurrent(row, event.ending, event.owner, token))
    }
    if (outcome === 'fencedOff' && lease !== undefined) {
      return illegal(`${event.ending} of ${held(lease)} was fenced off, but the lease is current`)
    }
    if (outcome === 'busy') {
      const before = context.start && currentLease(context.start, event.owner, token)
      if (!context.contended || before === undefined)
        return illegal(
          `${event.ending} with token ${token} of ${event.owner} was called busy without a reason`,
        )
    }
    if (outcome === 'ended' && !event.rolledBack) after = end(row, event.ending, token)
  }
  return legal(after)
}

function end(row: ModelRow, ending: Ending, token: bigint): ModelRow {
  const free: ModelRow = { ...row, lease: undefined }
  const failed: ModelRow = { ...free, lastError: reasonOf(row.id, token) }
  const ended: Readonly<Record<Ending, ModelRow>> = {
    release: free,
    done: { ...free, state: 'done' },
    dead: { ...failed, attempts: row.attempts + 1, state: 'dead' },
    // D10: a row whose handler came back did not kill its process.
    retryNow: { ...failed, attempts: row.attempts + 1, expiries: 0 },
    retryLater: { ...failed, attempts: row.attempts + 1, expiries: 0, waiting: true },
  }
  return ended[ending]
}

function followReap(row: ModelRow, event: Event<'reaped'>, { rules }: Context): Step {
  const { lease } = row
  if (lease === undefined) return illegal('it was reaped, but it was not leased')
  if (lease.alive) return illegal(`it was reaped, but the lease is alive: ${held(lease)}`)
  if (lease.owner !== event.owner || lease.token !== event.token) {
    return illegal(`reaped from ${event.owner} with token ${event.token}, but ${held(lease)}`)
  }
  const attempts = row.attempts + 1
  // D4: a row that keeps killing its worker ends as dead.
  const isDead = attempts >= MAX_ATTEMPTS
  return legal({
    ...row,
    attempts,
    lease: undefined,
    lastError: EXPIRED,
    state: isDead ? 'dead' : 'open',
    expiries: row.expiries + (rules.countsExpiries ? 1 : 0),
    // D10: after its first expiry the row is claimable at once.
    waiting: rules.countsExpiries && row.expiries > 0 && !isDead,
  })
}

/** The fence: owner and token (D3). */
function currentLease(row: ModelRow, owner: string, token: bigint): Holder | undefined {
  return row.lease?.owner === owner && row.lease.token === token ? row.lease : undefined
}

function notCurrent(row: ModelRow, what: string, owner: string, token: bigint): string {
  return `not fenced off: ${what} with token ${token} of ${owner}, which is not current: ${held(row.lease)}`
}

function held(lease: Holder | undefined): string {
  if (lease === undefined) return 'it is not leased'
  return `held by ${lease.owner} with token ${lease.token}${lease.alive ? '' : ' (expired)'}`
}

function legal(row: ModelRow): Step {
  return { legal: true, row }
}

function illegal(why: string): Step {
  return { legal: false, why }
}

/** The prefix of every failure of the checker, to distinguish it from an error of PostgreSQL. */
export const OBJECTION = 'The model objects: '

export function objection(why: string): Error {
  return new Error(`${OBJECTION}${why}`)
}
