/** The model that the tests check, against its specification in TLA+. */
import { describe, expect, it } from 'vitest'

import { check } from './checker.ts'
import { MUTANTS, protocolOf } from './configurations.ts'
import { INVARIANTS, leaseModel } from './lease.ts'
import { checkInTla, openSpecification } from './tla.ts'

const MAX_STATES = 400_000
/** Those that are found soon. */
const OBJECTED = ['no token', 'under its lock', 'after the settled row', 'before the commit']

describe('lease.tla', () => {
  it('has as many states as the model that the tests check, and all of its properties hold', async () => {
    const compared = await checkInTla()

    expect(compared).toHaveLength(4)
    for (const { states, inTla } of compared)
      expect(inTla).toEqual({ isOk: true, states, message: '', length: 0 })
  })

  it.each(MUTANTS.filter(({ name }) => OBJECTED.some((part) => name.includes(part))))(
    'D3: objects if $name, after as many steps as the model that the tests check',
    async (mutant) => {
      const specification = await openSpecification()

      const { violation } = check(leaseModel(mutant.bounds, protocolOf(mutant)), MAX_STATES)
      const { isOk, message, length } = specification(mutant.bounds, protocolOf(mutant))

      expect(violation?.invariant).toBe(mutant.breaks)
      const broken = INVARIANTS.indexOf(mutant.breaks)
      expect({ isOk, message }).toEqual({ isOk: false, message: `Invariant ${broken} violated` })
      expect(length).toBe((violation?.trace.length ?? 0) + 1)
    },
  )
})
