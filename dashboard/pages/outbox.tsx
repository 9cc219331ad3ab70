/** Events of the outbox: found by state, type, key, time, id or error, and changed one by one or all that match. */
import type { JSX } from 'preact'
import { answer, api, type ItemOf } from '../api.ts'
import { BulkBar } from '../bulk-change.tsx'
import { hrefOf, Link } from '../router.tsx'
import { SearchedList, useSearch } from '../search.tsx'
import { may } from '../session.ts'
import { Empty, Sample } from '../ui/feedback.tsx'
import { type Filter, FilterBar, useFilterValues } from '../ui/filters.tsx'
import { type Column, useSelection } from '../ui/table.tsx'
import { None, State, Time } from '../ui/values.tsx'

type Event = ItemOf<'getOutboxEvents'>

const ONLY_FAILED =
  'Of pending events, only those at which an attempt has failed are meant; others have to be selected.'

const STATUSES = ['PENDING', 'CLAIMED', 'PUBLISHED', 'DEAD'] as const

const FILTERS: readonly Filter[] = [
  { kind: 'choice', name: 'status', label: 'State', options: STATUSES, several: true },
  { kind: 'text', name: 'type', label: 'Type', placeholder: 'order.paid' },
  { kind: 'text', name: 'orderingKey', label: 'Ordering key' },
  { kind: 'text', name: 'error', label: 'Error contains', placeholder: 'timeout' },
  { kind: 'text', name: 'id', label: 'Id', placeholder: '4711, or an event id' },
  { kind: 'time', name: 'from', label: 'Written from' },
  { kind: 'time', name: 'to', label: 'to' },
]

const COLUMNS: readonly Column<Event>[] = [
  {
    title: 'Id',
    align: 'right',
    cell: ({ id }) => (
      <Link class="number" href={hrefOf(`/outbox/events/${id}`)}>
        {id}
      </Link>
    ),
  },
  { title: 'State', cell: ({ status, parked }) => <State of={parked ? 'parked' : status} /> },
  { title: 'Type', cell: ({ type }) => type },
  { title: 'Key', cell: ({ orderingKey }) => orderingKey ?? <None /> },
  { title: 'Failed', align: 'right', cell: ({ attempts }) => attempts },
  { title: 'Written', cell: ({ createdAt }) => <Time at={createdAt} /> },
  { title: 'What happens', grows: true, cell: (event) => <Happens event={event} /> },
]

/** What is happening to the event, or has. */
function Happens({ event }: { readonly event: Event }): JSX.Element {
  const { status, lastError, publishedAt, claimedBy, availableAt, createdAt } = event
  if (status === 'PUBLISHED')
    return (
      <>
        published <Time at={publishedAt} />
      </>
    )
  if (status === 'CLAIMED') return <>at {claimedBy}</>
  if (status === 'DEAD') return <>{lastError ?? <None />}</>
  if (Date.parse(availableAt) <= Date.parse(createdAt) && lastError === null) return <>waits for a relay</>
  return (
    <>
      due <Time at={availableAt} />
      {lastError === null ? '' : `: ${lastError}`}
    </>
  )
}

export function OutboxPage(): JSX.Element {
  const filters = useFilterValues(FILTERS)
  const selection = useSelection()
  const conditions = {
    type: filters.one('type'),
    orderingKey: filters.one('orderingKey'),
    error: filters.one('error'),
    from: filters.one('from'),
    to: filters.one('to'),
    // The API checks the words of the address.
    status: filters.all('status') as Event['status'][] | undefined,
  }
  const id = filters.all('id')
  const search = useSearch(filters, async (cursor, signal) =>
    answer(
      api.GET('/outbox/events', { params: { query: { ...conditions, id, cursor, limit: 50 } }, signal }),
    ),
  )
  return (
    <>
      <header class="page-header">
        <h1>Outbox</h1>
        <Link href={hrefOf('/outbox/keys')}>Keys that are held up</Link>
      </header>
      <FilterBar filters={FILTERS} />
      <SearchedList
        search={search}
        caption="Events, the newest first"
        columns={COLUMNS}
        idOf={(event) => event.id}
        hrefOf={(event) => hrefOf(`/outbox/events/${event.id}`)}
        selection={may('operate') ? selection : undefined}
        toneOf={({ status }) => (status === 'DEAD' ? 'bad' : undefined)}
        empty={filters.isEmpty ? <NoEvents /> : <Empty title="No event matches these filters." />}
      />
      <BulkBar
        isShown={search.items.length > 0}
        list="/outbox/events"
        rows="events"
        actions={[
          {
            action: 'replay',
            label: 'Replay',
            only: 'Only events that are dead or published are replayed.',
          },
          { action: 'retry', label: 'Retry now', only: ONLY_FAILED },
          { action: 'give-up', label: 'Give up', tone: 'bad', only: ONLY_FAILED },
        ]}
        selection={selection}
        filter={conditions}
        isFiltered={!filters.isEmpty}
        ids={id}
      />
    </>
  )
}

function NoEvents(): JSX.Element {
  return (
    <Empty title="No event was written yet.">
      <p>Write one in the transaction of the change that it describes:</p>
      <Sample>{`import { createOutbox } from 'leasehold/outbox'

const outbox = createOutbox()
await outbox.enqueue(tx, { type: 'order.paid', payload: { order: 'o-1' }, orderingKey: 'o-1' })`}</Sample>
      <p>or in SQL, from any language:</p>
      <Sample>{`select leasehold.enqueue('order.paid', '{"order": "o-1"}');`}</Sample>
    </Empty>
  )
}
