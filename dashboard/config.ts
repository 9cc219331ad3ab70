/** What the server tells the page when it serves it (`src/server/dashboard.ts`). */
export interface PageConfig {
  /** Where the dashboard is mounted, without a slash at its end. */
  readonly basePath: string
  readonly version: string
  readonly instance: { readonly name?: string; readonly color?: string }
  /** Whether a person signs in with a key here, or has signed in to the server that the dashboard is part of. */
  readonly login: 'key' | 'custom'
}

const text = document.querySelector('meta[name="leasehold"]')?.getAttribute('content') ?? '{}'

// The server wrote it.
const given = JSON.parse(text) as Partial<PageConfig>

export const config: PageConfig = {
  basePath: given.basePath ?? '',
  version: given.version ?? '',
  instance: given.instance ?? {},
  login: given.login ?? 'key',
}

const below = location.pathname.slice(config.basePath.length)

/** The portal shows one tenant what is its own, in a frame of another site. */
export const isPortal = below === '/portal' || below.startsWith('/portal/')

/** What the addresses of all pages begin with. */
export const pagesPath = isPortal ? `${config.basePath}/portal` : config.basePath
