/** Deliveries of webhooks: found by state, endpoint, type, error, time or id, and changed one by one or all that match. */
import type { JSX } from 'preact'
import { answer, api } from '../api.ts'
import { BulkBar } from '../bulk-change.tsx'
import { isPortal } from '../config.ts'
import { hrefOf } from '../router.tsx'
import { SearchedList, useSearch } from '../search.tsx'
import { may, ownTenant } from '../session.ts'
import { Empty, Sample } from '../ui/feedback.tsx'
import { type Filter, FilterBar, useFilterValues } from '../ui/filters.tsx'
import { useSelection } from '../ui/table.tsx'
import { type Delivery, deliveryColumns, WebhookTabs } from '../webhooks.tsx'

const STATUSES = ['pending', 'delivered', 'failed'] as const

function filtersOf(): readonly Filter[] {
  const tenant: Filter = { kind: 'text', name: 'tenant', label: 'Tenant' }
  return [
    { kind: 'choice', name: 'status', label: 'State', options: STATUSES, several: true },
    { kind: 'text', name: 'type', label: 'Type', placeholder: 'order.paid' },
    ...(ownTenant() === null ? [tenant] : []),
    { kind: 'text', name: 'error', label: 'Error contains', placeholder: 'timeout' },
    { kind: 'text', name: 'endpoint', label: 'Endpoint', placeholder: 'its id' },
    { kind: 'text', name: 'id', label: 'Id', placeholder: '4711, or an event id' },
    { kind: 'time', name: 'from', label: 'Sent from' },
    { kind: 'time', name: 'to', label: 'to' },
  ]
}

export function DeliveriesPage(): JSX.Element {
  const definitions = filtersOf()
  const filters = useFilterValues(definitions)
  const selection = useSelection()
  const conditions = {
    endpoint: filters.one('endpoint'),
    tenant: filters.one('tenant'),
    type: filters.one('type'),
    error: filters.one('error'),
    from: filters.one('from'),
    to: filters.one('to'),
    // The API checks the words of the address.
    status: filters.all('status') as Delivery['status'][] | undefined,
  }
  const id = filters.all('id')
  const search = useSearch(filters, async (cursor, signal) =>
    answer(
      api.GET('/webhooks/deliveries', {
        params: { query: { ...conditions, id, cursor, limit: 50 } },
        signal,
      }),
    ),
  )
  return (
    <>
      <header class="page-header">
        <h1>Webhooks</h1>
      </header>
      <WebhookTabs />
      <FilterBar filters={definitions} />
      <SearchedList
        search={search}
        caption="Deliveries, the newest first"
        columns={deliveryColumns('all')}
        idOf={(delivery) => delivery.id}
        hrefOf={(delivery) => hrefOf(`/webhooks/deliveries/${delivery.id}`)}
        selection={may('operate') ? selection : undefined}
        toneOf={({ status }) => (status === 'failed' ? 'bad' : undefined)}
        empty={filters.isEmpty ? <NoDeliveries /> : <Empty title="No delivery matches these filters." />}
      />
      <BulkBar
        isShown={search.items.length > 0}
        list="/webhooks/deliveries"
        rows="deliveries"
        actions={[
          {
            action: 'replay',
            label: 'Replay',
            only: 'Only deliveries that have failed are replayed, or delivered ones if that state is chosen.',
          },
          {
            action: 'retry',
            label: 'Retry now',
            only: 'Only deliveries that wait for their next attempt are meant; others have to be selected.',
          },
          {
            action: 'cancel',
            label: 'Cancel',
            tone: 'bad',
            only: 'Only deliveries that are pending, and not being sent, are cancelled.',
          },
        ]}
        selection={selection}
        filter={conditions}
        isFiltered={!filters.isEmpty}
        ids={id}
      />
    </>
  )
}

function NoDeliveries(): JSX.Element {
  if (isPortal)
    return (
      <Empty title="Nothing was sent to you yet.">
        <p>As soon as something happens that one of your endpoints receives, it is listed here.</p>
      </Empty>
    )
  return (
    <Empty title="Nothing was sent yet.">
      <p>Send an event in the transaction in which it happens; every endpoint that wants it gets one:</p>
      <Sample>{`import { createWebhooks } from 'leasehold/webhooks'

const webhooks = createWebhooks()
await webhooks.send(tx, { type: 'order.paid', payload: { order: 'o-1' } })`}</Sample>
      <p>or in SQL, from any language:</p>
      <Sample>{`select leasehold.send_webhook('order.paid', '{"order": "o-1"}');`}</Sample>
    </Empty>
  )
}
