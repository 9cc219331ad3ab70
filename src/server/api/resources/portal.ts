/** The portal, in which a customer sees the endpoints and deliveries of one tenant. */
import { z } from 'zod'
import { mayDo } from '../../../operations/roles.ts'
import {
  createPortalLink,
  MAX_LINK_SECONDS,
  MIN_LINK_SECONDS,
  type NewPortalLink,
  PORTAL_ROLES,
} from '../../../operations/api-sessions.ts'
import { LeaseholdError } from '../../../errors.ts'
import { type IdentifiedCaller, route } from '../route.ts'
import { text } from '../../../operations/fields.ts'
import { time } from '../schemas.ts'

const SHOWN_ONCE = 'It is shown once, and not when the request is repeated.'

export const PORTAL = [
  route({
    method: 'POST',
    path: '/portal/links',
    summary: 'Make a link that opens the portal of a tenant, once',
    tag: 'portal',
    role: 'operate',
    forTenants: true,
    databaseRole: 'api',
    status: 201,
    body: z
      .strictObject({
        tenant: text,
        role: z.enum(PORTAL_ROLES).describe('What whoever opens it may do: at most what the caller may.'),
        expiresInSeconds: z
          .int()
          .min(MIN_LINK_SECONDS)
          .max(MAX_LINK_SECONDS)
          .optional()
          .describe('How long it can be used. Default 300.'),
        name: text.max(100).optional().describe('Who it is for: `<tenant>/portal:<name>` in the audit.'),
      })
      .meta({ examples: [{ tenant: 'acme', role: 'read' }] }),
    answer: z.object({
      token: z.string().optional().describe(`What \`POST /session\` takes as \`link\`. ${SHOWN_ONCE}`),
      path: z
        .string()
        .optional()
        .describe(`\`portal#<token>\`, relative to where the dashboard is served. ${SHOWN_ONCE}`),
      expiresAt: time,
    }),
    secrets: ['token', 'path'],
    async run({ db, schema, body, caller }) {
      refuseMoreThanOwn(body, caller)
      const { token, path, expiresAt } = await createPortalLink(db, body, caller, { schema })
      return { token, path, expiresAt: expiresAt.toISOString() }
    },
  }),
]

function refuseMoreThanOwn({ tenant, role }: NewPortalLink, caller: IdentifiedCaller): void {
  const who = JSON.stringify(caller.principal)
  // It could make one after the other, and would never end.
  if (caller.kind === 'portal')
    throw new LeaseholdError('ROLE_TOO_LOW', `${who} is a session of the portal, which makes no links.`, {
      remedy: 'Use a key, or the login of your own.',
    })
  if (caller.tenant !== null && caller.tenant !== tenant)
    throw new LeaseholdError(
      'ROLE_TOO_LOW',
      `The key ${who} is limited to the tenant ${JSON.stringify(caller.tenant)}, and the link is for ${JSON.stringify(tenant)}.`,
      { remedy: 'Use a key of that tenant, or one without a tenant.', field: 'body.tenant' },
    )
  if (!mayDo(caller.role, role))
    throw new LeaseholdError(
      'ROLE_TOO_LOW',
      `The key ${who} has the role ${caller.role}, and the link ${role}.`,
      {
        remedy: `Give the role ${caller.role}.`,
        field: 'body.role',
      },
    )
}
