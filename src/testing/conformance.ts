import { claimCases } from './claim-cases.ts'
import { endCases } from './end-cases.ts'
import { expiryCases } from './expiry-cases.ts'
import { renewCases } from './renew-cases.ts'
import { bench, type LeaseSubject } from './subject.ts'

/** One promise of the kernel, and how to see whether this table keeps it. */
export interface ConformanceCase {
  readonly name: string
  readonly run: () => Promise<void>
}

/**
 * The lease conformance suite. It knows no test runner:
 *
 * ```ts
 * for (const { name, run } of leaseConformance({ db, table, empty, insert, final })) it(name, run)
 * ```
 *
 * The cases share the table, so they must run one after the other.
 */
export function leaseConformance<Outcome extends string>(
  subject: LeaseSubject<Outcome>,
): readonly ConformanceCase[] {
  const cases = Object.entries({ ...claimCases, ...renewCases, ...endCases, ...expiryCases })
  return cases.map(([name, check]) => ({
    name,
    run: async () => {
      await subject.empty()
      await check(bench(subject))
    },
  }))
}
