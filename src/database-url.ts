/**
 * The URL of a database as libpq defines it, with one host or several:
 * `postgresql://user:password@one:5432,two:5433/database?target_session_attrs=read-write`.
 * `pg` takes one host only, so a URL with several is read as one URL for each of them.
 */

/** Which servers a connection may lead to. `read-write` also excludes a primary whose sessions begin read-only. */
export const TARGET_SESSIONS = ['any', 'read-write', 'primary'] as const

export type TargetSession = (typeof TARGET_SESSIONS)[number]

/** Everything before the hosts, the hosts, and everything after them. As in `new URL`, the last @ ends the password. */
const PARTS = /^(postgres(?:ql)?:\/\/(?:[^/?#]*@)?)([^/?#@]*)(.*)$/is
const TARGET_SESSION = /[?&]target_session_attrs=([^&#]*)/i

/** One URL for each host. A text that is no database URL is returned as it is. */
export function urlsOfHosts(text: string): readonly string[] {
  const [, before = '', hosts = '', after = ''] = PARTS.exec(text) ?? []
  return hosts.includes(',') ? hosts.split(',').map((host) => `${before}${host}${after}`) : [text]
}

/** What the URL says, which need not be one of `TARGET_SESSIONS`. */
export function statedTargetSession(text: string): string | undefined {
  const [, stated] = TARGET_SESSION.exec(text) ?? []
  return stated
}

/**
 * The value in the URL. By default any server will do where the URL names one host, as in libpq. Where it names several,
 * it is `read-write`, unlike in libpq: Leasehold writes, and would be of no use on a standby.
 */
export function targetSessionOf(text: string): TargetSession | undefined {
  const stated = statedTargetSession(text) ?? (urlsOfHosts(text).length > 1 ? 'read-write' : 'any')
  return TARGET_SESSIONS.find((known) => known === stated)
}

export const DATABASE_URL_RULE = `a URL such as postgresql://user@host:5432/database or, for the first of several servers that takes writes, postgresql://user@one:5432,two:5432/database; target_session_attrs may be ${TARGET_SESSIONS.join(', ')}`

export function isDatabaseUrl(value: unknown): boolean {
  if (typeof value !== 'string' || targetSessionOf(value) === undefined) return false
  const urls = urlsOfHosts(value)
  return urls.every((url) => {
    if (!URL.canParse(url)) return false
    const { protocol, hostname } = new URL(url)
    return ['postgresql:', 'postgres:'].includes(protocol) && (urls.length === 1 || hostname !== '')
  })
}

/** The parameters of a database URL in which `pg` accepts secrets too. */
const SECRET_PARAMETERS = ['password', 'sslpassword']

/** A URL with its password replaced by `***`. A URL that cannot be parsed is not shown at all. */
export function withoutPassword(text: string): string {
  const urls = urlsOfHosts(text)
  const [first = ''] = urls
  // Without the slashes, `user:password@host` parses as a URL whose scheme is `user`.
  if (!text.includes('://') || !urls.every((url) => URL.canParse(url)))
    return '(hidden, because it may contain a password)'
  const url = new URL(first)
  if (url.password !== '') url.password = '***'
  for (const parameter of SECRET_PARAMETERS) {
    if (url.searchParams.has(parameter)) url.searchParams.set(parameter, '***')
  }
  if (urls.length === 1) return url.href
  const [, , hosts = ''] = PARTS.exec(text) ?? []
  return url.href.replace(PARTS, (_, before: string, _host: string, after: string) => before + hosts + after)
}
