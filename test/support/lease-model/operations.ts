/** The operations of a history. They are plain data, so that fast-check can shrink and print them. */
import * as fc from 'fast-check'

export const WORKERS = 3
export const LEASE_MS = 600_000
const SHORTER_LEASE_MS = 60_000

/** The leases given to a verb. `picks` counts back, modulo their number, from the newest lease of the worker `leasesOf`. */
interface OnLeases {
  readonly worker: number
  /** Mostly the worker itself. The leases of another worker must be fenced off, even with a current token. */
  readonly leasesOf: number
  readonly picks: readonly number[]
}

export type SettleAs = 'done' | 'dead' | 'retryNow' | 'retryLater'

export type Operation =
  /** Late: the transaction stays open until `commit`. */
  | { readonly verb: 'insert'; readonly rows: number; readonly late?: boolean }
  | { readonly verb: 'commit' }
  | {
      readonly verb: 'claim'
      readonly worker: number
      readonly limit: number
      readonly from: 'start' | 'cursor'
    }
  | { readonly verb: 'claimRows'; readonly worker: number; readonly rows: readonly number[] }
  /** Settles as done, and claims, in one pipeline. */
  | ({ readonly verb: 'settleAndClaim'; readonly limit: number } & OnLeases)
  | ({ readonly verb: 'renew'; readonly leaseMs: number } & OnLeases)
  | ({
      readonly verb: 'settle'
      readonly as: SettleAs
      readonly within: 'statement' | 'commit' | 'rollback'
    } & OnLeases)
  | ({ readonly verb: 'release' } & OnLeases)
  | { readonly verb: 'reap'; readonly worker: number; readonly limit: number }
  /** Expires the leases of these rows, counted back from the newest row. */
  | { readonly verb: 'expire'; readonly rows: readonly number[] }
  /** A write by code that does not know about leases, in its own transaction. */
  | { readonly verb: 'edit'; readonly rows: readonly number[] }
  /** An operator replays those of these rows that are finished. */
  | { readonly verb: 'replay'; readonly rows: readonly number[] }
  /** Every row that waits becomes available. */
  | { readonly verb: 'arrive' }

/** Operations that run concurrently. Often there is only one. */
export type Race = readonly Operation[]

const worker = fc.nat({ max: WORKERS - 1 })
/** The same lease twice is allowed. */
const picks = fc.array(fc.nat({ max: 7 }), { minLength: 1, maxLength: 6 })

const onLeases: fc.Arbitrary<OnLeases> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ worker, picks }).map((own) => ({ ...own, leasesOf: own.worker })) },
  { weight: 1, arbitrary: fc.record({ worker, leasesOf: worker, picks }) },
)

const claim = fc.record({
  verb: fc.constant('claim' as const),
  worker,
  limit: fc.constantFrom(2, 1, 3, 4),
  from: fc.constantFrom('start' as const, 'cursor' as const),
})
const reap = fc.record({
  verb: fc.constant('reap' as const),
  worker,
  limit: fc.constantFrom(100, 100, 100, 1),
})
const rows = fc.uniqueArray(fc.nat({ max: 7 }), { minLength: 1, maxLength: 4 })
const expire = fc.record({ verb: fc.constant('expire' as const), rows })
const edit = fc.record({ verb: fc.constant('edit' as const), rows })
const replay = fc.record({ verb: fc.constant('replay' as const), rows })
const claimRows = fc.record({ verb: fc.constant('claimRows' as const), worker, rows })
const insert = fc.record({
  verb: fc.constant('insert' as const),
  rows: fc.integer({ min: 1, max: 4 }),
  late: fc.constantFrom(false, false, true),
})
const commit = fc.constant({ verb: 'commit' as const })
const arrive = fc.constant({ verb: 'arrive' as const })

function withLeases(leases: fc.Arbitrary<OnLeases>): fc.Arbitrary<Operation> {
  const renew = fc
    .tuple(leases, fc.constantFrom(LEASE_MS, SHORTER_LEASE_MS))
    .map(([on, leaseMs]): Operation => ({ verb: 'renew', ...on, leaseMs }))
  const settle = fc
    .tuple(
      leases,
      fc.constantFrom<SettleAs[]>('retryNow', 'retryNow', 'retryNow', 'retryLater', 'done', 'dead'),
      fc.constantFrom('statement' as const, 'statement' as const, 'commit' as const, 'rollback' as const),
    )
    .map(([on, as, within]): Operation => ({ verb: 'settle', ...on, as, within }))
  const release = leases.map((on): Operation => ({ verb: 'release', ...on }))
  const settleAndClaim = fc
    .tuple(leases, fc.constantFrom(2, 1, 3))
    .map(([on, limit]): Operation => ({ verb: 'settleAndClaim', ...on, limit }))
  return fc.oneof(
    { weight: 2, arbitrary: renew },
    { weight: 3, arbitrary: settle },
    { weight: 2, arbitrary: settleAndClaim },
    { weight: 1, arbitrary: release },
  )
}

const operation: fc.Arbitrary<Operation> = fc.oneof(
  { weight: 2, arbitrary: insert },
  { weight: 1, arbitrary: commit },
  { weight: 8, arbitrary: claim },
  { weight: 1, arbitrary: claimRows },
  { weight: 1, arbitrary: replay },
  { weight: 10, arbitrary: withLeases(onLeases) },
  { weight: 3, arbitrary: expire },
  { weight: 2, arbitrary: reap },
  { weight: 1, arbitrary: edit },
  { weight: 1, arbitrary: arrive },
)

/** Two or three concurrent writes with the same leases, each in its own order. */
const overTheSameLeases: fc.Arbitrary<Race> = onLeases.chain((on) => {
  const shuffled = fc
    .shuffledSubarray([...on.picks], { minLength: on.picks.length })
    .map((order) => ({ ...on, picks: order }))
  return fc.array(
    fc.oneof({ weight: 4, arbitrary: withLeases(shuffled) }, claim, claimRows, reap, expire, edit, replay),
    {
      minLength: 2,
      maxLength: 3,
    },
  )
})

const race: fc.Arbitrary<Race> = fc.oneof(
  { weight: 6, arbitrary: operation.map((alone): Race => [alone]) },
  { weight: 1, arbitrary: fc.array(claim, { minLength: 2, maxLength: 3 }) },
  { weight: 1, arbitrary: fc.array(operation, { minLength: 2, maxLength: 3 }) },
  { weight: 2, arbitrary: overTheSameLeases },
)

/** A history starts with some rows. */
export const histories: fc.Arbitrary<readonly Race[]> = fc
  .tuple(fc.integer({ min: 3, max: 6 }), fc.array(race, { minLength: 1, maxLength: 40, size: 'max' }))
  .map(([rows, races]) => [[{ verb: 'insert', rows }], ...races])
