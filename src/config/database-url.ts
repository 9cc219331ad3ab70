const HIDDEN = '***'

/** The parameters in which `pg` takes secrets too. */
const SECRET_PARAMETERS = ['password', 'sslpassword']

export function isDatabaseUrl(text: string): boolean {
  const url = parse(text)
  return url?.protocol === 'postgresql:' || url?.protocol === 'postgres:'
}

/** The URL without its password, to be shown. One that cannot be read is not shown at all. */
export function withoutPassword(text: string): string {
  // Without the slashes, `user:password@host` reads as a URL whose scheme is `user`.
  const url = text.includes('://') ? parse(text) : undefined
  if (url === undefined) return '(hidden, because it may hold a password)'
  if (url.password !== '') url.password = HIDDEN
  for (const parameter of SECRET_PARAMETERS) {
    if (url.searchParams.has(parameter)) url.searchParams.set(parameter, HIDDEN)
  }
  return url.href
}

function parse(text: string): URL | undefined {
  return URL.canParse(text) ? new URL(text) : undefined
}
