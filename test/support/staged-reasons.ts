/** Which test file makes a row wait for which reason. Each file shows that these were really returned. */
import { expect, it } from 'vitest'
import type { Explanation, Reason, ReasonCode } from '../../src/operations/explain/reasons.ts'

export const STAGED = {
  admin: [
    'claimable',
    'notClaimable',
    'scheduled',
    'retryWait',
    'resting',
    'leased',
    'leaseExpired',
    'suspect',
    'rowLocked',
    'tableLocked',
    'refused',
    'oldSnapshot',
    'noWorker',
    'workersStopping',
    'workersPaused',
    'noReaper',
    'bucketNotServed',
  ],
  outbox: ['finished', 'dead', 'waitsForRow', 'keyParked'],
  webhooks: [
    'endpointDeleted',
    'endpointDisabled',
    'circuitOpen',
    'circuitProbing',
    'concurrencyLimit',
    'rateLimit',
    'noSecretKey',
    'secretUnreadable',
  ],
  sync: ['groupNotServed', 'sourceRateLimit', 'waitsForChunks', 'notNeeded'],
} as const satisfies Readonly<Record<string, readonly ReasonCode[]>>

/** What was returned, by test file: several files may share a process. */
const returnedIn = new Map<string, Set<ReasonCode>>()

function returnedHere(): Set<ReasonCode> {
  const { testPath: file = '' } = expect.getState()
  const returned = returnedIn.get(file) ?? new Set()
  returnedIn.set(file, returned)
  return returned
}

/** The same function; the reasons that it returns are remembered. */
export function remembering<Args extends readonly unknown[]>(
  explain: (...args: Args) => Promise<Explanation>,
): (...args: Args) => Promise<Explanation> {
  return async (...args) => {
    const explanation = await explain(...args)
    for (const { code } of explanation.reasons) returnedHere().add(code)
    return explanation
  }
}

export function codesOf({ reasons }: Explanation): ReasonCode[] {
  return reasons.map(({ code }) => code)
}

/** The reason with this code, once it is given. */
export async function whenGiven(explain: () => Promise<Explanation>, code: ReasonCode): Promise<Reason> {
  let found: Reason | undefined
  await expect
    .poll(
      async () => {
        found = (await explain()).reasons.find((each) => each.code === code)
        return found?.code
      },
      { timeout: 120_000, interval: 20 },
    )
    .toBe(code)
  return found ?? { code, text: '' }
}

/** To be called at the end of the file: the test needs those before it. */
export function expectAllStaged(by: keyof typeof STAGED): void {
  it('every reason that is to be staged here was returned', () => {
    const returned = returnedHere()
    expect(STAGED[by].filter((code) => !returned.has(code))).toEqual([])
  })
}
