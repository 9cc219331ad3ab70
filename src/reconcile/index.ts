/**
 * Reconcile: rows of a table you already have are re-examined until they settle.
 *
 * - **Several reconcilers share the table**: each row is observed by one of them at a time, under a lease that was
 *   added to the table.
 * - **A status is changed by compare-and-set**: what another program has changed meanwhile is never overwritten.
 * - **Only declared transitions are written**, and the effects of one (`onApplied`) commit with it or not at all.
 * - **A failed observation changes nothing**: the row stays open.
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
