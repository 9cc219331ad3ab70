/**
 * What a request proves of its sender: a key (`Authorization: Bearer lhk_…`), the session of the dashboard (a cookie), or
 * that of the portal (`Authorization: Bearer lhs_…`).
 */
import { findKey, type KnownKey, recordUse } from '../../operations/api-keys.ts'
import { endSession, findSession, isSessionToken, type Session } from '../../operations/api-sessions.ts'
import { LeaseholdError } from '../../errors.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import type { Caller, IdentifiedCaller } from './route.ts'

/**
 * What a server knows of a request besides the request itself. Servers of Node.js give `incoming`, the request of Node.js,
 * and with it whatever a login has added to it.
 */
export type RequestEnv = Readonly<Record<string, unknown>>

/** Returns who sends the request; undefined refuses it. */
export type Authorize = (
  request: Request,
  env: RequestEnv,
) => Promise<Caller | undefined> | Caller | undefined

/** Recognises keys, and sessions that keys have opened. */
export async function callerByKey(
  db: Queryable,
  schema: string,
  request: Request,
): Promise<IdentifiedCaller | undefined> {
  const text = bearerOf(request)
  if (text !== undefined) {
    const key = await findKey(db, text, { schema })
    if (key === undefined) return undefined
    await recordUse(db, key, { schema })
    return callerOfKey(key)
  }
  const token = cookieOf(request, SESSION_COOKIE)
  const session = token === undefined ? undefined : await findSession(db, token, 'session', { schema })
  if (session === undefined) return undefined
  if (session.keyId !== null)
    await recordUse(db, { id: session.keyId, isOutdated: session.isOutdated }, { schema })
  return callerOfSession(session)
}

/** Whether a request comes from the portal. Its sessions are those of the API, whatever else authorises requests. */
export function isFromPortal(request: Request): boolean {
  return bearerOf(request)?.startsWith('lhs_') === true
}

export async function callerByPortal(
  db: Queryable,
  schema: string,
  request: Request,
): Promise<IdentifiedCaller> {
  const session = await findSession(db, bearerOf(request) ?? '', 'portal', { schema })
  if (session !== undefined) return callerOfSession(session)
  throw new LeaseholdError('KEY_INVALID', 'The session of the portal has expired, or was ended.', {
    remedy: 'Open the portal with a new link; `POST /portal/links` makes one.',
  })
}

function callerOfKey({ id, name, role, tenant, expiresAt }: KnownKey): IdentifiedCaller {
  return { principal: ofTenant(name, tenant), role, tenant, kind: 'key', keyId: id, expiresAt }
}

export function callerOfSession(session: Session): IdentifiedCaller {
  const { principal, role, tenant, kind, keyId, expiresAt } = session
  return { principal: ofTenant(principal, tenant), role, tenant, kind, keyId, expiresAt }
}

/**
 * In the audit, which a tenant sees its own entries of, its principals have names that nobody else has: `acme/ci` is not the
 * account `ci` of an operator, nor that of another tenant.
 */
export function ofTenant(principal: string, tenant: string | null): string {
  return tenant === null ? principal : `${tenant}/${principal}`
}

/** The token of a session that a request carries, by its form. */
export function sessionTokenIn(request: Request): string | undefined {
  return [bearerOf(request), cookieOf(request, SESSION_COOKIE)].find(
    (token) => token !== undefined && isSessionToken(token),
  )
}

/** Ends the sessions that a request proves. */
export async function endSessions(db: Queryable, schema: string, request: Request): Promise<void> {
  await endSession(db, bearerOf(request) ?? '', 'portal', { schema })
  await endSession(db, cookieOf(request, SESSION_COOKIE) ?? '', 'session', { schema })
}

export const SESSION_COOKIE = 'leasehold_session'

/** A working day. */
export const SESSION_SECONDS = 12 * 3_600

/** Whether a request names a key or a session, right or wrong. */
export function carriesKey(request: Request): boolean {
  return request.headers.has('authorization') || cookieOf(request, SESSION_COOKIE) !== undefined
}

/** The key or the token by which a request proves its sender. */
export function tokenOf(request: Request): string | undefined {
  return bearerOf(request) ?? cookieOf(request, SESSION_COOKIE)
}

/** A page in the browser cannot read the cookie, and other sites cannot have it sent. */
export function sessionCookie(request: Request, value: string, maxAgeSeconds: number): string {
  // A proxy that ends TLS says so; where there are several, the first is the one that the browser reaches.
  const forwarded = request.headers.get('x-forwarded-proto')?.split(',', 1)[0]?.trim().toLowerCase()
  const isSecure = new URL(request.url).protocol === 'https:' || forwarded === 'https'
  const secure = isSecure ? '; Secure' : ''
  return `${SESSION_COOKIE}=${value}; Path=/; HttpOnly; SameSite=Strict; Max-Age=${maxAgeSeconds}${secure}`
}

/** Undefined: there is no Authorization header. Another scheme than Bearer has an empty text. */
function bearerOf(request: Request): string | undefined {
  const header = request.headers.get('authorization')
  return header === null ? undefined : (/^Bearer +(\S+)$/i.exec(header)?.[1] ?? '')
}

function cookieOf(request: Request, name: string): string | undefined {
  const cookies = (request.headers.get('cookie') ?? '').split(';').map((cookie) => cookie.trim())
  return cookies.find((cookie) => cookie.startsWith(`${name}=`))?.slice(name.length + 1)
}

/**
 * Refuses what a page of another site has the browser send. A browser adds cookies, and reaches loopback; it also says where
 * the page comes from. A client that sends a key itself is no browser that was tricked. Whoever follows a link sees the
 * answer, and the page with the link does not.
 */
export function refuseOtherOrigins(request: Request): void {
  const isBearer = /^Bearer /i.test(request.headers.get('authorization') ?? '')
  if (isBearer) return
  const origin = request.headers.get('origin')
  const site = request.headers.get('sec-fetch-site')
  const isNavigation = request.method === 'GET' && request.headers.get('sec-fetch-mode') === 'navigate'
  const isOwn =
    origin === null
      ? site === null || site === 'same-origin' || isNavigation
      : hostOf(origin) === ownHost(request)
  if (isOwn) return
  throw new LeaseholdError('ROLE_TOO_LOW', `The request comes from a page of ${origin ?? 'another site'}.`, {
    remedy: 'Send it from a page of this host, or with a key in the Authorization header.',
    field: 'header.origin',
  })
}

function ownHost(request: Request): string | undefined {
  const { protocol, host } = new URL(request.url)
  const header = request.headers.get('host')
  // Some clients name the default port as well.
  return header === null ? host : hostOf(`${protocol}//${header}`)
}

function hostOf(origin: string): string | undefined {
  return URL.canParse(origin) ? new URL(origin).host : undefined
}
