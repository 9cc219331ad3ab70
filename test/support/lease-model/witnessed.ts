/** Counts what the histories went through, so that a property that tried nothing cannot pass. */
import type { Witness } from './history.ts'
import { MAX_ATTEMPTS, type ModelRow, type RowEvent } from './row.ts'

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
