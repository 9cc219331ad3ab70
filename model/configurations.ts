/** What is checked: the protocol within several bounds, and the mutants, each of which must break a property. */
import { type Bounds, type Invariant, INVARIANTS, PROTOCOL, type Protocol } from './lease.ts'

export interface Configuration {
  readonly name: string
  readonly bounds: Bounds
  readonly invariants?: readonly Invariant[]
  /** Also check that all rows can be finished from every state. */
  readonly progress?: boolean
}

/** Small enough for each run of the tests; what the other configurations add is larger bounds. */
const SMALL: Bounds = {
  workers: 2,
  keys: [undefined],
  lease: 1,
  maxAttempts: 2,
  maxClaims: 2,
  maxStray: 0,
  late: [],
  claims: [],
  outcomes: ['done', 'dead', 'retry', 'release'],
  eviction: 'none',
}

const TWO_OF_A_KEY = ['k', 'k']
/** The first row of a key is committed when others of the key are there, or in flight, or finished. */
const LATE_OF_A_KEY: Bounds = {
  ...SMALL,
  keys: TWO_OF_A_KEY,
  late: [0],
  claims: ['next'],
  maxClaims: 1,
  outcomes: ['done'],
}
/** A live worker that was declared dead still trusts its lease when another gets the row. Fencing holds all the same. */
const FENCING_ALONE = INVARIANTS.filter((name) => name !== 'OneTrustedLease')

/** At most 20 s of processor time together, with the mutants. */
export const SHORT: readonly Configuration[] = [
  { name: 'one row, late requests', bounds: { ...SMALL, maxStray: 1, outcomes: ['done', 'retry'] } },
  { name: 'one worker, renewals', bounds: { ...SMALL, workers: 1, lease: 2, maxStray: 1 } },
  {
    name: 'a row that its own pipeline claims again',
    bounds: { ...SMALL, claims: ['any'], outcomes: ['done', 'release'] },
    progress: true,
  },
  { name: 'two rows of a key, late commits', bounds: LATE_OF_A_KEY, progress: true },
  {
    name: 'two rows of a key, late commits and requests',
    bounds: { ...LATE_OF_A_KEY, workers: 1, maxStray: 1 },
    progress: true,
  },
  {
    name: 'two rows of a key and one without',
    bounds: { ...LATE_OF_A_KEY, workers: 1, keys: [...TWO_OF_A_KEY, undefined], claims: ['next', 'any'] },
    progress: true,
  },
  { name: 'eviction of dead workers', bounds: { ...SMALL, eviction: 'dead', outcomes: ['done', 'retry'] } },
  {
    name: 'eviction of live workers',
    bounds: { ...SMALL, eviction: 'any', outcomes: ['done', 'retry'] },
    invariants: FENCING_ALONE,
  },
]

export const FULL: readonly Configuration[] = [
  ...SHORT,
  {
    name: 'one worker, its own row again',
    bounds: { ...SMALL, workers: 1, lease: 2, maxClaims: 3, maxStray: 1, outcomes: ['done', 'retry'] },
  },
  {
    name: 'one row, many attempts',
    bounds: { ...SMALL, maxAttempts: 3, maxClaims: 4, outcomes: ['done', 'retry'] },
    progress: true,
  },
  { name: 'three workers', bounds: { ...SMALL, workers: 3, outcomes: ['done', 'retry'] } },
  { name: 'two rows of a key, replays', bounds: { ...LATE_OF_A_KEY, late: [], maxClaims: 2 } },
  {
    name: 'two rows of a key, failures',
    bounds: { ...LATE_OF_A_KEY, late: [], outcomes: ['done', 'retry'] },
    progress: true,
  },
  {
    name: 'two rows of a key and one without, replays',
    bounds: {
      ...LATE_OF_A_KEY,
      workers: 1,
      keys: [...TWO_OF_A_KEY, undefined],
      late: [],
      claims: ['next', 'any'],
      maxClaims: 2,
    },
  },
  {
    name: 'eviction of dead workers, renewals',
    bounds: { ...SMALL, eviction: 'dead', lease: 2, outcomes: ['done'] },
  },
  {
    name: 'eviction of live workers, late requests',
    bounds: { ...SMALL, eviction: 'any', maxStray: 1, outcomes: ['done'] },
    invariants: FENCING_ALONE,
  },
]

export interface Mutant {
  readonly name: string
  readonly change: Partial<Protocol>
  readonly bounds: Bounds
  readonly breaks: Invariant
  /** What holds all the same. */
  readonly holds?: readonly Invariant[]
}

export const MUTANTS: readonly Mutant[] = [
  {
    name: 'the guard compares the owner, and no token',
    change: { guard: 'owner' },
    bounds: { ...SMALL, workers: 1, maxStray: 1 },
    breaks: 'StaleWriteChangesNothing',
  },
  {
    name: 'settlements have no guard',
    change: { guard: 'none' },
    bounds: SMALL,
    breaks: 'StaleWriteChangesNothing',
  },
  {
    name: 'a replay resets the token',
    change: { replayKeepsToken: false },
    bounds: { ...SMALL, workers: 1, maxStray: 1 },
    breaks: 'TokenNeverDecreases',
  },
  {
    name: 'a replay resets the token, and what follows from it',
    change: { replayKeepsToken: false },
    bounds: { ...SMALL, workers: 1, maxStray: 1 },
    breaks: 'StaleWriteChangesNothing',
  },
  {
    name: 'the deadline counts from the answer',
    change: { trustFrom: 'answer' },
    bounds: { ...SMALL, lease: 2 },
    breaks: 'OneTrustedLease',
  },
  {
    name: 'a worker’s clock falls behind by more than the margin',
    change: { clockLag: 1 },
    bounds: { ...SMALL, outcomes: ['done'] },
    breaks: 'OneTrustedLease',
    holds: FENCING_ALONE,
  },
  {
    name: 'the reaper does not look at the end of the lease',
    change: { reapLooksAtTime: false },
    bounds: SMALL,
    breaks: 'OneTrustedLease',
    holds: FENCING_ALONE,
  },
  {
    name: 'no unique index on the rows of a key in flight',
    change: { uniqueKey: false },
    bounds: { ...SMALL, keys: TWO_OF_A_KEY, outcomes: ['done'] },
    breaks: 'OneInFlightPerKey',
  },
  {
    name: 'a claim does not check the row once more under its lock',
    change: { recheck: false },
    bounds: { ...SMALL, outcomes: ['done'] },
    breaks: 'OneTrustedLease',
  },
  {
    name: 'the next of a key is the one after the settled row',
    change: { nextOfKey: 'after' },
    bounds: { ...LATE_OF_A_KEY, keys: ['k', 'k', 'k'], workers: 1 },
    breaks: 'KeysAreInOrder',
  },
  {
    name: 'a worker takes claimed rows as its own before the commit',
    change: { hears: 'statement' },
    bounds: SMALL,
    breaks: 'OneTrustedLease',
    holds: FENCING_ALONE,
  },
]

export function protocolOf({ change }: Mutant): Protocol {
  return { ...PROTOCOL, ...change }
}
