import {
  type ClaimRequest,
  type ClaimRoom,
  type Ended,
  openLeaseStore,
  type LeaseStore,
} from '../lease/store.ts'
import { idValues, type Lease } from '../lease/lease.ts'
import type { LeaseTable } from '../lease/table.ts'
import type { Database } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'

/** A table to be tested, and how to fill it. The suite deletes all its rows, so use a table made for tests. */
export interface LeaseSubject<OutcomeName extends string = string> {
  readonly db: Database
  readonly table: LeaseTable<OutcomeName>
  /** Required if the table has a bucket column: the bucket that `insert` fills. */
  readonly bucket?: number
  /** Required if the table has groups: those that `insert` fills, in the order of the rows. */
  readonly groups?: readonly string[]
  /** Deletes every row. */
  readonly empty: () => Promise<unknown>
  /**
   * Inserts rows that are claimable at once and returns their ids in claim order. In a table with an ordering key each
   * row has its own key, or none.
   */
  readonly insert: (count: number) => Promise<readonly string[]>
  /** An outcome after which the row is not claimable, with its arguments. */
  readonly final: { readonly outcome: OutcomeName; readonly args?: Readonly<Record<string, unknown>> }
}

/** Lets the cases read and change rows without using the kernel. */
export interface Fixture {
  readonly subject: LeaseSubject
  /** Opens a store that claims from all groups. Rows have no retry delay, so that no case has to wait. */
  store(owner: string): Promise<LeaseStore>
  /** Claims until there are this many leases or no more claimable rows. */
  claim(store: LeaseStore, count: number): Promise<Lease[]>
  /** The cycle of a worker, whose clock stands still apart from a millisecond for each reading. */
  cycle(store: LeaseStore): ReturnType<LeaseStore['cycle']>
  /** Room for so many rows, of all groups. */
  room(rows: number): ClaimRoom
  /** Lets the clock of `cycle` go on. */
  passTime(ms: number): void
  settle(store: LeaseStore, leases: readonly Lease[], tx?: Queryable): ReturnType<LeaseStore['settle']>
  /** The whole row as JSON text. */
  image(id: string): Promise<string>
  /** Sets the end of the leases to a moment in the past. */
  expire(...ids: readonly string[]): Promise<void>
  /** Whether the lease ends `ms` after the claim by the database's clock. A slow machine may take 10 s in between. */
  endsIn(id: string, ms: number): Promise<boolean>
  attempts(id: string): Promise<number>
  expiries(id: string): Promise<number>
  /** Runs the work while another session holds the lock of the row. */
  whileLocked<T>(id: string, work: () => Promise<T>): Promise<T>
}

export type Cases = Readonly<Record<string, (createFixture: Fixture) => Promise<void>>>

/** The lease time of the suite. It is longer than any case takes. */
export const LEASE_MS = 60_000
const MAX_DELAY_MS = 10_000

export function createFixture(subject: LeaseSubject): Fixture {
  const { db, table } = subject
  const target = quoteQualified(table.schema, table.name)
  const until = quote(table.lease.until)
  let now = 0

  function row(id: string): { where: string; values: readonly unknown[] } {
    const key = idValues(table, id)
    const conditions = table.id.map((column, i) => `${quote(column)}::text = $${i + 1}`)
    if (table.bucket === undefined) return { where: conditions.join(' and '), values: key }
    conditions.push(`${quote(table.bucket)} = $${key.length + 1}`)
    return { where: conditions.join(' and '), values: [...key, subject.bucket ?? 0] }
  }

  async function one<Row extends object>(
    select: string,
    id: string,
    on: Queryable = db,
    suffix = '',
  ): Promise<Row> {
    const { where, values } = row(id)
    const { rows } = await on.query<Row>({
      text: `select ${select} from ${target} as t where ${where} ${suffix}`,
      values,
    })
    const found = rows[0]
    if (found === undefined) throw new Error(`the table has no row ${id}`)
    return found
  }

  async function counter(column: string | undefined, id: string): Promise<number> {
    if (column === undefined) return 0
    return (await one<{ count: number }>(`coalesce(${quote(column)}, 0)::int as count`, id)).count
  }

  return {
    subject,
    store: async (owner) => {
      const bucket = subject.bucket === undefined ? {} : { bucket: subject.bucket }
      const store = await openLeaseStore(db, { ...table, retry: [] }, { owner, ...bucket })
      return fromAllGroups(store, subject.groups)
    },
    claim: async (store, count) => {
      const leases: Lease[] = []
      for (;;) {
        const claim = await store.claim({ limit: count - leases.length, leaseMs: LEASE_MS })
        leases.push(...leasesOf(claim))
        if (leases.length === count || claim.claimed.length === 0) return leases
      }
    },
    cycle: (store) => store.cycle({ clock: { monotonicNow: () => (now += 1) } }),
    room: (rows) => ({
      rows,
      bytes: Number.POSITIVE_INFINITY,
      leaseMs: LEASE_MS,
      groups: subject.groups?.map((group) => ({ group, room: rows })),
    }),
    passTime: (ms) => {
      now += ms
    },
    settle: async (store, leases, tx) => {
      const { outcome, args } = subject.final
      return store.settle(outcome, leases, {
        ...(args === undefined ? {} : { args: leases.map(() => args) }),
        ...(tx === undefined ? {} : { tx }),
      })
    },
    image: async (id) => (await one<{ image: string }>('to_jsonb(t)::text as image', id)).image,
    expire: async (...ids) => {
      for (const id of ids) {
        const { where, values } = row(id)
        const text = `update ${target} as t set ${until} = now() - interval '1 second' where ${where} and ${until} is not null`
        const { rowCount } = await db.query({ text, values })
        if (rowCount !== 1) throw new Error(`the row ${id} has no lease to expire`)
      }
    },
    endsIn: async (id, ms) => {
      const remaining = `extract(epoch from ${until} - clock_timestamp())::float8 * 1000 as ms`
      const found = await one<{ ms: number | null }>(remaining, id)
      return found.ms !== null && found.ms <= ms && found.ms > ms - MAX_DELAY_MS
    },
    attempts: async (id) => counter(table.attempts?.column, id),
    expiries: async (id) => counter(table.attempts?.expiries, id),
    whileLocked: async (id, work) =>
      db.transaction(async (tx) => {
        await one('1 as locked', id, tx, 'for update')
        return work()
      }),
  }
}

/** The cases do not name groups: every claim is from all of them. */
function fromAllGroups(store: LeaseStore, keys: LeaseSubject['groups']): LeaseStore {
  if (keys === undefined) return store
  const withGroups = (request: ClaimRequest): ClaimRequest => ({
    ...request,
    groups: keys.map((key) => ({ group: key, room: request.limit })),
  })
  return { ...store, claim: async (request) => store.claim(withGroups(request)) }
}

export function leasesOf(claim: Awaited<ReturnType<LeaseStore['claim']>>): Lease[] {
  return claim.claimed.map(({ lease }) => lease)
}

/** The expected result of a settlement or release. */
export function answered(ended: readonly Lease[], fencedOff: readonly Lease[] = []): Ended {
  return { ended, fencedOff, busy: [], refused: [] }
}
