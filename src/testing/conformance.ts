import { claimCases } from './claim-cases.ts'
import { createFixture, type LeaseSubject } from './fixture.ts'
import { reapCases } from './reap-cases.ts'
import { renewCases } from './renew-cases.ts'
import { settleCases } from './settle-cases.ts'

/** One promise of the kernel, and a function that checks it on this table. */
export interface ConformanceCase {
  readonly name: string
  readonly run: () => Promise<void>
}

/**
 * The lease conformance suite for one table. It works with any test runner:
 *
 * ```ts
 * for (const { name, run } of leaseConformance({ db, table, empty, insert, final })) it(name, run)
 * ```
 *
 * The cases use the same table, so they must run one after the other.
 */
export function leaseConformance<OutcomeName extends string>(
  subject: LeaseSubject<OutcomeName>,
): readonly ConformanceCase[] {
  const cases = Object.entries({ ...claimCases, ...renewCases, ...settleCases, ...reapCases })
  return cases.map(([name, check]) => ({
    name,
    run: async () => {
      await subject.empty()
      await check(createFixture(subject))
    },
  }))
}
