/** Everything that is in flight: who holds which row, under which token, and for how much longer. */
import type { JSX } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { answer, type Answer, api, type ItemOf } from '../api.ts'
import { setDatabaseTime, useNow } from '../clock.ts'
import { ExplainRowDialog } from '../explain.tsx'
import { formatDuration, formatExact } from '../format.ts'
import { type Query, useQuery } from '../query.ts'
import { hrefOf, Link, setQuery } from '../router.tsx'
import { Empty, Problem, Reading } from '../ui/feedback.tsx'
import { type Filter, FilterBar, useFilterValues } from '../ui/filters.tsx'
import { type Column, Table } from '../ui/table.tsx'
import { None, State, Time } from '../ui/values.tsx'

type Leases = Answer<'getLeases'>
type Lease = ItemOf<'getLeases'>

const SHOWN = 50
const MOST_SHOWN = 500
/** Leases are renewed without a word of the server. */
const READ_EVERY_MS = 1_000

export function LeasesPage(): JSX.Element {
  const tables = useTablesSeen()
  const filters: readonly Filter[] = [
    { kind: 'choice', name: 'table', label: 'Table', options: tables.names },
    { kind: 'text', name: 'owner', label: 'Worker process', placeholder: 'its id' },
  ]
  const values = useFilterValues(filters)
  const owner = values.one('owner')
  const table = values.one('table')
  const limit = values.one('limit') === undefined ? SHOWN : MOST_SHOWN
  const leases = useLeases({ table, owner, limit })
  useEffect(() => tables.add(leases.data?.items.map((lease) => lease.table) ?? []), [leases.data])
  useEffect(() => tables.add(table === undefined ? [] : [table]), [table])
  return (
    <>
      <header class="page-header">
        <h1>Leases</h1>
        <span class="hint">Rows in flight, those whose lease ends first at the top.</span>
      </header>
      <FilterBar filters={filters} />
      <LeaseList
        leases={leases}
        limit={limit}
        empty={
          values.isEmpty ? (
            <NothingInFlight />
          ) : (
            <Empty title="Nothing that matches these filters is in flight." />
          )
        }
      />
    </>
  )
}

/** The tables that were seen here so far: a list that is filtered by one of them does not name the others. */
function useTablesSeen(): { readonly names: readonly string[]; add: (names: readonly string[]) => void } {
  const [names, setNames] = useState<readonly string[]>([])
  return {
    names,
    add: (found) =>
      setNames((before) => {
        const all = [...new Set([...before, ...found])].toSorted()
        return all.length === before.length ? before : all
      }),
  }
}

export function useLeases(wanted: {
  readonly table?: string | undefined
  readonly owner?: string | undefined
  readonly limit?: number
}): Query<Leases> {
  const { table, owner, limit = SHOWN } = wanted
  return useQuery(
    `leases ${JSON.stringify([table, owner, limit])}`,
    async (signal) => {
      const read = await answer(api.GET('/leases', { params: { query: { table, owner, limit } }, signal }))
      setDatabaseTime(read.now)
      return read
    },
    { everyMs: READ_EVERY_MS, polls: true },
  )
}

export function LeaseList({
  leases: { data, problem },
  limit = SHOWN,
  empty,
}: {
  readonly leases: Query<Leases>
  readonly limit?: number
  readonly empty: JSX.Element
}): JSX.Element {
  const [explained, setExplained] = useState<Lease>()
  const given = useQuery('tables', async (signal) => answer(api.GET('/tables', { signal })), {
    isLive: false,
  })
  const givenTables = new Set(given.data?.items.map(({ table }) => table))
  const columns: readonly Column<Lease>[] = [
    {
      title: 'Row',
      cell: (lease) => (
        <>
          {givenTables.has(lease.table) ? (
            <button
              type="button"
              class="link"
              title="Why is it not finished?"
              onClick={() => setExplained(lease)}
            >
              {lease.id}
            </button>
          ) : (
            <RowLink lease={lease} />
          )}
          <span class="hint below">{lease.table}</span>
        </>
      ),
    },
    { title: 'Lease', cell: (lease) => <Countdown lease={lease} /> },
    {
      title: 'Worker',
      grows: true,
      cell: ({ owner, ownerState }) => (
        <>
          <Link href={hrefOf(`/workers/${encodeURIComponent(owner)}`)}>{owner}</Link>{' '}
          {ownerState === 'alive' ? null : <State of={ownerState} />}
        </>
      ),
    },
    { title: 'Token', align: 'right', cell: ({ token }) => token ?? <None /> },
    {
      title: 'Renewed',
      align: 'right',
      cell: ({ renewals, renewedAt }) => (
        <span title={renewedAt === null ? 'not yet, or unknown' : `last ${formatExact(renewedAt)}`}>
          {renewals === null ? <None /> : `${renewals}×`}
        </span>
      ),
    },
    { title: 'Claimed', cell: ({ since }) => <Time at={since} /> },
  ]
  return (
    <>
      <Problem of={problem} />
      {data?.unreadable.map(({ table, problem: why }) => (
        <p key={table} class="problem" role="alert">
          <code>{table}</code> cannot be read: {why}
        </p>
      ))}
      {data === undefined ? (
        problem === undefined ? (
          <Reading />
        ) : null
      ) : data.items.length === 0 ? (
        empty
      ) : (
        <Table
          caption="Leases, those that end first at the top"
          columns={columns}
          rows={data.items}
          idOf={({ table, id }) => `${table} ${id}`}
          toneOf={({ leftMs, isLate }) => (leftMs <= 0 ? 'bad' : isLate === true ? 'warning' : undefined)}
        />
      )}
      {data?.more === true ? (
        <p class="hint">
          {data.items.length} of more are shown.{' '}
          {limit < MOST_SHOWN ? (
            <button type="button" class="small" onClick={() => setQuery({ limit: String(MOST_SHOWN) })}>
              Show up to {MOST_SHOWN}
            </button>
          ) : null}
        </p>
      ) : null}
      {explained === undefined ? null : (
        <ExplainRowDialog table={explained.table} id={explained.id} onClose={() => setExplained(undefined)} />
      )}
    </>
  )
}

/** Rows of the applications have pages of their own. */
function RowLink({ lease: { table, id } }: { readonly lease: Lease }): JSX.Element {
  const name = table.slice(table.lastIndexOf('.') + 1)
  if (name === 'outbox') return <Link href={hrefOf(`/outbox/events/${id}`)}>event {id}</Link>
  if (name === 'webhook_outbox') return <Link href={hrefOf(`/webhooks/deliveries/${id}`)}>delivery {id}</Link>
  if (name === 'sync_jobs') return <Link href={hrefOf(`/sync/jobs/${id}`)}>job {id}</Link>
  if (name === 'sync_checkpoints') {
    const [matrixId = '', hash = ''] = partsOf(id)
    return (
      <Link href={hrefOf('/sync', { matrixId })} title={`Chunk ${hash}`}>
        chunk of {matrixId}
      </Link>
    )
  }
  return <>{id}</>
}

/** Where several columns identify a row, its id is a JSON array of texts. */
function partsOf(id: string): readonly string[] {
  try {
    const parts: unknown = JSON.parse(id)
    return Array.isArray(parts) ? parts.map(String) : [id]
  } catch {
    return [id]
  }
}

/** Counts down by the clock of the database, several times a second. */
function Countdown({ lease: { until, leaseMs, isLate } }: { readonly lease: Lease }): JSX.Element {
  const leftMs = Date.parse(until) - useNow(250)
  const isExpired = leftMs <= 0
  const share = leaseMs === null ? 0 : Math.min(1, Math.max(0, leftMs / leaseMs))
  const tone = isExpired ? 'bad' : isLate === true ? 'warning' : 'good'
  return (
    <div class={`countdown ${tone}`}>
      <span class="number left" role="timer" title={`until ${formatExact(until)}`}>
        {isExpired ? `expired ${formatDuration(-leftMs)} ago` : formatLeft(leftMs)}
      </span>
      {isLate === true && !isExpired ? <State of="renewal late" tone="warning" /> : null}
      {leaseMs === null ? null : (
        <span class="bar" title={`of ${formatDuration(leaseMs)}`}>
          <span style={{ width: `${share * 100}%` }} />
        </span>
      )}
    </div>
  )
}

/** With tenths, so that one sees it move. */
function formatLeft(ms: number): string {
  return ms < 60_000 ? `${(ms / 1_000).toFixed(1)} s` : formatDuration(ms)
}

function NothingInFlight(): JSX.Element {
  return (
    <Empty title="Nothing is in flight.">
      <p>
        A worker that claims a row holds it under a lease until it has settled it, and renews the lease
        meanwhile. Each row that is held is listed here, with the time that is left.
      </p>
      <p>
        <Link href={hrefOf('/workers')}>Which workers run?</Link>
      </p>
    </Empty>
  )
}
