/** Who sends a request: by a key (`Authorization: Bearer lhk_…`), or by the session of the dashboard, which a key opened. */
import { createHmac, timingSafeEqual } from 'node:crypto'
import { idIn, isKey, type KnownKey, readKey, recordUse } from '../../admin/api-keys.ts'
import { LeaseholdError } from '../../errors.ts'
import type { Database } from '../../postgres/database.ts'
import { actingAs } from './acting.ts'
import type { Caller } from './route.ts'

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

export interface KeyStore {
  readonly db: Database
  readonly schema: string
  readonly prefix: () => Promise<string>
  readonly statementTimeoutMs: number
}

/** Recognises keys and sessions. */
export function authorizeByKey(store: KeyStore): Authorize {
  return async (request) => {
    const header = request.headers.get('authorization')
    if (header !== null) {
      const [, text = ''] = /^Bearer +(\S+)$/i.exec(header) ?? []
      return callerOf(await keyOf(store, text))
    }
    const session = cookieOf(request, SESSION_COOKIE)
    return session === undefined ? undefined : callerOf(await sessionKey(store, session))
  }
}

/** The key of this text, unless it is unknown, revoked or has expired. */
export async function keyOf(store: KeyStore, text: string): Promise<KnownKey | undefined> {
  const id = idIn(text)
  const key = id === undefined ? undefined : await find(store, id)
  return key !== undefined && isKey(key, text) ? used(store, key) : undefined
}

async function used(store: KeyStore, key: KnownKey): Promise<KnownKey> {
  await recordUse(await own(store), key, { schema: store.schema })
  return key
}

function callerOf(key: KnownKey | undefined): Caller | undefined {
  return key && { principal: key.name, role: key.role, tenant: key.tenant }
}

async function find(store: KeyStore, id: string): Promise<KnownKey | undefined> {
  return readKey(await own(store), id, { schema: store.schema })
}

/** Acts for the server itself. */
async function own({ db, prefix, statementTimeoutMs }: KeyStore): Promise<Database> {
  const acting = { role: 'api', tenant: null, principal: 'api', statementTimeoutMs, readOnly: false } as const
  return actingAs(db, acting, await prefix())
}

export const SESSION_COOKIE = 'leasehold_session'

/** A working day. */
export const SESSION_SECONDS = 12 * 3_600

/**
 * The session of the dashboard. It is signed with the hash of its key, so that it needs no table and ends with the key. A
 * page in the browser cannot read the cookie, and other sites cannot have it sent.
 */
export function sessionOf({ id, hash }: KnownKey, now = Date.now()): string {
  const expires = Math.floor(now / 1_000) + SESSION_SECONDS
  return `${id}.${expires}.${signature(hash, id, expires).toString('base64url')}`
}

async function sessionKey(store: KeyStore, session: string): Promise<KnownKey | undefined> {
  const [, id, digits, signed] = /^([0-9a-f-]{36})\.(\d{1,12})\.([\w-]{43})$/.exec(session) ?? []
  if (id === undefined || digits === undefined || signed === undefined) return undefined
  const expires = Number(digits)
  const leftSeconds = expires - Date.now() / 1_000
  if (leftSeconds <= 0 || leftSeconds > SESSION_SECONDS + 1) return undefined
  const key = await find(store, id).catch((error: unknown) => {
    // A text that only looks like an id.
    if (error instanceof Error && 'code' in error && error.code === '22P02') return undefined
    throw error
  })
  if (key === undefined) return undefined
  const isSigned = timingSafeEqual(signature(key.hash, id, expires), Buffer.from(signed, 'base64url'))
  return isSigned ? used(store, key) : undefined
}

function signature(hash: Buffer, id: string, expires: number): Buffer {
  return createHmac('sha256', hash).update(`leasehold session ${id} ${expires}`).digest()
}

/** Whether a request names a key or a session, right or wrong. */
export function carriesKey(request: Request): boolean {
  return request.headers.has('authorization') || cookieOf(request, SESSION_COOKIE) !== undefined
}

export function sessionCookie(request: Request, value: string, maxAgeSeconds: number): string {
  // A proxy that ends TLS says so.
  const isSecure =
    new URL(request.url).protocol === 'https:' || request.headers.get('x-forwarded-proto') === 'https'
  const secure = isSecure ? '; Secure' : ''
  return `${SESSION_COOKIE}=${value}; Path=/; HttpOnly; SameSite=Strict; Max-Age=${maxAgeSeconds}${secure}`
}

function cookieOf(request: Request, name: string): string | undefined {
  const cookies = (request.headers.get('cookie') ?? '').split(';').map((cookie) => cookie.trim())
  return cookies.find((cookie) => cookie.startsWith(`${name}=`))?.slice(name.length + 1)
}

const SAFE_METHODS = new Set(['GET', 'HEAD', 'OPTIONS'])

/**
 * Refuses a change that a page of another site has the browser send. A browser adds cookies, and reaches loopback; it also
 * says where the page comes from. A client that sends a key itself is no browser that was tricked.
 */
export function refuseOtherOrigins(request: Request): void {
  const isBearer = /^Bearer /i.test(request.headers.get('authorization') ?? '')
  if (SAFE_METHODS.has(request.method) || isBearer) return
  const origin = request.headers.get('origin')
  const site = request.headers.get('sec-fetch-site')
  const isOwn =
    origin === null ? site === null || site === 'same-origin' : hostOf(origin) === ownHost(request)
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
