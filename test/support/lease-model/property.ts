/** The property itself, its seed, and how a failure is told. */
import { randomInt } from 'node:crypto'

import * as fc from 'fast-check'

import { drain, liveThrough, startHistory, type Witness } from './history.ts'
import { histories, type Race } from './operations.ts'
import type { World } from './world.ts'

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
  /** Lets no two operations run at the same time, so that what is found does not depend on the scheduler. */
  readonly oneByOne?: boolean
  /** Returns the first failure as it was found, without looking for a shorter one. */
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
  const told = reason instanceof Error ? reason.message : String(reason)
  const history = found.counterexample?.[0].map((race) => `  ${JSON.stringify(race)}`).join('\n')
  const repeated = repeatWith(seed, found.counterexamplePath ?? undefined, runs)
  return new Error(`${told}\nafter ${found.numRuns} histories; ${repeated}\n${history}`, { cause: reason })
}

function repeatWith(seed: number, path: string | undefined, runs: number): string {
  return `LEASEHOLD_SEED=${path === undefined ? seed : `${seed}:${path}`} LEASEHOLD_RUNS=${runs}`
}
