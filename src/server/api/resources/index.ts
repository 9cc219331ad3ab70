/** All routes. */
import { KEYS } from '../../../operations/api-keys.ts'
import { AUDIT } from '../../../operations/audit-entries.ts'
import { CHANGES } from '../../../operations/changes.ts'
import type { Operation } from '../../../operations/operation.ts'
import { HELD_UP_KEYS } from '../../../outbox/operations.ts'
import { operationRoute } from '../operation-route.ts'
import type { Route } from '../route.ts'
import { DOCTOR } from './doctor.ts'
import { EXPLAIN } from './explain.ts'
import { LEASES } from './leases.ts'
import { OUTBOX } from './outbox.ts'
import { OVERVIEW } from './overview.ts'
import { PORTAL } from './portal.ts'
import { SESSION } from './session.ts'
import { SYNC } from './sync.ts'
import { WEBHOOKS } from './webhooks.ts'
import { WORKERS } from './workers.ts'

/** What is declared as operations, from which the command line has its commands too. */
export const OPERATIONS: readonly Operation[] = [...HELD_UP_KEYS, ...CHANGES, ...AUDIT, ...KEYS]

export const ROUTES: readonly Route[] = [
  ...SESSION,
  ...OVERVIEW,
  ...WORKERS,
  ...LEASES,
  ...OUTBOX,
  ...WEBHOOKS,
  ...PORTAL,
  ...SYNC,
  ...EXPLAIN,
  ...OPERATIONS.map(operationRoute),
  ...DOCTOR,
]
