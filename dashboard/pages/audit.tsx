/** Who changed what, when and why. */
import type { JSX } from 'preact'
import { answer, api, type ItemOf } from '../api.ts'
import { isPortal } from '../config.ts'
import { hrefOf, Link } from '../router.tsx'
import { SearchedList, useSearch } from '../search.tsx'
import { Empty, Sample } from '../ui/feedback.tsx'
import { type Filter, FilterBar, useFilterValues } from '../ui/filters.tsx'
import type { Column } from '../ui/table.tsx'
import { Json, None, Time } from '../ui/values.tsx'

type Entry = ItemOf<'getAudit'>

const FILTERS: readonly Filter[] = [
  { kind: 'text', name: 'principal', label: 'Who', placeholder: 'ada' },
  {
    kind: 'text',
    name: 'action',
    label: 'Action',
    placeholder: isPortal ? 'webhooks.replay' : 'outbox.replay, webhooks.*',
  },
  { kind: 'text', name: 'target', label: 'Target', placeholder: '4711' },
  { kind: 'time', name: 'from', label: 'From' },
  { kind: 'time', name: 'to', label: 'to' },
]

const COLUMNS: readonly Column<Entry>[] = [
  { title: 'When', cell: ({ at }) => <Time at={at} /> },
  { title: 'Who', cell: ({ principal }) => <Link href={hrefOf('/audit', { principal })}>{principal}</Link> },
  { title: 'Action', cell: ({ action }) => <Link href={hrefOf('/audit', { action })}>{action}</Link> },
  {
    title: 'Target',
    cell: ({ target }) =>
      target === null ? (
        <None />
      ) : (
        <Link class="target" href={hrefOf('/audit', { target })}>
          {target}
        </Link>
      ),
  },
  { title: 'Details', grows: true, cell: (entry) => <Details of={entry} /> },
]

const SHORT_LENGTH = 120

/** The reason, or else what was recorded, in one line. */
function Details({ of: { id, details } }: { readonly of: Entry }): JSX.Element {
  if (Object.keys(details).length === 0) return <None />
  const { reason } = details
  const short = typeof reason === 'string' && reason !== '' ? reason : JSON.stringify(details)
  return (
    <details class="audit-details">
      <summary>{short.length > SHORT_LENGTH ? `${short.slice(0, SHORT_LENGTH)}…` : short}</summary>
      <Json value={details} label={`Details of entry ${id}`} />
    </details>
  )
}

export function AuditPage(): JSX.Element {
  const filters = useFilterValues(FILTERS)
  const query = {
    principal: filters.one('principal'),
    action: filters.one('action'),
    target: filters.one('target'),
    from: filters.one('from'),
    to: filters.one('to'),
  }
  const search = useSearch(filters, async (cursor, signal) =>
    answer(api.GET('/audit', { params: { query: { ...query, cursor, limit: 50 } }, signal })),
  )
  return (
    <>
      <header class="page-header">
        <h1>Audit</h1>
      </header>
      <FilterBar filters={FILTERS} />
      <SearchedList
        search={search}
        caption="Entries of the audit, the newest first"
        columns={COLUMNS}
        idOf={({ id }) => id}
        empty={filters.isEmpty ? <NoEntries /> : <Empty title="No entry matches these filters." />}
      />
    </>
  )
}

function NoEntries(): JSX.Element {
  if (isPortal)
    return (
      <Empty title="Nobody has changed anything yet.">
        <p>Whatever is changed on these pages is recorded here, with the reason.</p>
      </Empty>
    )
  return (
    <Empty title="Nobody has changed anything yet.">
      <p>
        Whatever a person changes is recorded here with the reason: on these pages, by the HTTP API, and on
        the command line. For example:
      </p>
      <Sample>{`leasehold outbox replay 4711 --reason "the broker is back"`}</Sample>
    </Empty>
  )
}
