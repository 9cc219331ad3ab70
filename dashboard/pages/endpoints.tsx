/** Endpoints of webhooks: how each is doing, and what waits for it. */
import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { answer, type Answer, api } from '../api.ts'
import { isPortal } from '../config.ts'
import { CreateEndpointDialog } from '../endpoint-form.tsx'
import { formatCount } from '../format.ts'
import { PortalLinkButton } from '../portal-link.tsx'
import { useQuery } from '../query.ts'
import { hrefOf, Link } from '../router.tsx'
import { SearchedList, useSearch } from '../search.tsx'
import { may, ownTenant } from '../session.ts'
import { Sparkline } from '../ui/charts.tsx'
import { Empty, Sample } from '../ui/feedback.tsx'
import { type Filter, FilterBar, useFilterValues } from '../ui/filters.tsx'
import type { Column } from '../ui/table.tsx'
import { None } from '../ui/values.tsx'
import { type Endpoint, EndpointState, limitsText, Tenant, typesText, WebhookTabs } from '../webhooks.tsx'

/** As many as `GET /webhooks/sparklines` takes. */
const PAGE_SIZE = 50
const HEALTH_EVERY_MS = 10_000
/** Only endpoints with something that waits or has failed are counted, the worst first. */
const MOST_COUNTED = 500

function filtersOf(): readonly Filter[] {
  const tenant: Filter = { kind: 'text', name: 'tenant', label: 'Tenant' }
  return [
    {
      kind: 'choice',
      name: 'enabled',
      label: 'State',
      options: ['true', 'false'],
      labels: { true: 'enabled', false: 'disabled' },
    },
    { kind: 'text', name: 'eventType', label: 'Receives the type', placeholder: 'order.paid' },
    ...(ownTenant() === null ? [tenant] : []),
  ]
}

export function EndpointsPage(): JSX.Element {
  const definitions = filtersOf()
  const filters = useFilterValues(definitions)
  const [isCreating, setCreating] = useState(false)
  const query = {
    tenant: filters.one('tenant'),
    // The API checks the words of the address.
    enabled: filters.one('enabled') as 'true' | 'false' | undefined,
    eventType: filters.one('eventType'),
  }
  const search = useSearch(filters, async (cursor, signal) =>
    answer(
      api.GET('/webhooks/endpoints', { params: { query: { ...query, cursor, limit: PAGE_SIZE } }, signal }),
    ),
  )
  const health = useHealth(search.items)
  return (
    <>
      <header class="page-header">
        <h1>Webhooks</h1>
        <span class="space" />
        <PortalLinkButton />
        {may('operate') ? (
          <button type="button" class="primary" onClick={() => setCreating(true)}>
            New endpoint…
          </button>
        ) : null}
      </header>
      <WebhookTabs />
      <FilterBar filters={definitions} />
      <SearchedList
        search={search}
        caption="Endpoints, in the order of their creation"
        columns={columnsOf(health)}
        idOf={({ id }) => id}
        hrefOf={({ id }) => hrefOf(`/webhooks/endpoints/${id}`)}
        pagerWords={['First', 'Next']}
        empty={filters.isEmpty ? <NoEndpoints /> : <Empty title="No endpoint matches these filters." />}
      />
      {isCreating ? (
        <CreateEndpointDialog onClose={() => setCreating(false)} onCreated={search.refresh} />
      ) : null}
    </>
  )
}

interface Health {
  readonly counts: Answer<'getWebhooksHealth'> | undefined
  readonly sparklines: Answer<'getWebhooksSparklines'> | undefined
}

/** What waits and what failed, and the last 24 hours, of the endpoints that are shown. */
function useHealth(shown: readonly Endpoint[]): Health {
  const ids = shown.map(({ id }) => id)
  const counts = useQuery(
    'health',
    async (signal) =>
      answer(api.GET('/webhooks/health', { params: { query: { limit: MOST_COUNTED } }, signal })),
    { everyMs: HEALTH_EVERY_MS },
  )
  const sparklines = useQuery(
    `sparklines ${ids.join()}`,
    async (signal) =>
      ids.length === 0
        ? undefined
        : answer(api.GET('/webhooks/sparklines', { params: { query: { endpoint: ids } }, signal })),
    { everyMs: HEALTH_EVERY_MS },
  )
  return { counts: counts.data, sparklines: sparklines.data }
}

function columnsOf({ counts, sparklines }: Health): readonly Column<Endpoint>[] {
  const counted = new Map(counts?.items.map((item) => [item.id, item]))
  const lines = new Map(sparklines?.items.map((item) => [item.id, item]))
  const count = (id: string, of: 'pending' | 'failed'): JSX.Element => {
    const known = counted.get(id)?.[of] ?? (counts?.more === false ? 0 : undefined)
    if (known === undefined) return <None />
    if (known === 0) return <>0</>
    // Pending ones are counted up to 1,000.
    const text = `${formatCount(known)}${of === 'pending' && known >= 1_000 ? '+' : ''}`
    return <Link href={hrefOf('/webhooks/deliveries', { endpoint: id, status: of })}>{text}</Link>
  }
  return [
    {
      title: 'URL',
      grows: true,
      cell: ({ id, url, description }) => (
        <div>
          <Link href={hrefOf(`/webhooks/endpoints/${id}`)}>{url}</Link>
          {description === '' ? null : <div class="hint">{description}</div>}
        </div>
      ),
    },
    { title: 'State', cell: (endpoint) => <EndpointState of={endpoint} /> },
    {
      title: 'Last 24 h',
      cell: ({ id }) => {
        const line = lines.get(id)
        return line === undefined || sparklines === undefined ? (
          <None />
        ) : (
          <Sparkline
            label="Attempts in the last 24 hours"
            bars={sparklines.times.map((at, index) => ({
              at,
              good: line.delivered[index] ?? 0,
              bad: line.failed[index] ?? 0,
            }))}
          />
        )
      },
    },
    { title: 'Pending', align: 'right', cell: ({ id }) => count(id, 'pending') },
    { title: 'Failed', align: 'right', cell: ({ id }) => count(id, 'failed') },
    {
      title: 'Event types and limits',
      cell: (endpoint) => (
        <div>
          <span class="types" title={typesText(endpoint.eventTypes)}>
            {typesText(endpoint.eventTypes)}
          </span>
          <div class="hint">{limitsText(endpoint)}</div>
        </div>
      ),
    },
    ...(ownTenant() === null
      ? [{ title: 'Tenant', cell: ({ tenant }: Endpoint) => <Tenant of={tenant} /> }]
      : []),
  ]
}

function NoEndpoints(): JSX.Element {
  if (isPortal)
    return (
      <Empty title="You have no endpoint yet.">
        <p>
          An endpoint is a URL of yours to which we POST what happens. Your server verifies each request with
          the secret of the endpoint, for instance with a library of{' '}
          <span class="name">Standard Webhooks</span>:
        </p>
        <Sample>{`import { Webhook } from 'standardwebhooks'

app.post('/webhooks', express.text({ type: '*/*' }), (request, response) => {
  const event = new Webhook(process.env.SECRET).verify(request.body, request.headers)
  response.sendStatus(204)
})`}</Sample>
      </Empty>
    )
  return (
    <Empty title="There is no endpoint yet.">
      <p>Create one here, or on the command line:</p>
      <Sample>{`leasehold webhooks endpoints create https://example.com/webhooks --types 'order.*'`}</Sample>
      <p>and send events in the transaction in which they happen:</p>
      <Sample>{`import { createWebhooks } from 'leasehold/webhooks'

const webhooks = createWebhooks()
await webhooks.send(tx, { type: 'order.paid', payload: { order: 'o-1' } })`}</Sample>
    </Empty>
  )
}
