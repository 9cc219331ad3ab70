/** The model that the tests check, against its specification in TLA+. */
import { describe, expect, it } from 'vitest'

import { check } from './checker.ts'
import { MUTANTS, protocolOf } from './configurations.ts'
import { INVARIANTS, leaseModel } from './lease.ts'
import { checkInTla, openSpecification } from './tla.ts'

const MAX_STATES = 400_000

describe('lease.tla', () => {
  it('has as many states as the model that the tests check, and all of its properties hold', async () => {
    const compared = await checkInTla()

    expect(compared).toHaveLength(4)
    for (const { states, inTla } of compared)
      expect(inTla).toEqual({ isOk: true, states, message: '', length: 0 })
  })

  it('D3: objects to a guard without a token, after as many steps as the model that the tests check', async () => {
    const mutant = MUTANTS[0]
    if (mutant === undefined) throw new RangeError('there are no mutants')
    const specification = await openSpecification()

    const { violation } = check(leaseModel(mutant.bounds, protocolOf(mutant)), MAX_STATES)
    const { isOk, message, length } = specification(mutant.bounds, protocolOf(mutant))

    expect({ isOk, message }).toEqual({ isOk: false, message: 'Invariant 0 violated' })
    expect(violation?.invariant).toBe(INVARIANTS[0])
    expect(length).toBe((violation?.trace.length ?? 0) + 1)
  })
})
