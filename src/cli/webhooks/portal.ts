/** `leasehold webhooks portal <tenant>`: a link that opens the portal of a customer. */
import { createPortalLink, PORTAL_ROLES } from '../../operations/api-sessions.ts'
import { type Run, UsageError } from '../command.ts'
import { withWebhooks } from '../database.ts'
import { durationFlag, invalidArgument, isSet, principalOf, textFlag } from '../flags.ts'
import { printableJson } from '../output.ts'

export async function portalCommand(run: Run): Promise<number> {
  const { flags, args, print } = run
  const [tenant = ''] = args
  const given = textFlag(flags, 'role') ?? 'read'
  const role = PORTAL_ROLES.find((each) => each === given)
  if (role === undefined)
    throw new UsageError(`--role is ${JSON.stringify(given)}: give one of ${PORTAL_ROLES.join(', ')}.`)
  const expiresMs = durationFlag(flags, 'expires')
  const expiresInSeconds = expiresMs === undefined ? undefined : expiresMs / 1_000
  const base = baseFlag(flags)
  const name = textFlag(flags, 'name')
  const by = { principal: principalOf(run), keyId: null }
  return withWebhooks(
    run,
    async (db, schema) => {
      const link = await createPortalLink(db, { tenant, role, name, expiresInSeconds }, by, { schema })
      const url = base === undefined ? undefined : new URL(link.path, base).href
      print(isSet(flags, 'json') ? `${printableJson({ ...link, url })}\n` : `${url ?? link.path}\n`)
      return 0
    },
    'api',
  )
}

/** Where the dashboard is served, as a URL that ends in a slash: the path of the link is relative to it. */
function baseFlag(flags: Run['flags']): URL | undefined {
  const value = textFlag(flags, 'url')
  if (value === undefined) return undefined
  const url = URL.canParse(value) ? new URL(value) : undefined
  if (url === undefined || !/^https?:$/.test(url.protocol))
    throw invalidArgument('url', value, 'give the address of the dashboard, such as https://hooks.example/.')
  const { origin, pathname } = url
  return new URL(pathname.endsWith('/') ? pathname : `${pathname}/`, origin)
}
