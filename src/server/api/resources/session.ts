/** Sessions: a key opens one of the dashboard, in a cookie that no page can read; a link opens one of the portal. */
import { z } from 'zod'
import { findKey, isKeyText, recordUse } from '../../../operations/api-keys.ts'
import { KEY_ROLES } from '../../../operations/roles.ts'
import {
  isLinkToken,
  openSession,
  type OpenedSession,
  usePortalLink,
} from '../../../operations/api-sessions.ts'
import { LeaseholdError } from '../../../errors.ts'
import type { Database } from '../../../postgres/database.ts'
import { callerOfSession, endSessions, SESSION_SECONDS, sessionCookie, sessionTokenIn } from '../authorize.ts'
import { type IdentifiedCaller, route } from '../route.ts'
import { optionalTime } from '../schemas.ts'

const who = z.object({
  principal: z.string(),
  role: z.enum(KEY_ROLES),
  tenant: z.string().nullable(),
  kind: z
    .enum(['key', 'session', 'portal', 'local', 'custom'])
    .describe(
      'How the caller is known: by a key, by a session that a key or a link of the portal opened, because no key is needed, or by a login of your own.',
    ),
  expiresAt: optionalTime.describe('Until when the key or the session is accepted; null: no end is known.'),
})

function shown({ principal, role, tenant, kind, expiresAt }: IdentifiedCaller): z.input<typeof who> {
  return { principal, role, tenant, kind, expiresAt: expiresAt?.toISOString() ?? null }
}

export const SESSION = [
  route({
    method: 'POST',
    path: '/session',
    summary: 'Open a session with a key, or with a link of the portal',
    tag: 'session',
    role: 'read',
    tokenIn(_request, { key = '', link }) {
      if (link === undefined ? !isKeyText(key) : !isLinkToken(link))
        throw link === undefined ? wrongKey() : wrongLink()
      return link ?? key
    },
    databaseRole: 'api',
    body: z
      .strictObject({
        key: z.string().max(200).optional().describe('Opens a session in a cookie, for twelve hours.'),
        link: z
          .string()
          .max(200)
          .optional()
          .describe('The token of a link of the portal. It is used up, and the answer has a `bearer`.'),
      })
      .refine(({ key, link }) => (key === undefined) !== (link === undefined), 'give either key or link'),
    answer: who.extend({
      bearer: z
        .string()
        .optional()
        .describe('Of the portal: send it as `Authorization: Bearer`. It is shown once.'),
    }),
    async run({ db, schema, body: { key, link }, context, request, headers }) {
      const session =
        link === undefined ? await openByKey(db, schema, key ?? '') : await openByLink(db, schema, link)
      if (session.tenant !== null) await context.roles.requireTenantPolicies()
      const answer = shown(callerOfSession(session))
      if (session.kind === 'portal') return { ...answer, bearer: session.token }
      headers.append('set-cookie', sessionCookie(request, session.token, SESSION_SECONDS))
      return answer
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
    run: async ({ caller }) => Promise.resolve(shown(caller)),
  }),
  route({
    method: 'DELETE',
    path: '/session',
    summary: 'End the session',
    tag: 'session',
    role: 'read',
    tokenIn: sessionTokenIn,
    databaseRole: 'api',
    status: 204,
    answer: z.null(),
    async run({ db, schema, request, headers }) {
      await endSessions(db, schema, request)
      headers.append('set-cookie', sessionCookie(request, '', 0))
      return null
    },
  }),
]

async function openByKey(db: Database, schema: string, text: string): Promise<OpenedSession> {
  const key = await findKey(db, text, { schema })
  if (key !== undefined) {
    await recordUse(db, key, { schema })
    const { id: keyId, name: principal, role, tenant } = key
    const wanted = { kind: 'session', keyId, principal, role, tenant, seconds: SESSION_SECONDS } as const
    const session = await openSession(db, wanted, { schema })
    if (session !== undefined) return session
  }
  throw wrongKey()
}

function wrongKey(): LeaseholdError {
  return new LeaseholdError('KEY_INVALID', 'This is not a valid key.', {
    remedy: '`leasehold keys create` creates one.',
    field: 'body.key',
  })
}

async function openByLink(db: Database, schema: string, link: string): Promise<OpenedSession> {
  const session = await usePortalLink(db, link, { schema })
  if (session !== undefined) return session
  throw wrongLink()
}

function wrongLink(): LeaseholdError {
  return new LeaseholdError('KEY_INVALID', 'The link is unknown, was used before, or has expired.', {
    remedy: 'Open the portal with a new link, which can be used once; `POST /portal/links` makes one.',
    field: 'body.link',
  })
}
