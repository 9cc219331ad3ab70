import { type Clock, systemClock } from '../clock.ts'
import type { Claim, ClaimRequest, Ended, LeaseStore, Place } from './store.ts'

/** Looks from the start may take this share of the time; the rest goes on from where the last claim ended. */
const SHARE_FOR_FULL_LOOKS = 0.03

export interface Looked {
  /** A look from the start of the order found less than was asked for: there is nothing more to claim. */
  readonly drained: boolean
}

type Request = Omit<ClaimRequest, 'from'>
type Settlement<Row extends object> = Parameters<LeaseStore<Row>['exchange']>[0]

export interface Claimer<Row extends object> {
  claim(request: Request): Promise<Claim<Row> & Looked>
  exchange(settlement: Settlement<Row>, request: Request): Promise<Ended & Claim<Row> & Looked>
}

/**
 * Claims and keeps its place.
 *
 * While an old snapshot is open anywhere in the database, the index entries of rows that are long done cannot be
 * removed, and every look from the start walks past all of them: 65k rows/s fell to 18k within 500k rows. So a claim
 * that came back full is followed by one that goes on where the one before it had ended; one batch of overlap catches
 * neighbours that committed out of order.
 *
 * What becomes claimable behind the place (a late commit, a retry, a rolled-back claim of somebody else) is found by a
 * look from the start. There is one after every claim that did not fill up, so an idle table is always looked at
 * whole, and while claims are full as often as its measured cost allows.
 */
export function createClaimer<Row extends object>(
  store: Pick<LeaseStore<Row>, 'claim' | 'exchange'>,
  clock: Clock = systemClock,
): Claimer<Row> {
  let place: Place | undefined
  let placeBefore: Place | undefined
  let nextFullLook = Number.NEGATIVE_INFINITY

  async function look<Result extends Claim<Row>>(
    request: Request,
    send: (request: ClaimRequest) => Promise<Result>,
  ): Promise<Result & Looked> {
    const startedAt = clock.monotonicNow()
    const from = startedAt < nextFullLook ? placeBefore : undefined
    const claim = await send({ ...request, from })
    const endedAt = clock.monotonicNow()

    const { full } = claim
    if (from === undefined) nextFullLook = endedAt + (endedAt - startedAt) / SHARE_FOR_FULL_LOOKS
    placeBefore = full ? place : undefined
    place = full ? claim.place : undefined
    return { ...claim, drained: !full && from === undefined && !('advanced' in claim) }
  }

  return {
    claim: async (request) => look(request, async (whole) => store.claim(whole)),
    exchange: async (settlement, request) =>
      look(request, async (whole) => store.exchange(settlement, whole)),
  }
}
