import { type ClaimRequest, openLeaseStore, type LeaseStore } from '../lease/store.ts'
import { keyOf, type Lease } from '../lease/lease.ts'
import type { LeaseTable } from '../lease/table.ts'
import type { Database } from '../postgres/database.ts'
import { quoteIdentifier as quote, quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'

/** A table to be put to the test, and how to fill it. Its rows are deleted: give it one that can bear that. */
export interface LeaseSubject<Outcome extends string = string> {
  readonly db: Database
  readonly table: LeaseTable<Outcome>
  /** Needed when the table has a bucket column: the bucket that `insert` fills. */
  readonly bucket?: number
  /** Needed when the table has lanes: those that `insert` fills, in the order of the rows. */
  readonly lanes?: readonly string[]
  /** Deletes every row. */
  readonly empty: () => Promise<void>
  /** Inserts rows that can be claimed at once and returns their ids in the order in which they are due. */
  readonly insert: (count: number) => Promise<readonly string[]>
  /** An outcome after which the row is not claimed again, and the arguments it needs. */
  readonly final: { readonly outcome: Outcome; readonly args?: Readonly<Record<string, unknown>> }
}

/** What the cases need to look behind the kernel's back. */
export interface Bench {
  readonly subject: LeaseSubject
  store(owner: string): Promise<LeaseStore>
  settle(store: LeaseStore, leases: readonly Lease[], tx?: Queryable): ReturnType<LeaseStore['settle']>
  /** The whole row, byte for byte, as the table has it. */
  image(id: string): Promise<string>
  /** Moves the lease's end into the past, as if its time had run out. */
  expire(...ids: readonly string[]): Promise<void>
  /** Whether the lease ends by the database's clock in `ms`, give or take the second a busy machine may need. */
  endsIn(id: string, ms: number): Promise<boolean>
  attempts(id: string): Promise<number>
  /** Holds the row's lock while the work runs. */
  whileLocked<T>(id: string, work: () => Promise<T>): Promise<T>
}

export type Cases = Readonly<Record<string, (bench: Bench) => Promise<void>>>

/** How long the leases of the suite last: longer than any case runs. */
export const LEASE_MS = 60_000

export function bench(subject: LeaseSubject): Bench {
  const { db, table } = subject
  const target = quoteQualified(table.schema, table.name)
  const until = quote(table.lease.until)

  function row(id: string): { where: string; values: readonly unknown[] } {
    const key = keyOf(table, id)
    const conditions = table.key.map((column, i) => `${quote(column)}::text = $${i + 1}`)
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

  return {
    subject,
    store: async (owner) => {
      const bucket = subject.bucket === undefined ? {} : { bucket: subject.bucket }
      return fromAllLanes(await openLeaseStore(db, table, { owner, ...bucket }), subject.lanes)
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
      const left = `extract(epoch from ${until} - clock_timestamp())::float8 * 1000 as ms`
      const found = await one<{ ms: number | null }>(left, id)
      return found.ms !== null && found.ms <= ms && found.ms > ms - 10_000
    },
    attempts: async (id) => {
      if (table.attempts === undefined) return 0
      return (await one<{ attempts: number }>(`${quote(table.attempts)}::int as attempts`, id)).attempts
    },
    whileLocked: async (id, work) =>
      db.transaction(async (tx) => {
        await one('1 as locked', id, tx, 'for update')
        return work()
      }),
  }
}

/** The cases do not speak of lanes: whatever they claim may come from any. */
function fromAllLanes(store: LeaseStore, keys: LeaseSubject['lanes']): LeaseStore {
  if (keys === undefined) return store
  const wide = (request: ClaimRequest): ClaimRequest => ({
    ...request,
    lanes: keys.map((key) => ({ key, room: request.limit })),
  })
  return {
    ...store,
    claim: async (request) => store.claim(wide(request)),
    exchange: async (settlement, request) => store.exchange(settlement, wide(request)),
  }
}

export function leasesOf(claim: Awaited<ReturnType<LeaseStore['claim']>>): Lease[] {
  return claim.claimed.map(({ lease }) => lease)
}
