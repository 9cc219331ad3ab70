import { randomInt } from 'node:crypto'
import * as fc from 'fast-check'
import { drain, liveThrough, startHistory, type Witness } from './history.ts'
import { histories, type Race } from './operations.ts'
import type { World } from './world.ts'
import { MAX_ATTEMPTS, type ModelRow, type RowEvent } from './row.ts'

export interface Repeat {
  readonly seed: number
  readonly path: string | undefined
  readonly runs: number
  /** The way back to this run: environment variables to set. */
  readonly repeatWith: string
}

const LARGEST_SEED = 2 ** 31
/** Who wins a race is up to the scheduler: a history that failed once may have to be repeated until it fails. */
const LIVES_ON_REPEAT = 100

/** LEASEHOLD_SEED is `seed` or `seed:path`, as a failure prints it; LEASEHOLD_RUNS is how many histories to try. */
export function repeat(environment: NodeJS.ProcessEnv, runsByDefault: number): Repeat {
  const [, given, path] = /^(-?\d+)(?::([\d:]+))?$/.exec(environment['LEASEHOLD_SEED'] ?? '') ?? []
  const seed = given === undefined ? randomInt(LARGEST_SEED) : Number(given)
  const runs = Number(environment['LEASEHOLD_RUNS'] ?? runsByDefault)
  if (!Number.isInteger(runs) || runs < 1)
    throw new Error(`LEASEHOLD_RUNS is ${runs}: give a whole number above 0.`)
  return { seed, path, runs, repeatWith: repeatWith(seed, path, runs) }
}

export interface Manner {
  /** Runs one operation at a time, so that the result does not depend on the scheduler. */
  readonly oneByOne?: boolean
  /** Returns the first failure without shrinking it. */
  readonly asFound?: boolean
  readonly witness?: Witness
}

export async function findFailure(
  world: World,
  { seed, path, runs }: Pick<Repeat, 'seed' | 'path' | 'runs'>,
  { oneByOne = false, asFound = false, witness = () => {} }: Manner = {},
): Promise<Error | undefined> {
  async function live(races: readonly Race[]): Promise<void> {
    let history = await startHistory(world)
    for (const race of oneByOne ? races.flat().map((operation) => [operation]) : races) {
      history = await liveThrough(world, history, race, witness)
    }
    await drain(world, history, witness)
  }
  const lives = path === undefined ? 1 : LIVES_ON_REPEAT
  const property = fc.asyncProperty(histories, async (races) => {
    for (let life = 0; life < lives; life += 1) await live(races)
  })
  const found = await fc.check(property, {
    seed,
    numRuns: runs,
    endOnFailure: asFound,
    ...(path === undefined ? {} : { path }),
  })
  if (!found.failed) return undefined
  const reason = found.errorInstance
  const message = reason instanceof Error ? reason.message : String(reason)
  const history = found.counterexample?.[0].map((race) => `  ${JSON.stringify(race)}`).join('\n')
  const repeated = repeatWith(seed, found.counterexamplePath ?? undefined, runs)
  return new Error(`${message}\nafter ${found.numRuns} histories; ${repeated}\n${history}`, { cause: reason })
}

function repeatWith(seed: number, path: string | undefined, runs: number): string {
  return `LEASEHOLD_SEED=${path === undefined ? seed : `${seed}:${path}`} LEASEHOLD_RUNS=${runs}`
}

/** Counts what happened in the histories, so that a property that tried nothing cannot pass. */
export interface Witnessed {
  races: number
  claimed: number
  claimedAfterExpiry: number
  renewed: number
  busy: number
  ended: number
  rolledBack: number
  fencedOff: number
  /** The row is leased by the very worker whose older lease was fenced off (D3). */
  fencedOffByItself: number
  reaped: number
  deadByExpiry: number
  /** Claims in the statement that settled other rows. */
  claimedWithSettlement: number
  committedLate: number
  replayed: number
}

export function witnessed(): { readonly counts: Witnessed; readonly witness: Witness } {
  const counts: Witnessed = {
    races: 0,
    claimed: 0,
    claimedAfterExpiry: 0,
    renewed: 0,
    busy: 0,
    ended: 0,
    rolledBack: 0,
    fencedOff: 0,
    fencedOffByItself: 0,
    reaped: 0,
    deadByExpiry: 0,
    claimedWithSettlement: 0,
    committedLate: 0,
    replayed: 0,
  }
  return {
    counts,
    witness(reports, before) {
      counts.races += 1
      for (const { operation, events } of reports) {
        for (const [id, event] of events) {
          count(counts, before.get(id), event)
          if (event.type === 'claimed' && operation.verb === 'settleAndClaim')
            counts.claimedWithSettlement += 1
          if (event.type === 'inserted' && operation.verb === 'commit') counts.committedLate += 1
        }
      }
    },
  }
}

function count(counts: Witnessed, row: ModelRow | undefined, event: RowEvent): void {
  switch (event.type) {
    case 'claimed':
      counts.claimed += 1
      if (row?.lease !== undefined) counts.claimedAfterExpiry += 1
      return
    case 'reaped':
      counts.reaped += 1
      if (row?.attempts === MAX_ATTEMPTS - 1) counts.deadByExpiry += 1
      return
    case 'renewed':
    case 'ended':
      for (const { outcome, token } of event.said) {
        if (outcome === 'renewed') counts.renewed += 1
        if (outcome === 'busy') counts.busy += 1
        if (outcome === 'ended')
          counts[event.type === 'ended' && event.rolledBack ? 'rolledBack' : 'ended'] += 1
        if (outcome !== 'fencedOff' && outcome !== 'lost') continue
        counts.fencedOff += 1
        if (row?.lease?.owner === event.owner && row.lease.token !== token) counts.fencedOffByItself += 1
      }
      return
    case 'replayed':
      counts.replayed += 1
      return
    case 'inserted':
    case 'expired':
    case 'edited':
    case 'arrived':
  }
}
