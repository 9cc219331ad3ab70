import { systemClock } from '../clock.ts'
import type { Database } from '../postgres/database.ts'
import type { Queryable } from '../postgres/queryable.ts'
import { argsJson, isNewest, newestOfEachRow, type OutcomeArgs, refuseMissingArgs } from './batch.ts'
import { ClaimNotes } from './claim-notes.ts'
import { claimOf } from './claim-answer.ts'
import { type ClaimedValues, type ClaimResult, readClaim } from './claim-result.ts'
import { fitTable } from './fit.ts'
import type { TableShape } from './inspect.ts'
import { keyOf, type Lease, trustedUntil } from './lease.ts'
import { SWEEP } from './line-sql.ts'
import { LinesToLookAt } from './lines-to-look-at.ts'
import { idColumn, returnedColumns } from './parts.ts'
import { checkBucket, checkDelay, checkLanes, checkLease, checkLimit, checkOwner } from './requests.ts'
import { leaseStatements, type LookStatements, MAX_BATCH } from './sql.ts'
import type { LeaseStatement } from './statement.ts'
import { type LeaseTable, tableName } from './table.ts'

import type { ClaimRequest, Ended, LeaseStore, Reaped, StoreOptions } from './verbs.ts'

export type * from './verbs.ts'

/** Looks at the real table, refuses one that does not fit, and prepares its statements. */
export async function openLeaseStore<
  Row extends object = Record<string, unknown>,
  Outcome extends string = string,
>(db: Database, table: LeaseTable<Outcome>, options: StoreOptions): Promise<LeaseStore<Row, Outcome>> {
  checkOwner(options.owner)
  checkBucket(options.bucket ?? 0)
  return leaseStore(db, table, await fitTable(db, table), options)
}

const UNQUOTED = new Set(['smallint', 'integer', 'bigint', 'uuid'])

/** The store over a table that has been looked at already. */
export function leaseStore<Row extends object = Record<string, unknown>, Outcome extends string = string>(
  db: Queryable,
  table: LeaseTable<Outcome>,
  shape: TableShape,
  options: StoreOptions,
): LeaseStore<Row, Outcome> {
  const { owner, bucket = 0, clock = systemClock } = options
  const statements = leaseStatements(table, shape)
  const columns = { names: returnedColumns(table, shape), id: idColumn(table, shape) }
  const again = new LinesToLookAt()
  const notes = new ClaimNotes()
  /** How many rows a bundle has, of those that were taken last. */
  let perBundle = 1
  /** How many rows to list, if not as many as are asked for: more and more, as long as all are found in vain. */
  let listing = 0

  async function run<Result extends object>(
    statement: LeaseStatement,
    values: Readonly<Record<string, unknown>>,
    on: Queryable = db,
    rowMode?: 'array',
  ): Promise<Result[]> {
    const bound: Readonly<Record<string, unknown>> = { owner, bucket, ...values }
    const { rows } = await on.query<Result>({
      // In a transaction of the caller's, nobody knows whether there is a pooler without prepared statements behind it.
      ...(on === db ? { name: statement.name } : {}),
      text: statement.text,
      values: statement.parameters.map((parameter) => bound[parameter]),
      ...(rowMode === undefined ? {} : { rowMode }),
    })
    return rows
  }

  /** The leases as the arrays that the statements take. */
  function batch(leases: Iterable<Lease>): Record<string, unknown> {
    const keys: (readonly string[])[] = []
    const tokens: bigint[] = []
    for (const lease of leases) {
      keys.push(keyOf(table, lease.id))
      tokens.push(lease.token)
    }
    const columns = table.key.map((column, i) => {
      const values = keys.map((key) => key[i])
      // Nothing in such values needs a quote, which `pg` would look for sign by sign.
      const isPlain = UNQUOTED.has(shape.columns.get(column)?.type ?? '')
      return [`"@k${i + 1}"`, isPlain ? `{${values.join(',')}}` : values] as const
    })
    return { ...Object.fromEntries(columns), tokens: `{${tokens.join(',')}}` }
  }

  async function end(
    statement: LeaseStatement,
    leases: readonly Lease[],
    values: Readonly<Record<string, unknown>> = {},
    on?: Queryable,
  ): Promise<Ended> {
    if (leases.length === 0) return { ended: [], fencedOff: [] }
    const current = newestOfEachRow(leases)
    const rows = await run<EndedRow>(statement, { ...batch(current.values()), ...values }, on)
    const ids = rows.map((row) => row['@id'])
    const { '@advanced': advanced = 0, '@again': left } = rows[0] ?? {}
    const keys = left ?? []
    if (on === undefined) again.add(keys)
    const ended = endedAmong(leases, current, ids, advanced > 0 || keys.length > 0)
    // A transaction of the caller's may yet be rolled back.
    if (on === undefined) notes.ended(leases)
    return on === undefined || keys.length === 0 ? ended : { ...ended, left: keys }
  }

  /** Looks once more at lines that were left while nobody was seen behind, or whose next row was locked. */
  async function comeBack(): Promise<void> {
    const { advance } = statements
    if (advance === undefined || again.isEmpty) return
    await again.spend(async (keys) => {
      const [row] = await run<AdvancedRow>(advance.keys, { keys })
      again.add(row?.['@again'] ?? [])
    })
  }

  function statementFor<Statement>(statements: ReadonlyMap<string, Statement>, outcome: string): Statement {
    const statement = statements.get(outcome)
    if (statement !== undefined) return statement
    throw new TypeError(
      `${outcome} is not an outcome of ${tableName(table)}: it has ${Object.keys(table.outcomes).join(', ')}`,
    )
  }

  function argsOf(
    outcome: Outcome,
    leases: readonly Lease[],
    current: ReadonlyMap<string, Lease>,
    args: readonly OutcomeArgs[] = [],
  ): { args?: string } {
    const declared = Object.keys(table.outcomes[outcome].args)
    if (declared.length === 0) return {}
    refuseMissingArgs(outcome, declared, leases, args)
    return { args: argsJson(leases, current, args) }
  }

  function lookFor(look: LookStatements, { limit, leaseMs, from, lanes }: ClaimRequest): Look {
    checkLimit(limit)
    checkLease(leaseMs)
    checkLanes(table, lanes)
    const resumed = from === undefined ? undefined : look.place
    const places = Object.fromEntries((from ?? []).map((value, i) => [`"@o${i + 1}"`, value]))
    return {
      statement: resumed ?? look.start,
      values: {
        limit,
        leaseMs,
        listing: Math.max(limit, listing),
        bundles: Math.min(Math.max(limit, listing), 2 * Math.ceil(limit / perBundle) + FEW_BUNDLES + listing),
        ...places,
        lanes: lanes?.map(({ key }) => key),
        rooms: lanes?.map(({ room }) => room),
      },
      sentAt: clock.monotonicNow(),
    }
  }

  async function look(
    statement: LeaseStatement,
    values: Readonly<Record<string, unknown>>,
  ): Promise<ClaimResult<Row>> {
    return notes.spend(async (finished) => {
      const rows = await run<ClaimedValues>(statement, { ...values, finished }, db, 'array')
      const read = readClaim<Row>(rows, columns, owner, notes)
      if (read.bundles > 0) perBundle = Math.max(1, read.bundled / read.bundles)
      const inVain = read.bundles > 0 && read.claimed.length === 0
      listing = inVain ? Math.min(MAX_BATCH, Math.max(LISTED_IN_VAIN, 2 * listing)) : 0
      return read
    })
  }

  return {
    table,
    owner,

    async claim(request) {
      await comeBack()
      const { statement, values, sentAt } = lookFor(statements.claim, request)
      const read = await look(statement, values)
      return { ...claimOf(read, request, sentAt, again), ...(read.more ? { advanced: true } : {}) }
    },

    async exchange({ outcome, leases, args }, request) {
      const { statement, values, sentAt } = lookFor(statementFor(statements.exchange, outcome), request)
      const current = newestOfEachRow(leases)
      const held = { ...batch(current.values()), ...argsOf(outcome, leases, current, args) }
      return again.spend(async (keys) => {
        // Those that this statement finishes it removes: whether it does is for the database to see.
        notes.ended(leases)
        const read = await look(statement, { ...values, ...held, again: keys })
        again.add(read.again)
        const more = read.more || read.again.length > 0
        return {
          ...endedAmong(leases, current, read.settled, more),
          ...claimOf(read, request, sentAt, again),
        }
      })
    },

    async renew(leases, leaseMs) {
      checkLease(leaseMs)
      const sentAt = clock.monotonicNow()
      const until = trustedUntil(sentAt, leaseMs)
      const current = newestOfEachRow(leases)
      if (current.size === 0) return { renewed: [], busy: [], lost: [], trustedUntil: until }
      const values = { ...batch(current.values()), leaseMs }
      const rows = await run<{ '@id': string; '@busy': boolean }>(statements.renew, values)
      const busy = new Map(rows.map((row) => [row['@id'], row['@busy']]))
      const answers = leases.map((lease) => (isNewest(current, lease) ? busy.get(lease.id) : undefined))
      return {
        renewed: leases.filter((_, i) => answers[i] === false),
        busy: leases.filter((_, i) => answers[i] === true),
        lost: leases.filter((_, i) => answers[i] === undefined),
        trustedUntil: until,
      }
    },

    async settle(outcome, leases, { args, tx } = {}) {
      const statement = statementFor(statements.settle, outcome)
      const settled = await end(statement, leases, argsOf(outcome, leases, newestOfEachRow(leases), args), tx)
      // Whoever settles need not ever claim.
      await comeBack()
      return settled
    },

    async release(leases, delayMs = 0) {
      checkDelay(delayMs)
      return end(statements.release, leases, { delayMs })
    },

    async reap({ limit = 500, ownedBy } = {}) {
      checkLimit(limit)
      const statement = ownedBy === undefined ? statements.reap : statements.reapOwnedBy
      const rows = await run<ReapedRow>(statement, { limit, ownedBy })
      again.add(rows[0]?.['@again'] ?? [])
      // A reaper need not ever claim.
      await comeBack()
      return rows.map(readReaped)
    },

    lookAgain(keys) {
      again.add(keys)
    },

    async advance({ keys, after, tx } = {}) {
      const { advance } = statements
      if (advance === undefined) return { advanced: 0, last: undefined }
      const from = keys !== undefined ? 'keys' : after === undefined ? 'start' : 'place'
      const [row] = await run<AdvancedRow>(advance[from], { keys, after }, tx)
      const { '@advanced': advanced = 0, '@visited': visited = 0, '@last': last } = row ?? {}
      return { advanced, last: visited < SWEEP || keys !== undefined ? undefined : (last ?? undefined) }
    },
  }
}

interface AdvancedRow {
  readonly '@again': readonly string[]
  readonly '@advanced': number
  readonly '@visited': number
  readonly '@last': string | null
}

interface Look {
  readonly statement: LeaseStatement
  readonly values: Readonly<Record<string, unknown>>
  readonly sentAt: number
}

/** So many bundles more are looked at than were needed last time, before it is decided how many to take. */
const FEW_BUNDLES = 8

/** So many rows are listed after a look in which nothing could be claimed. */
const LISTED_IN_VAIN = 200

function endedAmong(
  leases: readonly Lease[],
  current: ReadonlyMap<string, Lease>,
  /** Undefined: all that were asked about. */
  ids: readonly string[] | undefined,
  advanced: boolean,
): Ended {
  const how = advanced ? { advanced } : {}
  if (ids === undefined && current.size === leases.length) return { ended: leases, fencedOff: [], ...how }
  const changed = ids === undefined ? current : new Set(ids)
  const hasEnded = (lease: Lease): boolean => changed.has(lease.id) && isNewest(current, lease)
  const fencedOff = leases.filter((lease) => !hasEnded(lease))
  return { ended: leases.filter(hasEnded), fencedOff, ...how }
}

interface EndedRow {
  readonly '@id': string
  /** Where rows stand in lines. */
  readonly '@advanced'?: number
  readonly '@again'?: readonly string[] | null
}

interface ReapedRow {
  readonly '@id': string
  readonly '@owner': string
  readonly '@token': string | null
  readonly '@staleMs': number
  readonly '@again'?: readonly string[] | null
}

/** Without a token column, the token is at the end of the owner value. */
function readReaped(row: ReapedRow): Reaped {
  const { '@id': id, '@owner': held, '@token': token, '@staleMs': staleMs } = row
  if (token !== null) return { id, owner: held, token: BigInt(token), staleMs }
  const [, owner = held, carried = '0'] = /^(.*)#(\d+)$/s.exec(held) ?? []
  return { id, owner, token: BigInt(carried), staleMs }
}
