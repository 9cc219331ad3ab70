/** Runs one operation against the real kernel and records what it reported for each row. */
import type { Claim, Ended, Lease } from '../../../src/lease/index.ts'
import type { ClaimRoom } from '../../../src/lease/store.ts'
import type { Queryable } from '../../../src/postgres/queryable.ts'
import { objection, type Ending, reasonOf, type RowEvent } from './row.ts'
import { LEASE_MS, type Operation, type SettleAs } from './operations.ts'
import type { Outcome } from './tables.ts'
import type { Row, Worker, World } from './world.ts'

const LATER_MS = 3_600_000
const POLL_MS = 1_000
/** Expired leases are taken back by an operation of their own. */
const CLAIM = { leaseMs: LEASE_MS, takeExpired: false }

export interface Report {
  readonly operation: Operation
  /** By row, in the order of the result. */
  readonly events: ReadonlyMap<string, RowEvent>
  /** The result says that there were no more rows to take. */
  readonly exhaustive: boolean
  readonly given: readonly { readonly worker: Worker; readonly lease: Lease }[]
}

type OnLeases = Extract<Operation, { readonly picks: readonly number[] }>

/** Chooses the leases and rows now, and runs when called. A pipeline that settles and claims gives two reports. */
export function prepare(
  world: World,
  ids: readonly string[],
  operation: Operation,
): () => Promise<readonly Report[]> {
  const leases = 'picks' in operation ? pickLeases(world, operation) : []
  return async () =>
    operation.verb === 'settleAndClaim'
      ? settleAndClaim(world, operation, leases)
      : [await perform(world, ids, operation, leases)]
}

async function perform(
  world: World,
  ids: readonly string[],
  operation: Exclude<Operation, { readonly verb: 'settleAndClaim' }>,
  leases: readonly Lease[],
): Promise<Report> {
  const { table, admin } = world
  switch (operation.verb) {
    case 'insert': {
      if (operation.late === true) {
        await insertLate(world, operation.rows)
        return report(operation, [])
      }
      return reportInserted(operation, await returnedIds(world, admin, table.insert, [operation.rows]))
    }
    case 'commit':
      return reportInserted(operation, (await world.late.shift()?.commit()) ?? [])
    case 'claim':
      return claim(world, workerOf(world, operation.worker), operation)
    case 'claimRows': {
      const worker = workerOf(world, operation.worker)
      const meant = rowsMeant(ids, operation.rows)
      const request = { ...CLAIM, limit: Math.max(1, meant.length), ids: meant }
      return reportClaim(operation, worker, await worker.store.claim(request), true)
    }
    case 'replay': {
      const { set, finished } = table.replay
      const replay = `update ${table.target} set ${set} where ${table.rowId} = any ($1::text[]) and ${finished}`
      const replayed = await returnedIds(world, admin, replay, [rowsMeant(ids, operation.rows)])
      return report(
        operation,
        replayed.map((id) => [id, { type: 'replayed' }]),
      )
    }
    case 'renew': {
      const { store } = workerOf(world, operation.worker)
      const { renewed, busy, lost } = await store.renew(leases, operation.leaseMs)
      const said = sayings(leases, { renewed, busy, lost })
      return report(
        operation,
        said.map(([id, said]) => [
          id,
          { type: 'renewed', owner: store.owner, leaseMs: operation.leaseMs, said },
        ]),
      )
    }
    case 'settle': {
      const worker = workerOf(world, operation.worker)
      const ended = await settle(worker, operation, leases)
      return reportEnded(operation, worker, leases, ended, operation.as, operation.within === 'rollback')
    }
    case 'release': {
      const worker = workerOf(world, operation.worker)
      return reportEnded(operation, worker, leases, await worker.store.release(leases), 'release', false)
    }
    case 'reap': {
      const reaped = await workerOf(world, operation.worker).store.reap({ limit: operation.limit })
      const events = reaped.map(({ id, owner, token }): Entry => [id, { type: 'reaped', owner, token }])
      return { ...report(operation, events), exhaustive: reaped.length < operation.limit }
    }
    case 'expire': {
      const { until } = table.declaration.lease
      const expired = await returnedIds(
        world,
        admin,
        // An hour, which is further in the past than the start of any statement of the same race.
        `update ${table.target} set ${until} = now() - interval '1 hour'
         where ${table.rowId} = any ($1::text[]) and ${until} is not null`,
        [rowsMeant(ids, operation.rows)],
      )
      return report(
        operation,
        expired.map((id) => [id, { type: 'expired' }]),
      )
    }
    case 'edit': {
      const edit = `update ${table.target} set edits = edits + 1 where ${table.rowId} = any ($1::text[])`
      const edited = await admin.transaction(async (tx) => {
        const written = await returnedIds(world, tx, edit, [rowsMeant(ids, operation.rows)])
        await lingerIn(tx)
        return written
      })
      return report(
        operation,
        edited.map((id) => [id, { type: 'edited' }]),
      )
    }
    case 'arrive':
      break
  }
  const { availableAt } = table.declaration
  const arrived = await returnedIds(
    world,
    admin,
    `update ${table.target} set ${availableAt} = now() where ${availableAt} > now() + interval '1 minute'`,
    [],
  )
  return report(
    operation,
    arrived.map((id) => [id, { type: 'arrived' }]),
  )
}

async function claim(
  { table }: World,
  worker: Worker,
  operation: Extract<Operation, { readonly verb: 'claim' }>,
): Promise<Report> {
  const { limit, from } = operation
  if (from === 'start') {
    const groups = table.groups?.map((key) => ({ group: key, room: limit }))
    const request = { ...CLAIM, limit, ...(groups === undefined ? {} : { groups }) }
    const claim = await worker.store.claim(request)
    return reportClaim(operation, worker, claim, !claim.more && claim.claimed.length < limit)
  }
  const { claim } = await worker.cycle.send({ settlements: [], room: roomFor(table, limit) })
  if (claim === undefined) throw new Error('There was room, and nothing was claimed.')
  // A worker that finds nothing waits until it is time for another scan.
  if (claim.claimed.length === 0) worker.clock.now += claim.nextScanInMs ?? POLL_MS
  // A claim of the cycle may look for rows with ordering keys only, or start after a row that is claimable.
  return reportClaim(operation, worker, claim, false)
}

function roomFor({ groups }: World['table'], rows: number): ClaimRoom {
  return {
    rows,
    bytes: Number.POSITIVE_INFINITY,
    leaseMs: LEASE_MS,
    groups: groups?.map((group) => ({ group, room: rows })),
    suspects: { suspects: 1, alone: true },
  }
}

function reportClaim(
  operation: Operation,
  worker: Worker,
  { claimed }: Claim<Row>,
  exhaustive: boolean,
): Report {
  const events = claimed.map(({ lease, row }): Entry => [
    lease.id,
    {
      type: 'claimed',
      owner: lease.owner,
      token: lease.token,
      until: lease.until.getTime(),
      leaseMs: LEASE_MS,
      attempts: row.attempts,
    },
  ])
  const given = claimed.map(({ lease }) => ({ worker, lease }))
  return { ...report(operation, events), exhaustive, given }
}

/** One pipeline with two reports: what it settled, and what it claimed. */
async function settleAndClaim(
  world: World,
  operation: Extract<Operation, { readonly verb: 'settleAndClaim' }>,
  leases: readonly Lease[],
): Promise<Report[]> {
  const worker = workerOf(world, operation.worker)
  const room = roomFor(world.table, operation.limit)
  const { ended, claim } = await worker.cycle.send({ settlements: [{ outcome: 'done', leases }], room })
  const [settled] = ended
  if (settled === undefined || claim === undefined) throw new Error('The pipeline was answered in part.')
  return [
    reportEnded(operation, worker, leases, settled, 'done', false),
    reportClaim(operation, worker, claim, false),
  ]
}

/** Others see the rows after `commit` was called. */
async function insertLate(world: World, rows: number): Promise<void> {
  const { admin, table } = world
  await new Promise<void>((resolve, reject) => {
    const done = admin.transaction(async (tx) => {
      const ids = await returnedIds(world, tx, table.insert, [rows])
      await new Promise<void>((open) => {
        world.late.push({
          commit: async () => {
            open()
            return done
          },
        })
        resolve()
      })
      return ids
    })
    done.catch(reject)
  })
}

function reportInserted(operation: Operation, ids: readonly string[]): Report {
  return report(
    operation,
    ids.map((id) => [id, { type: 'inserted', id }]),
  )
}

const OUTCOMES: Readonly<Record<SettleAs, Outcome>> = {
  done: 'done',
  dead: 'dead',
  retryNow: 'retry',
  retryLater: 'retry',
}

async function settle(
  { db, store }: Worker,
  { as, within }: Extract<Operation, { readonly verb: 'settle' }>,
  leases: readonly Lease[],
): Promise<Ended> {
  const delay_ms = as === 'retryLater' ? LATER_MS : 0
  const args = leases.map(({ id, token }) => ({ error: reasonOf(id, token), delay_ms }))
  if (within === 'statement') return store.settle(OUTCOMES[as], leases, { args })

  const settled: Ended[] = []
  const changedItsMind = new Error('rolled back')
  try {
    await db.transaction(async (tx) => {
      settled.push(await store.settle(OUTCOMES[as], leases, { args, tx }))
      await lingerIn(tx)
      if (within === 'rollback') throw changedItsMind
    })
  } catch (error) {
    if (error !== changedItsMind) throw error
  }
  const [ended] = settled
  if (ended === undefined) throw new Error('The transaction ended before it had settled.')
  return ended
}

type Entry = readonly [string, RowEvent]

function report(operation: Operation, entries: readonly Entry[]): Report {
  const events = new Map(entries)
  if (events.size < entries.length) throw objection(`the answer of ${operation.verb} names a row twice`)
  return { operation, events, exhaustive: false, given: [] }
}

function reportEnded(
  operation: Operation,
  { store: { owner } }: Worker,
  leases: readonly Lease[],
  { ended, fencedOff, busy, refused }: Ended,
  ending: Ending,
  rolledBack: boolean,
): Report {
  if (refused.length > 0) throw objection(`${ending} was refused: ${String(refused[0]?.error)}`)
  const said = sayings(leases, { ended, fencedOff, busy })
  return report(
    operation,
    said.map(([id, said]) => [id, { type: 'ended', owner, ending, rolledBack, said }]),
  )
}

/** What a verb reported for each lease, by row. It must report every lease, as often as it was given. */
function sayings<Outcome extends string>(
  leases: readonly Lease[],
  answer: Readonly<Record<Outcome, readonly Lease[]>>,
): [string, { token: bigint; outcome: Outcome }[]][] {
  const outcomes = Object.entries<readonly Lease[]>(answer).flatMap(([outcome, of]) =>
    // Object.entries forgets which keys it was given.
    of.map((lease) => ({ lease, outcome: outcome as Outcome })),
  )
  const byRow = new Map<string, { token: bigint; outcome: Outcome }[]>()
  for (const lease of new Set(leases)) {
    const said = outcomes.filter((one) => one.lease === lease)
    const [first] = said
    const asked = leases.filter((one) => one === lease).length
    if (
      first === undefined ||
      said.length !== asked ||
      said.some(({ outcome }) => outcome !== first.outcome)
    ) {
      throw objection(
        `of a lease given ${asked} times the answer says ${JSON.stringify(said.map(({ outcome }) => outcome))}`,
      )
    }
    byRow.set(lease.id, [...(byRow.get(lease.id) ?? []), { token: lease.token, outcome: first.outcome }])
  }
  return [...byRow]
}

function pickLeases(world: World, { leasesOf, picks }: OnLeases): Lease[] {
  const { leases } = workerOf(world, leasesOf)
  return picks.flatMap((n) => leases.at(-1 - (n % leases.length)) ?? [])
}

function workerOf(world: World, n: number): Worker {
  const worker = world.workers[n]
  if (worker === undefined) throw new Error(`There is no worker ${n}.`)
  return worker
}

function rowsMeant(ids: readonly string[], rows: readonly number[]): string[] {
  return rows.flatMap((n) => ids.at(-1 - n) ?? [])
}

/** One more round trip, during which concurrent operations meet the locks. */
async function lingerIn(tx: Queryable): Promise<void> {
  await tx.query({ text: 'select 1' })
}

async function returnedIds(
  { table }: World,
  db: Queryable,
  text: string,
  values: readonly unknown[],
): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>({ text: `${text} returning ${table.rowId} as id`, values })
  return rows.map(({ id }) => id)
}
