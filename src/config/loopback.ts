const LOOPBACK_HOSTS: readonly string[] = ['127.0.0.1', 'localhost', '::1']

export function isLoopbackHost(host: string): boolean {
  return LOOPBACK_HOSTS.includes(host)
}

/** The host as it stands in a URL and in a Host header. */
export function inUrl(host: string): string {
  return host.includes(':') ? `[${host}]` : host
}

/**
 * Whether a Host header names this server. A page in the user's browser can make any name of its own resolve to
 * 127.0.0.1 (DNS rebinding), but the header then still carries that name.
 */
export function isOwnHost(header: string | undefined, port: number): boolean {
  const own = LOOPBACK_HOSTS.map(inUrl)
  const allowed =
    port === 80 ? [...own, ...own.map((host) => `${host}:80`)] : own.map((host) => `${host}:${port}`)
  return header !== undefined && allowed.includes(header.toLowerCase())
}
