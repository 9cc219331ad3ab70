import { describe, expect, it } from 'vitest'

import { check, type Model, stuckStates, TooManyStates } from './checker.ts'
import { MUTANTS, protocolOf, SHORT } from './configurations.ts'
import { type Bounds, isFinished, isProgress, leaseModel, PROTOCOL } from './lease.ts'

const MAX_STATES = 400_000

/** Counts up to 9, and may jump from 3 to a place from which it cannot go on. */
function counter(invariant: (n: number) => boolean): Model<number> {
  return {
    initial: 0,
    steps(n, visit) {
      if (n === 3) visit('Jump', 100)
      if (n < 9) visit('Count', n + 1)
      if (n < 5) visit('CountTwice', n + 2)
    },
    encode: String,
    decode: Number,
    invariants: { holds: invariant },
  }
}

describe('the checker', () => {
  it('visits every reachable state once, and counts the steps of each action', () => {
    const { states, steps, depth, violation, actions } = check(
      counter(() => true),
      100,
    )

    expect({ states, steps, depth, violation }).toEqual({
      states: 11,
      steps: 15,
      depth: 6,
      violation: undefined,
    })
    expect([...actions]).toEqual([
      ['Count', 9],
      ['CountTwice', 5],
      ['Jump', 1],
    ])
  })

  it('reports the shortest sequence of actions that leads to a violation', () => {
    const { violation } = check(
      counter((n) => n < 6 || n === 100),
      100,
    )

    expect(violation?.trace.map(({ action, next }) => `${action} ${next}`)).toEqual([
      'CountTwice 2',
      'CountTwice 4',
      'CountTwice 6',
    ])
  })

  it('finds the states from which the goal cannot be reached', () => {
    const { stuck } = stuckStates(
      counter(() => true),
      (n) => n === 9,
      () => true,
      100,
    )
    const withoutCounting = stuckStates(
      counter(() => true),
      (n) => n === 9,
      (action) => action !== 'Count',
      100,
    )

    expect(stuck).toEqual([100])
    expect(withoutCounting.stuck).toHaveLength(10)
  })

  it('refuses to pass a model that it has not visited whole', () => {
    expect(() =>
      check(
        counter(() => true),
        5,
      ),
    ).toThrow(TooManyStates)
  })
})

describe('the lease protocol', () => {
  const seen = new Set<string>()

  it.each(SHORT)(
    'RULE-020-001 RULE-020-003 D3 D4 D5 D8: with $name, every property holds in every state',
    ({ bounds, invariants }) => {
      const { violation, actions } = check(leaseModel(bounds, PROTOCOL, invariants), MAX_STATES)

      for (const action of actions.keys()) seen.add(action)
      expect(violation).toBeUndefined()
    },
  )

  it('is checked with every action', () => {
    const actions = `SendClaim SendEnd EndLease FenceOff SkipLocked FindNext FindRow TakeRow MissRow Refuse Commit RollBack
      HearPipeline SendRenewal Renew RefuseRenewal HearRenewal Reap Evict Replay CommitLate Tick GiveUp GiveUpRenewal
      Crash Restart StrayExecute StrayRefuse StrayCommit StrayRenewal LoseStray`

    expect([...seen].sort()).toEqual(actions.split(/\s+/).sort())
  })

  it.each(SHORT.filter(({ progress }) => progress))(
    'RULE-020-020: with $name, all rows can be finished from every state, without an operator',
    ({ bounds }) => {
      expect(stuckStates(leaseModel(bounds), isFinished(bounds), isProgress, MAX_STATES).stuck).toEqual([])
    },
  )

  it('without a reaper, rows of a crashed worker are never finished', () => {
    const bounds: Bounds = {
      workers: 2,
      keys: [undefined],
      lease: 1,
      maxAttempts: 2,
      maxClaims: 2,
      maxStray: 0,
      late: [],
      claims: [],
      outcomes: ['done'],
      eviction: 'none',
    }
    const withoutReaper = (action: string): boolean => isProgress(action) && !action.startsWith('Reap')

    expect(stuckStates(leaseModel(bounds), isFinished(bounds), withoutReaper, MAX_STATES).stuck).not.toEqual(
      [],
    )
  })

  it.each(MUTANTS)('D3 D8: the model objects if $name: $breaks', (mutant) => {
    const { bounds, breaks } = mutant

    expect(check(leaseModel(bounds, protocolOf(mutant), [breaks]), MAX_STATES).violation?.invariant).toBe(
      breaks,
    )
  })
})
