/**
 * Reconcile: rows of a table you already have are looked at again and again, until they settle.
 *
 * - **Several reconcilers share the table**: each row is observed by one of them at a time, under a lease that was
 *   added to the table.
 * - **A status is changed by compare-and-set**: what somebody else has changed meanwhile is never overwritten.
 * - **Only declared transitions are written**, and what follows from one is written with it or not at all.
 * - **An observer that fails costs nothing**: the row stays open.
 */
export {
  type Answer,
  type Applied,
  type ObserveContext,
  RECONCILE,
  reconciler,
  type ReconcilerOptions,
} from './reconciler.ts'
export type { Transitions } from './transitions.ts'
export { addLease, type AddLeaseOptions } from './add-lease.ts'
