/** The session of the dashboard: a key opens it, and the browser keeps it in a cookie that no page can read. */
import { z } from 'zod'
import { KEY_ROLES } from '../../../admin/api-keys.ts'
import { LeaseholdError } from '../../../errors.ts'
import { keyOf, SESSION_SECONDS, sessionCookie, sessionOf } from '../authorize.ts'
import { route } from '../route.ts'

const who = z.object({
  principal: z.string(),
  role: z.enum(KEY_ROLES),
  tenant: z.string().nullable(),
})

export const SESSION = [
  route({
    method: 'POST',
    path: '/session',
    summary: 'Open a session with a key',
    tag: 'session',
    role: 'read',
    isOpen: true,
    body: z.strictObject({ key: z.string().max(200) }),
    answer: who,
    async run({ body, context, request, headers }) {
      const key = await keyOf(context.keys, body.key)
      if (key === undefined)
        throw new LeaseholdError('KEY_INVALID', 'This is not a valid key.', {
          remedy: '`leasehold keys create` creates one.',
          field: 'body.key',
        })
      headers.append('set-cookie', sessionCookie(request, sessionOf(key), SESSION_SECONDS))
      return { principal: key.name, role: key.role, tenant: key.tenant }
    },
  }),
  route({
    method: 'GET',
    path: '/session',
    summary: 'Tell who the caller is',
    tag: 'session',
    role: 'read',
    forTenants: true,
    answer: who,
    run: async ({ caller: { principal, role, tenant } }) => Promise.resolve({ principal, role, tenant }),
  }),
  route({
    method: 'DELETE',
    path: '/session',
    summary: 'End the session',
    tag: 'session',
    role: 'read',
    isOpen: true,
    status: 204,
    answer: z.null(),
    async run({ request, headers }) {
      headers.append('set-cookie', sessionCookie(request, '', 0))
      return Promise.resolve(null)
    },
  }),
]
