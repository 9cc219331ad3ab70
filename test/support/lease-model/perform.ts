/** Runs one operation against the real kernel and writes down, row by row, what it reported. */
import type { Claim, Ended, Lease, Looked } from '../../../src/lease/index.ts'
import type { Queryable } from '../../../src/postgres/queryable.ts'
import { objection } from './objection.ts'
import { LEASE_MS, type Operation, type SettleAs } from './operations.ts'
import { type Ending, reasonOf, type RowEvent } from './row.ts'
import type { Outcome } from './tables.ts'
import type { Row, Worker, World } from './world.ts'

const LATER_MS = 3_600_000

export interface Report {
  readonly operation: Operation
  /** By row, in the order of the answer. */
  readonly events: ReadonlyMap<string, RowEvent>
  /** The answer says that nothing more was there to take. */
  readonly exhaustive: boolean
  readonly given: readonly { readonly worker: Worker; readonly lease: Lease }[]
}

type OnLeases = Extract<Operation, { readonly picks: readonly number[] }>

/** Decides at once which leases and rows are meant, and starts when called. */
export function prepare(world: World, ids: readonly string[], operation: Operation): () => Promise<Report> {
  const leases = 'picks' in operation ? pickLeases(world, operation) : []
  return async () => perform(world, ids, operation, leases)
}

async function perform(
  world: World,
  ids: readonly string[],
  operation: Operation,
  leases: readonly Lease[],
): Promise<Report> {
  const { table, admin } = world
  switch (operation.verb) {
    case 'insert': {
      const inserted = await returnedIds(world, admin, table.insert, [operation.rows])
      return report(
        operation,
        inserted.map((id) => [id, { type: 'inserted', id }]),
      )
    }
    case 'claim':
      return claim(workerOf(world, operation.worker), operation)
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
        // An hour: so far in the past that no statement of the same race can be older.
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
  worker: Worker,
  operation: Extract<Operation, { readonly verb: 'claim' }>,
): Promise<Report> {
  const { limit, from } = operation
  const look: Claim<Row> & Looked =
    from === 'place'
      ? await worker.claimer.claim({ limit, leaseMs: LEASE_MS })
      : await lookFromStart(worker, limit)
  const events = look.claimed.map(({ lease, row }): Entry => [
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
  const given = look.claimed.map(({ lease }) => ({ worker, lease }))
  return { ...report(operation, events), exhaustive: look.drained, given }
}

async function lookFromStart({ store }: Worker, limit: number): Promise<Claim<Row> & Looked> {
  const claim = await store.claim({ limit, leaseMs: LEASE_MS })
  return { ...claim, drained: claim.claimed.length < limit }
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
  { ended, fencedOff }: Ended,
  ending: Ending,
  rolledBack: boolean,
): Report {
  const said = sayings(leases, { ended, fencedOff })
  return report(
    operation,
    said.map(([id, said]) => [id, { type: 'ended', owner, ending, rolledBack, said }]),
  )
}

/** What a verb said of each lease, by row. Every lease must be spoken of, as often as it was given. */
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

/** One more round trip, in which the others meet the locks. */
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
