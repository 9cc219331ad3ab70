/** The keys of the API itself. */
import { z } from 'zod'
import { createKey, KEY_ROLES, listKeys, revokeKey } from '../../../operations/api-keys.ts'
import { route } from '../route.ts'
import { moment, optionalTime, text, time, uuid } from '../schemas.ts'

const key = z.object({
  id: uuid,
  name: z.string(),
  role: z.enum(KEY_ROLES),
  tenant: z
    .string()
    .nullable()
    .describe('The only tenant whose endpoints and deliveries it sees; null: not limited.'),
  createdAt: time,
  createdBy: z.string(),
  expiresAt: optionalTime,
  lastUsedAt: optionalTime,
  revokedAt: optionalTime,
  revokedBy: z.string().nullable(),
})

const tag = 'keys'

export const KEYS = [
  route({
    method: 'GET',
    path: '/keys',
    summary: 'List the keys, the newest first',
    tag,
    role: 'admin',
    databaseRole: 'api',
    answer: z.object({ items: z.array(key) }),
    run: async ({ db, schema }) => ({ items: await listKeys(db, { schema }) }),
  }),
  route({
    method: 'POST',
    path: '/keys',
    summary: 'Create a key',
    tag,
    role: 'admin',
    databaseRole: 'api',
    status: 201,
    body: z
      .strictObject({
        name: text.max(100),
        role: z.enum(KEY_ROLES),
        tenant: text.optional(),
        expiresAt: moment.optional(),
      })
      .meta({ examples: [{ name: 'grafana', role: 'read' }] }),
    answer: key.extend({
      key: z
        .string()
        .optional()
        .describe('The key itself: it is shown once, and not when the request is repeated.'),
    }),
    secrets: ['key'],
    run: async ({ db, schema, body, caller: { principal } }) =>
      createKey(db, body, { principal }, { schema }),
  }),
  route({
    method: 'DELETE',
    path: '/keys/{id}',
    summary: 'Revoke a key',
    tag,
    role: 'admin',
    databaseRole: 'api',
    params: z.strictObject({ id: uuid }),
    answer: key,
    run: async ({ db, schema, params, caller: { principal } }) =>
      revokeKey(db, params.id, { principal }, { schema }),
  }),
]
