/** Who looks at the page: by a session that a key opened, by the link of a portal, or by the login of another server. */
import { answer, type Answer, api, ApiProblem, useBearer, whenUnauthorized } from './api.ts'
import { isPortal } from './config.ts'
import { createStore } from './store.ts'

export type Session = Answer<'getSession'>

export type SessionState =
  | { readonly kind: 'unknown' }
  | { readonly kind: 'signedOut'; readonly problem?: ApiProblem | undefined }
  | { readonly kind: 'unreachable'; readonly problem: ApiProblem }
  | { readonly kind: 'signedIn'; readonly session: Session }

export const sessionState = createStore<SessionState>({ kind: 'unknown' })

const RANKS = { read: 0, operate: 1, admin: 2 } as const

/** Whether this person may do what needs the role. The API refuses it anyway; a page without the button is clearer. */
export function may(role: keyof typeof RANKS): boolean {
  const state = sessionState.get()
  return state.kind === 'signedIn' && RANKS[state.session.role] >= RANKS[role]
}

/** The tenant whose rows are all that this person sees; null: everything. */
export function ownTenant(): string | null {
  const state = sessionState.get()
  return state.kind === 'signedIn' ? state.session.tenant : null
}

const BEARER = 'leasehold:portal'
/** Other fragments lead to a part of the page. */
const LINK = /^lhl_/

/** Finds out who looks at the page. A link of a portal is in the fragment, which is not sent to any server. */
export async function startSession(): Promise<void> {
  whenUnauthorized(() => {
    if (isPortal) rememberBearer(undefined)
    if (sessionState.get().kind === 'signedIn') sessionState.set({ kind: 'signedOut' })
  })
  try {
    if (isPortal) await openPortal()
    const session = await answer(api.GET('/session'))
    if (isPortal && session.kind !== 'portal') return sessionState.set({ kind: 'signedOut' })
    sessionState.set({ kind: 'signedIn', session })
  } catch (error) {
    if (!(error instanceof ApiProblem)) throw error
    if (error.status === 401) sessionState.set({ kind: 'signedOut', problem: error })
    else sessionState.set({ kind: 'unreachable', problem: error })
  }
}

async function openPortal(): Promise<void> {
  const link = location.hash.slice(1)
  if (!LINK.test(link)) return useBearer(rememberedBearer())
  // It works once, and is nobody else's business.
  history.replaceState(null, '', location.pathname)
  rememberBearer(undefined)
  const { bearer } = await answer(api.POST('/session', { body: { link } }))
  rememberBearer(bearer)
}

/** So that the page can be loaded again. A browser that stores nothing, as in a frame of another site, forgets it then. */
function rememberBearer(bearer: string | undefined): void {
  useBearer(bearer)
  try {
    if (bearer === undefined) sessionStorage.removeItem(BEARER)
    else sessionStorage.setItem(BEARER, bearer)
  } catch {
    // It stores nothing.
  }
}

function rememberedBearer(): string | undefined {
  try {
    return sessionStorage.getItem(BEARER) ?? undefined
  } catch {
    return undefined
  }
}

// Another link in the same tab: the browser sees a step within the page.
if (isPortal)
  addEventListener('hashchange', () => {
    if (LINK.test(location.hash.slice(1))) location.reload()
  })

export async function signIn(key: string): Promise<void> {
  await answer(api.POST('/session', { body: { key } }))
  await startSession()
}

export async function signOut(): Promise<void> {
  await answer(api.DELETE('/session')).catch(() => undefined)
  sessionState.set({ kind: 'signedOut' })
}
