/** What a claim answers, from what its statement says: the rows, and whether and when to look again. */
import type { ClaimResult } from './claim-result.ts'
import { trustedUntil } from './lease.ts'
import type { LinesToLookAt } from './lines-to-look-at.ts'
import type { Claim, ClaimRequest } from './verbs.ts'

/** When to look again where others were taking what there is: they may leave some of it. */
const CROWD_MS = 10

/** When to look again where what was found can neither be claimed nor marked, because somebody has it locked. */
const STANDSTILL_MS = 100

export function claimOf<Row extends object>(
  { claimed, place, seen, nextDueMs, moved, missed, all }: ClaimResult<Row>,
  { limit, leaseMs }: ClaimRequest,
  sentAt: number,
  again: LinesToLookAt,
): Claim<Row> {
  // What was found and not claimed was marked as waiting: others may have stood behind it all the while.
  const full = moved && (seen >= limit || seen > claimed.length || !all)
  const standsStill = (seen > 0 && !moved) || !again.isEmpty
  const soonest = Math.min(
    nextDueMs ?? Infinity,
    standsStill ? STANDSTILL_MS : Infinity,
    missed > 0 ? CROWD_MS : Infinity,
  )
  const due = soonest === Infinity ? {} : { nextDueMs: soonest }
  return { claimed, place, full, ...due, trustedUntil: trustedUntil(sentAt, leaseMs) }
}
