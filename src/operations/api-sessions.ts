/**
 * Sessions of the HTTP API, and the links that open one in the portal of a tenant. Each has a random token, of which only
 * the hash is stored: who reads these tables can open nothing. A session and a link end with the key that made them.
 */
import { createHash, randomBytes } from 'node:crypto'
import type { Database } from '../postgres/database.ts'
import { isDistributed } from '../postgres/citus.ts'
import { quoteQualified } from '../postgres/identifiers.ts'
import type { Queryable } from '../postgres/queryable.ts'
import type { KeyOptions } from './api-keys.ts'
import type { KeyRole } from './roles.ts'
import { audit } from './audit.ts'
import { checkNames, checkPrincipal, checkTexts, invalid } from './request-checks.ts'

/** A browser sends the token of a `session` in a cookie; the page of a `portal` sends it in the Authorization header. */
export type SessionKind = 'session' | 'portal'

export interface Session {
  readonly kind: SessionKind
  /** The key with which the session, or its link, was made. Null: a login of the user's own, or a command, made the link. */
  readonly keyId: string | null
  /** The name of the key, or that of the portal. */
  readonly principal: string
  readonly role: KeyRole
  readonly tenant: string | null
  /** No later than its key. */
  readonly expiresAt: Date
}

/** A session, when it is used. */
export interface KnownSession extends Session {
  /** The last use of its key was recorded more than a minute ago. */
  readonly isOutdated: boolean
}

export type NewSession = Omit<Session, 'expiresAt'> & { readonly seconds: number }

export interface OpenedSession extends Session {
  /** It is shown only here. */
  readonly token: string
}

const SESSION_TOKEN = /^lhs_[\w-]{43}$/
const LINK_TOKEN = /^lhl_[\w-]{43}$/

/** Whether a text has the form of the token of a session. */
export function isSessionToken(text: string): boolean {
  return SESSION_TOKEN.test(text)
}

/** Whether a text has the form of the token of a link. */
export function isLinkToken(text: string): boolean {
  return LINK_TOKEN.test(text)
}

/** What is true of a session, or a link, whose key is still accepted. */
const KEY_IS_VALID = `(key.id is null or key.revoked_at is null and (key.expires_at is null or key.expires_at > now()))`

/** Undefined: the key is no longer valid. */
export async function openSession(
  db: Queryable,
  { kind, keyId, principal, role, tenant, seconds }: NewSession,
  { schema = 'leasehold' }: KeyOptions = {},
): Promise<OpenedSession | undefined> {
  const token = newToken('lhs')
  await db.query({
    text: `insert into ${sessionsOf(schema)} (hash, kind, key_id, principal, role, tenant, expires_at)
values ($1, $2, $3, $4, $5, $6, now() + $7 * interval '1 second')`,
    values: [hashOf(token), kind, keyId, principal, role, tenant, seconds],
  })
  const session = await findSession(db, token, kind, { schema })
  return session && { ...session, token }
}

/** The session with this token, unless it has ended. A token of one kind is not accepted as one of the other. */
export async function findSession(
  db: Queryable,
  token: string,
  kind: SessionKind,
  { schema = 'leasehold' }: KeyOptions = {},
): Promise<KnownSession | undefined> {
  if (!isSessionToken(token)) return undefined
  const { rows } = await db.query<KnownSession>({
    text: `select session.kind, session.key_id::text as "keyId", session.principal, session.role, session.tenant,
  least(session.expires_at, key.expires_at) as "expiresAt",
  key.id is not null and (key.last_used_at is null or key.last_used_at < now() - interval '1 minute') as "isOutdated"
from ${sessionsOf(schema)} as session left join ${keysOf(schema)} as key on key.id = session.key_id
where session.hash = $1 and session.kind = $2 and session.expires_at > now() and ${KEY_IS_VALID}`,
    values: [hashOf(token), kind],
  })
  return rows[0]
}

/** Ends a session. One that has ended before, or never was, is left at that. */
export async function endSession(
  db: Queryable,
  token: string,
  kind: SessionKind,
  { schema = 'leasehold' }: KeyOptions = {},
): Promise<void> {
  if (!isSessionToken(token)) return
  await db.query({
    text: `delete from ${sessionsOf(schema)} where hash = $1 and kind = $2`,
    values: [hashOf(token), kind],
  })
}

export const PORTAL_ROLES = ['read', 'operate'] as const

export type PortalRole = (typeof PORTAL_ROLES)[number]

export interface NewPortalLink {
  readonly tenant: string
  readonly role: PortalRole
  /** How long it can be used. Default 300, from 10 to 3,600. */
  readonly expiresInSeconds?: number | undefined
  /** Who it is for: the audit names what they do `<tenant>/portal:<name>`. */
  readonly name?: string | undefined
}

export interface PortalLink {
  /** It is shown only here. */
  readonly token: string
  /** Relative to where the dashboard is served. The token is a fragment, which a browser sends to no server. */
  readonly path: string
  readonly expiresAt: Date
}

export const MIN_LINK_SECONDS = 10
export const MAX_LINK_SECONDS = 3_600
const DEFAULT_LINK_SECONDS = 300

/** How long the portal is open. Whoever embeds it makes another link after that. */
const PORTAL_SECONDS = 3_600

const MAX_NAME_CHARACTERS = 100

/** Makes a link that opens the portal of a tenant, once. */
export async function createPortalLink(
  db: Database,
  link: NewPortalLink,
  { principal: by, keyId }: { readonly principal: string; readonly keyId: string | null },
  { schema = 'leasehold' }: KeyOptions = {},
): Promise<PortalLink> {
  const principal = checkPrincipal(by, 'link')
  checkLink(link)
  const { tenant, role, name, expiresInSeconds = DEFAULT_LINK_SECONDS } = link
  if (await isDistributed(db, schema))
    throw invalid('tenant', tenant, 'Citus distributes the tables, and cannot limit a portal to a tenant.')
  const token = newToken('lhl')
  return db.transaction(async (tx) => {
    const { rows } = await tx.query<{ expiresAt: Date }>({
      text: `insert into ${linksOf(schema)} (hash, key_id, tenant, role, name, expires_at)
values ($1, $2, $3, $4, $5, now() + $6 * interval '1 second') returning expires_at as "expiresAt"`,
      values: [hashOf(token), keyId, tenant, role, name ?? null, expiresInSeconds],
    })
    const [created] = rows
    if (created === undefined) throw new Error('The insert returned no row.')
    const { expiresAt } = created
    const details = { role, name: name ?? null, expiresAt }
    await audit(tx, schema, { principal, action: 'webhooks.portal.link', target: tenant, details })
    return { token, path: `portal#${token}`, expiresAt }
  })
}

/** Opens a session with a link, which is then used up. Undefined: the link is unknown, used or has expired. */
export async function usePortalLink(
  db: Queryable,
  link: string,
  { schema = 'leasehold' }: KeyOptions = {},
): Promise<OpenedSession | undefined> {
  if (!isLinkToken(link)) return undefined
  const token = newToken('lhs')
  // Of two that use it at the same time, the second waits for the row lock and then finds nothing.
  const { rowCount } = await db.query({
    text: `with used as (
  delete from ${linksOf(schema)}
  where hash = $1 and expires_at > now()
  returning key_id, tenant, role, name
)
insert into ${sessionsOf(schema)} (hash, kind, key_id, principal, role, tenant, expires_at)
select $2, 'portal', key_id, 'portal' || coalesce(':' || name, ''), role, tenant, now() + $3 * interval '1 second'
from used`,
    values: [hashOf(link), hashOf(token), PORTAL_SECONDS],
  })
  if (rowCount !== 1) return undefined
  // Its key may have been revoked, or have expired.
  const session = await findSession(db, token, 'portal', { schema })
  return session && { ...session, token }
}

/** Removes sessions and links that have expired. */
export async function forgetSessions(db: Queryable, schema: string): Promise<void> {
  for (const table of [sessionsOf(schema), linksOf(schema)])
    await db.query({ text: `delete from ${table} where expires_at < now()` })
}

function checkLink({ tenant, role, name, expiresInSeconds }: NewPortalLink): void {
  checkTexts({ tenant, name })
  checkNames('role', [role], PORTAL_ROLES)
  // With a slash, the principal could be that of another tenant: `acme/portal:a/b`.
  if (name !== undefined && (name.trim() !== name || name.length > MAX_NAME_CHARACTERS || name.includes('/')))
    throw invalid(
      'name',
      name,
      `Give at most ${MAX_NAME_CHARACTERS} characters, without a slash and without spaces at the ends.`,
    )
  const isInRange =
    expiresInSeconds === undefined ||
    (Number.isInteger(expiresInSeconds) &&
      expiresInSeconds >= MIN_LINK_SECONDS &&
      expiresInSeconds <= MAX_LINK_SECONDS)
  if (!isInRange)
    throw invalid(
      'expiresInSeconds',
      expiresInSeconds,
      `Give a whole number of seconds from ${MIN_LINK_SECONDS} to ${MAX_LINK_SECONDS}.`,
    )
}

function newToken(prefix: 'lhs' | 'lhl'): string {
  return `${prefix}_${randomBytes(32).toString('base64url')}`
}

/** A token has 256 random bits, so that a fast hash is enough, and rows can be found by it. */
function hashOf(token: string): Buffer {
  return createHash('sha256').update(token).digest()
}

function sessionsOf(schema: string): string {
  return quoteQualified(schema, 'api_sessions')
}

function linksOf(schema: string): string {
  return quoteQualified(schema, 'api_portal_links')
}

function keysOf(schema: string): string {
  return quoteQualified(schema, 'api_keys')
}
