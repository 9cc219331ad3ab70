/** The frame around every page: navigation, the name of the installation, live updates, the theme. */
import type { ComponentChildren, JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { config, isPortal } from './config.ts'
import { openHelp, ShortcutHelp, useShortcuts } from './keyboard.tsx'
import { liveState, type LiveState, pauseLive, startLive } from './live.ts'
import { openPalette, Palette } from './palette.tsx'
import { hrefOf, Link, navigate, useAddress } from './router.tsx'
import { ownTenant, type Session, signOut } from './session.ts'
import { rememberedStore, useStore } from './store.ts'
import { Notices } from './ui/feedback.tsx'

export interface NavigationEntry {
  readonly path: string
  readonly title: string
  /** `g` and this key open it. */
  readonly key: string
  /** Whether those of one tenant have it. */
  readonly forTenants: boolean
  readonly role: 'read' | 'admin'
}

export const NAVIGATION: readonly NavigationEntry[] = [
  { path: '/', title: 'Overview', key: 'h', forTenants: false, role: 'read' },
  { path: '/outbox', title: 'Outbox', key: 'o', forTenants: false, role: 'read' },
  { path: '/webhooks', title: 'Webhooks', key: 'w', forTenants: true, role: 'read' },
  { path: '/sync', title: 'Sync', key: 's', forTenants: false, role: 'read' },
  { path: '/reconcile', title: 'Reconcile', key: 'r', forTenants: false, role: 'read' },
  { path: '/leases', title: 'Leases', key: 'l', forTenants: false, role: 'read' },
  { path: '/workers', title: 'Workers', key: 'p', forTenants: false, role: 'read' },
  { path: '/changes', title: 'Changes', key: 'c', forTenants: true, role: 'read' },
  { path: '/audit', title: 'Audit', key: 'a', forTenants: true, role: 'read' },
  { path: '/keys', title: 'Keys', key: 'k', forTenants: false, role: 'admin' },
  { path: '/doctor', title: 'Doctor', key: 'd', forTenants: false, role: 'read' },
]

/** The pages that this person can open. */
export function navigationOf({ role, tenant }: Session): readonly NavigationEntry[] {
  return NAVIGATION.filter(
    (entry) => (tenant === null || entry.forTenants) && (entry.role === 'read' || role === 'admin'),
  )
}

/** What a customer may do. */
const PORTAL_ROLES = { read: 'read only', operate: 'read and change', admin: 'read and change' } as const

const THEMES = ['system', 'light', 'dark'] as const

export const theme = rememberedStore('theme', 'system')

function nextTheme(): void {
  const index = THEMES.findIndex((name) => name === theme.get())
  theme.set(THEMES[(index + 1) % THEMES.length] ?? 'system')
}

function useTheme(): string {
  const chosen = useStore(theme)
  useEffect(() => {
    if (chosen === 'system') delete document.documentElement.dataset['theme']
    else document.documentElement.dataset['theme'] = chosen
  }, [chosen])
  return chosen
}

export function Shell({
  session,
  children,
}: {
  readonly session: Session
  readonly children: ComponentChildren
}): JSX.Element {
  const { path } = useAddress()
  const [isMenuOpen, setMenuOpen] = useState(false)
  const entries = navigationOf(session)
  useShortcuts({
    ...Object.fromEntries(
      entries.map((entry) => [
        `g ${entry.key}`,
        { title: entry.title, act: () => navigate(hrefOf(entry.path)) },
      ]),
    ),
    p: { title: 'Pause or continue live updates', act: togglePause },
    t: { title: 'Another theme', act: nextTheme },
  })
  useEffect(() => setMenuOpen(false), [path])
  const { name, color } = config.instance
  return (
    <div class="shell" style={color === undefined ? undefined : { '--instance': color }}>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <header class="top">
        <button
          type="button"
          class="menu quiet"
          aria-expanded={isMenuOpen}
          aria-controls="navigation"
          onClick={() => setMenuOpen(!isMenuOpen)}
        >
          ☰<span class="visually-hidden"> Menu</span>
        </button>
        <Link href={hrefOf('/')} class="brand">
          {isPortal ? 'Webhooks' : 'Leasehold'}
        </Link>
        {name === undefined ? null : <span class="instance">{name}</span>}
        {session.tenant === null || session.tenant === '' || isPortal ? null : (
          <span class="tenant" title="Only what belongs to this tenant is shown">
            {session.tenant}
          </span>
        )}
        <span class="space" />
        <Live />
        <ThemeButton />
        <button type="button" class="quiet wide-only" onClick={openPalette}>
          Go to… <kbd>Ctrl K</kbd>
        </button>
        <button type="button" class="quiet wide-only" onClick={openHelp} aria-label="List the shortcuts">
          ?
        </button>
      </header>
      <nav id="navigation" class={isMenuOpen ? 'side open' : 'side'} aria-label="Pages">
        <ul>
          {entries.map((entry) => (
            <li key={entry.path}>
              <Link href={hrefOf(entry.path)} aria-current={isUnder(path, entry.path) ? 'page' : undefined}>
                {entry.title}
              </Link>
            </li>
          ))}
        </ul>
        <footer>
          <p>
            {isPortal ? session.tenant : session.principal}
            <br />
            <span class="hint">{isPortal ? PORTAL_ROLES[session.role] : `role: ${session.role}`}</span>
          </p>
          {config.login === 'key' && session.principal !== 'local' && !isPortal ? (
            <button
              type="button"
              class="quiet small"
              onClick={() => {
                signOut().catch(() => undefined)
              }}
            >
              Sign out
            </button>
          ) : null}
          {isPortal ? null : <p class="hint">Leasehold {config.version}</p>}
        </footer>
      </nav>
      <main id="main" tabIndex={-1}>
        {children}
      </main>
      <Palette entries={entries} />
      <ShortcutHelp />
      <Notices />
    </div>
  )
}

/** Whether a page is for those of one tenant as well. */
export function isForTenants(path: string): boolean {
  return NAVIGATION.some((entry) => entry.forTenants && isUnder(path, entry.path))
}

function isUnder(path: string, entry: string): boolean {
  return entry === '/' ? path === '/' : path === entry || path.startsWith(`${entry}/`)
}

const LIVE_TEXTS: Readonly<Record<LiveState, string>> = {
  live: 'Live',
  polling: 'Live',
  waiting: 'Connecting…',
  paused: 'Paused',
  databaseAway: 'Database away',
}

const LIVE_TITLES: Readonly<Record<LiveState, string>> = {
  live: 'The server sends every change at once',
  polling: 'This page asks every 3 seconds',
  waiting: 'Nothing was heard from the server yet, or the connection broke',
  paused: 'Nothing moves until you continue',
  databaseAway: 'The server cannot reach its database at the moment',
}

export function togglePause(): void {
  if (liveState.get() === 'paused') startLive({ isTenant: ownTenant() !== null })
  else pauseLive()
}

function Live(): JSX.Element {
  const state = useStore(liveState)
  const isPaused = state === 'paused'
  return (
    <button
      type="button"
      class={`live ${state}`}
      title={LIVE_TITLES[state]}
      aria-label={`${LIVE_TEXTS[state]}. ${isPaused ? 'Continue' : 'Pause'} live updates`}
      onClick={togglePause}
    >
      <span class="dot" aria-hidden="true" />
      {LIVE_TEXTS[state]}
      <span class="wide-only" aria-hidden="true">
        {isPaused ? '▶' : '❚❚'}
      </span>
    </button>
  )
}

const THEME_SIGNS: Readonly<Record<string, string>> = { system: '◐', light: '☀', dark: '☾' }

function ThemeButton(): JSX.Element {
  const chosen = useTheme()
  return (
    <button
      type="button"
      class="quiet"
      onClick={nextTheme}
      aria-label={`Theme: ${chosen}`}
      title={`Theme: ${chosen}`}
    >
      {THEME_SIGNS[chosen] ?? '◐'}
    </button>
  )
}
