import { invalid } from '../../admin/request-checks.ts'
import { SYNC_STATES, type SyncState } from '../transitions.ts'

const ALL: readonly unknown[] = SYNC_STATES

export function checkStates(states: readonly SyncState[] | undefined): void {
  if (states === undefined || (states.length > 0 && states.every((state) => ALL.includes(state)))) return
  throw invalid('states', states, `The states are ${SYNC_STATES.join(', ')}.`)
}
