/** Which component shows which address, and what is shown to somebody who is not signed in. */
import type { JSX } from 'preact'
import { useEffect } from 'preact/hooks'
import { isPortal } from './config.ts'
import { pauseLive, startLive } from './live.ts'
import { AuditPage } from './pages/audit.tsx'
import { ChangePage, ChangesPage } from './pages/changes.tsx'
import { DeliveriesPage } from './pages/deliveries.tsx'
import { DeliveryPage } from './pages/delivery.tsx'
import { DoctorPage } from './pages/doctor.tsx'
import { EndpointPage } from './pages/endpoint.tsx'
import { EndpointsPage } from './pages/endpoints.tsx'
import { EventPage } from './pages/event.tsx'
import { HeldUpKeysPage } from './pages/held-up-keys.tsx'
import { JobPage } from './pages/job.tsx'
import { KeysPage } from './pages/keys.tsx'
import { LeasesPage } from './pages/leases.tsx'
import { LoginPage, PortalEndedPage, UnreachablePage } from './pages/login.tsx'
import { OutboxPage } from './pages/outbox.tsx'
import { OverviewPage } from './pages/overview.tsx'
import { ReconcilePage } from './pages/reconcile.tsx'
import { SyncPage } from './pages/sync.tsx'
import { WorkerPage } from './pages/worker.tsx'
import { WorkersPage } from './pages/workers.tsx'
import { hrefOf, Link, match, navigate, useAddress } from './router.tsx'
import { sessionState, startSession } from './session.ts'
import { isForTenants, Shell } from './shell.tsx'
import { useStore } from './store.ts'
import { Empty, Reading } from './ui/feedback.tsx'

type Page = (values: Readonly<Record<string, string>>) => JSX.Element

/** The first pattern that fits is shown. The title names it in a tab and in the history of the browser, before its id. */
const PAGES: readonly (readonly [pattern: string, title: string, page: Page])[] = [
  ['/', 'Overview', () => <OverviewPage />],
  ['/outbox', 'Outbox', () => <OutboxPage />],
  ['/outbox/keys', 'Keys that are held up', () => <HeldUpKeysPage />],
  ['/outbox/events/:id', 'Event', ({ id = '' }) => <EventPage key={id} id={id} />],
  ['/sync', 'Sync', () => <SyncPage />],
  ['/sync/jobs/:id', 'Job', ({ id = '' }) => <JobPage key={id} id={id} />],
  ['/reconcile', 'Reconcile', () => <ReconcilePage />],
  ['/leases', 'Leases', () => <LeasesPage />],
  ['/workers', 'Workers', () => <WorkersPage />],
  ['/workers/:id', 'Worker', ({ id = '' }) => <WorkerPage key={id} id={id} />],
  ['/webhooks', 'Endpoints', () => <EndpointsPage />],
  ['/webhooks/endpoints/:id', 'Endpoint', ({ id = '' }) => <EndpointPage key={id} id={id} />],
  ['/webhooks/deliveries', 'Deliveries', () => <DeliveriesPage />],
  ['/webhooks/deliveries/:id', 'Delivery', ({ id = '' }) => <DeliveryPage key={id} id={id} />],
  ['/changes', 'Changes', () => <ChangesPage />],
  ['/changes/:id', 'Change', ({ id = '' }) => <ChangePage key={id} id={id} />],
  ['/audit', 'Audit', () => <AuditPage />],
  ['/keys', 'Keys', () => <KeysPage />],
  ['/doctor', 'Doctor', () => <DoctorPage />],
]

export function App(): JSX.Element {
  const state = useStore(sessionState)
  useEffect(() => {
    startSession().catch(() => undefined)
  }, [])
  const isTenant = state.kind === 'signedIn' && state.session.tenant !== null
  useEffect(() => {
    if (state.kind !== 'signedIn') return undefined
    startLive({ isTenant })
    return pauseLive
  }, [state.kind, isTenant])
  if (state.kind === 'unknown') return <Reading />
  if (state.kind === 'unreachable') return <UnreachablePage problem={state.problem} />
  if (state.kind === 'signedOut') return isPortal ? <PortalEndedPage /> : <LoginPage />
  return (
    <Shell session={state.session}>
      <Routed isTenant={isTenant} />
    </Shell>
  )
}

/** Of the page as the server sends it: the name of the instance. */
const SERVED_TITLE = document.title

function find(path: string): { readonly title: string; readonly page: JSX.Element } | undefined {
  for (const [pattern, title, page] of PAGES) {
    const values = match(pattern, path)
    if (values !== undefined)
      return { title: [title, ...Object.values(values)].join(' '), page: page(values) }
  }
  return undefined
}

function Routed({ isTenant }: { readonly isTenant: boolean }): JSX.Element {
  const { path } = useAddress()
  // Those of one tenant start with their endpoints.
  const isStart = isTenant && path === '/'
  useEffect(() => {
    if (isStart) navigate(hrefOf('/webhooks'), { replace: true })
  }, [isStart])
  // What those of one tenant may not see does not exist for them.
  const found = isTenant && !isForTenants(path) ? undefined : find(path)
  useEffect(() => {
    document.title = [found?.title ?? 'No such page', SERVED_TITLE].join(' · ')
  }, [found?.title])
  if (isStart) return <Reading />
  if (found !== undefined) return found.page
  return (
    <Empty title="There is no such page.">
      <p>
        <Link href={hrefOf('/')}>{isTenant ? 'Go to the webhooks' : 'Go to the overview'}</Link>
      </p>
    </Empty>
  )
}
