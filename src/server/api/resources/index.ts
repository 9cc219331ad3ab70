/** All routes. */
import type { Route } from '../route.ts'
import { AUDIT } from './audit.ts'
import { CHANGES } from './changes.ts'
import { DOCTOR } from './doctor.ts'
import { EXPLAIN } from './explain.ts'
import { KEYS } from './keys.ts'
import { LEASES } from './leases.ts'
import { OUTBOX } from './outbox.ts'
import { OVERVIEW } from './overview.ts'
import { PORTAL } from './portal.ts'
import { SESSION } from './session.ts'
import { SYNC } from './sync.ts'
import { WEBHOOKS } from './webhooks.ts'
import { WORKERS } from './workers.ts'

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
  ...CHANGES,
  ...AUDIT,
  ...KEYS,
  ...DOCTOR,
]
