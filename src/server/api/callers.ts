/** Who sends a request, and whether they may. */
import { createHash } from 'node:crypto'
import { inspect } from 'node:util'
import { KEY_ROLES, mayDo } from '../../operations/roles.ts'
import { isLeaseholdError, LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import { unstorableText } from '../../unstorable-text.ts'
import { type ActingRoles, actingForServer } from './acting.ts'
import {
  type Authorize,
  callerByKey,
  callerByPortal,
  isFromPortal,
  ofTenant,
  type RequestEnv,
} from './authorize.ts'
import type { Caller, IdentifiedCaller, Route } from './route.ts'

export interface CallersOptions {
  readonly db: Database
  readonly schema: string
  readonly roles: ActingRoles
  readonly statementTimeoutMs: number
  /** The login of the user's own. Undefined: by keys. */
  readonly authorize: Authorize | undefined
  /** Who a request without a key is. Undefined: it is refused. */
  readonly withoutKey: Caller | undefined
}

export interface SentRequest {
  readonly request: Request
  readonly env: RequestEnv
}

/** Returns who sends a request. Refuses one of nobody, and those of tenants where the database does not keep them apart. */
export type Identify = (sent: SentRequest) => Promise<IdentifiedCaller>

export function identifyBy(options: CallersOptions): Identify {
  const { db, roles, statementTimeoutMs } = options
  // What cannot be a key is refused without asking the database.
  const server: Queryable = {
    query: async (statement) => (await actingForServer(db, roles, statementTimeoutMs)).query(statement),
  }
  return async (sent) => {
    const caller = await findCaller(server, options, sent)
    if (caller === undefined)
      throw new LeaseholdError('KEY_INVALID', 'The request has no valid key.', {
        remedy: 'Send `Authorization: Bearer <key>`; `leasehold keys create` creates a key.',
      })
    if (caller.tenant !== null) await roles.requireTenantPolicies()
    return caller
  }
}

async function findCaller(
  server: Queryable,
  { schema, authorize, withoutKey }: CallersOptions,
  { request, env }: SentRequest,
): Promise<IdentifiedCaller | undefined> {
  // First, so that a login of the user's own need not know of the portal.
  if (isFromPortal(request)) return callerByPortal(server, schema, request)
  if (authorize === undefined) {
    const known = await callerByKey(server, schema, request)
    if (known !== undefined) return known
  } else {
    const caller = await authorize(request, env)
    if (caller !== undefined && caller !== null) {
      const { principal, role, tenant } = checkCaller(caller)
      return { ...NO_KEY, principal: ofTenant(principal, tenant), role, tenant, kind: 'custom' }
    }
  }
  if (withoutKey === undefined || request.headers.has('authorization')) return undefined
  return { ...checkCaller(withoutKey), ...NO_KEY, kind: 'local' }
}

const NO_KEY = { keyId: null, expiresAt: null } as const

/**
 * Who opens or ends a session. Limits count by the token: behind a proxy all clients may have one address, and by a part of
 * the token, such as the id of a key, whoever knows that part could use up what its owner may send.
 */
export function nobody(token: string | undefined, address: string): IdentifiedCaller {
  const principal =
    token === undefined
      ? `nobody at ${address}`
      : `nobody with ${createHash('sha256').update(token).digest('hex')}`
  return { principal, role: 'read', tenant: null, kind: 'local', ...NO_KEY }
}

/** Whether the caller is still who it was, and may still do this: a key can be revoked while a stream runs. */
export async function isStillPermitted(
  identify: Identify,
  sent: SentRequest & { readonly route: Route },
  before: Caller,
): Promise<boolean> {
  try {
    const caller = await identify(sent)
    refuseUnlessPermitted(sent.route, caller)
    return caller.principal === before.principal
  } catch (error) {
    if (isLeaseholdError(error, 'KEY_INVALID') || isLeaseholdError(error, 'ROLE_TOO_LOW')) return false
    throw error
  }
}

export function refuseUnlessPermitted({ role, forTenants, isOpen }: Route, caller: Caller): void {
  if (isOpen) return
  if (caller.tenant !== null && !forTenants)
    throw new LeaseholdError(
      'ROLE_TOO_LOW',
      `The key ${JSON.stringify(caller.principal)} is limited to the tenant ${JSON.stringify(caller.tenant)}, and this concerns all of them.`,
      { remedy: 'Use a key without a tenant.' },
    )
  if (!mayDo(caller.role, role))
    throw new LeaseholdError(
      'ROLE_TOO_LOW',
      `The key ${JSON.stringify(caller.principal)} has the role ${caller.role}, and this needs ${role}.`,
      { remedy: `Use a key with the role ${role}.` },
    )
}

/** What `authorize` of the user's own returned. A mistake there must not give more than was meant. */
function checkCaller({ principal, role, tenant }: Caller): Caller {
  const isName = (given: unknown): given is string =>
    typeof given === 'string' && given.trim() !== '' && unstorableText(given) === undefined
  const problems = [
    ...(isName(principal)
      ? []
      : [`principal is ${inspect(principal)}; give the name that the audit records`]),
    ...(KEY_ROLES.includes(role) ? [] : [`role is ${inspect(role)}; give ${KEY_ROLES.join(', ')}`]),
    ...(tenant === null || isName(tenant) ? [] : [`tenant is ${inspect(tenant)}; give its name, or null`]),
    // It could be the principal of another tenant: `x/y` of acme, and `y` of the tenant acme/x.
    ...(tenant !== null && isName(principal) && principal.includes('/')
      ? [`principal is ${inspect(principal)}; in a tenant, give a name without a slash`]
      : []),
    ...(tenant !== null && role === 'admin'
      ? ['role is admin, and tenant is not null: an admin has no tenant']
      : []),
  ]
  if (problems.length === 0) return { principal, role, tenant }
  throw new Error(`authorize returned a caller whose ${problems.join('; ')}.`)
}

/** `@hono/node-server` and servers that are built on it give the request of Node.js. */
export function remoteAddress({ incoming }: RequestEnv): string | undefined {
  const socket = isObject(incoming) && 'socket' in incoming ? incoming.socket : undefined
  const address = isObject(socket) && 'remoteAddress' in socket ? socket.remoteAddress : undefined
  return typeof address === 'string' ? address : undefined
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null
}
