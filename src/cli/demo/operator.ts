/** Somebody who looks after the shop: replays parcels that were refused, which lets their key go on. */
import { createKey, listKeys } from '../../operations/api-keys.ts'
import { replay } from '../../outbox/index.ts'
import type { Database } from '../../postgres/index.ts'
import type { DemoPart } from './demo.ts'
import { PARCEL } from './shop.ts'

const REPLAY_EVERY_MS = 60_000
const KEY_DAYS = 90

export function operator(schema: string): DemoPart {
  let rounds = 0
  return {
    prepare: async (db) => addKeys(db, schema),
    loops: [
      {
        name: 'operator',
        everyMs: REPLAY_EVERY_MS,
        async work(db, signal) {
          rounds += 1
          // The first round is the start of the demo.
          if (rounds === 1) return
          const by = { principal: 'night-shift', reason: 'the depot has corrected the address' }
          await replay(db, { filter: { status: 'DEAD', type: PARCEL }, ...by, schema, signal })
        },
      },
    ],
  }
}

/** Nobody knows them: they only show what a list of keys looks like. */
async function addKeys(db: Database, schema: string): Promise<void> {
  if ((await listKeys(db, { schema })).length > 0) return
  const expiresAt = new Date(Date.now() + KEY_DAYS * 86_400_000)
  const by = { principal: 'demo' }
  await createKey(db, { name: 'reports', role: 'read', tenant: undefined, expiresAt }, by, { schema })
  await createKey(db, { name: 'acme-support', role: 'operate', tenant: 'acme', expiresAt: undefined }, by, {
    schema,
  })
}
