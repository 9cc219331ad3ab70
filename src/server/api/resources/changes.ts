/** Bulk changes: how far each is, and how to end it. */
import { z } from 'zod'
import { cancelChange, listChanges, showChange } from '../../../operations/changes.ts'
import { route } from '../route.ts'
import { change, fromCursor, pageOf, paging, toCursor, uuid } from '../schemas.ts'

const tag = 'changes'
const byId = z.strictObject({ id: uuid })

export const CHANGES = [
  route({
    method: 'GET',
    path: '/changes',
    summary: 'List bulk changes, the latest first',
    tag,
    role: 'read',
    forTenants: true,
    query: z.strictObject(paging),
    answer: pageOf(change),
    async run({ db, schema, query: { limit, cursor } }) {
      const { rows, next } = await listChanges(db, { schema, limit, before: fromCursor(cursor) })
      return { items: rows, next: toCursor(next) }
    },
  }),
  route({
    method: 'GET',
    path: '/changes/{id}',
    summary: 'Show how far a bulk change is',
    tag,
    role: 'read',
    forTenants: true,
    params: byId,
    answer: change,
    run: async ({ db, schema, params }) => showChange(db, params.id, schema),
  }),
  route({
    method: 'POST',
    path: '/changes/{id}/cancel',
    summary: 'End a bulk change; what it has changed stays changed',
    tag,
    role: 'operate',
    forTenants: true,
    params: byId,
    answer: change,
    run: async ({ db, schema, params, caller: { principal } }) =>
      cancelChange(db, params.id, { principal, schema }),
  }),
]
