/**
 * Endpoints: where webhooks go, and what each of them wants.
 *
 * - **What is refused changes nothing**, and everything that is wrong is told at once.
 * - **Every change is in the audit**, in the transaction that makes it, with who and why.
 * - **A secret is shown once.** It is stored encrypted, bound to its endpoint, and never without a key.
 */
export {
  endpoints,
  type EndpointNetwork,
  type Endpoints,
  type EndpointsOptions,
  type RotateOptions,
} from './endpoints.ts'
export type { By, Endpoint, EndpointChanges, EndpointDetails, NewEndpoint, ShownSecret } from './endpoint.ts'
export type { EndpointFilter, EndpointPage } from './list.ts'
export { keysOf, neededKeys } from './secrets.ts'
export { LONGEST_TIMEOUT_MS } from './check.ts'
