/** Reconcilers, and the lease tables of the user: what waits in them, who processes them, and why a row does not run. */
import type { JSX } from 'preact'
import { useId, useState } from 'preact/hooks'
import { answer, api, type ItemOf } from '../api.ts'
import { RowReasons } from '../explain.tsx'
import { formatCount, formatDuration } from '../format.ts'
import { useQuery } from '../query.ts'
import { hrefOf, Link, setQuery, useAddress } from '../router.tsx'
import { may } from '../session.ts'
import { Empty, Problem, Reading, Sample } from '../ui/feedback.tsx'
import { type Column, Table } from '../ui/table.tsx'
import { Facts, Figure, None, State, Time } from '../ui/values.tsx'
import { PauseButton, SettingsLink } from './worker-settings.tsx'
import { Pauses, stateOf, type WorkerProcess } from './workers.tsx'

type Reconciler = ItemOf<'getReconcilers'>
type LeaseTable = ItemOf<'getTables'>

export function ReconcilePage(): JSX.Element {
  const { data, problem, refresh } = useQuery('reconcile', async (signal) => {
    const [reconcilers, tables, workers] = await Promise.all([
      answer(api.GET('/reconcilers', { signal })),
      answer(api.GET('/tables', { signal })),
      answer(api.GET('/workers', { signal })),
    ])
    return { reconcilers: reconcilers.items, tables: tables.items, workers: workers.items }
  })
  return (
    <>
      <header class="page-header">
        <h1>Reconcile</h1>
      </header>
      <Problem of={problem} />
      {data === undefined ? (
        problem === undefined ? (
          <Reading />
        ) : null
      ) : (
        <>
          {data.reconcilers.length === 0 ? (
            <NoReconcilers />
          ) : (
            data.reconcilers.map((reconciler) => (
              <ReconcilerPanel
                key={reconciler.name}
                reconciler={reconciler}
                workers={data.workers}
                onDone={refresh}
              />
            ))
          )}
          <h2 class="section">Lease tables</h2>
          {data.tables.length === 0 ? (
            <NoTables />
          ) : (
            <>
              <Table
                caption="Lease tables"
                columns={TABLE_COLUMNS}
                rows={data.tables}
                idOf={({ table }) => table}
                toneOf={({ problem: why }) => (why === null ? undefined : 'bad')}
              />
              <ExplainForm tables={data.tables.map(({ table }) => table)} />
            </>
          )}
        </>
      )}
    </>
  )
}

type ReconcilerProcess = Reconciler['processes'][number]

const PROCESS_COLUMNS: readonly Column<ReconcilerProcess>[] = [
  { title: 'State', cell: (process) => <State of={stateOf(process)} /> },
  {
    title: 'Process',
    cell: ({ worker }) => <Link href={hrefOf(`/workers/${encodeURIComponent(worker)}`)}>{worker}</Link>,
  },
  { title: 'Last seen', cell: ({ lastSeenAt }) => <Time at={lastSeenAt} /> },
  {
    title: 'Started with',
    grows: true,
    cell: ({ declared }) => {
      const text = Object.entries(declared)
        .map(([name, value]) => `${name}=${String(value)}`)
        .join(' ')
      return text === '' ? <None /> : <code title={text}>{text}</code>
    },
  },
  { title: 'Paused', cell: ({ paused }) => <Pauses of={paused} /> },
]

function ReconcilerPanel({
  reconciler: { name, tables, processes, counters, stored },
  workers,
  onDone,
}: {
  readonly reconciler: Reconciler
  readonly workers: readonly WorkerProcess[]
  readonly onDone: () => void
}): JSX.Element {
  const heading = useId()
  const own = workers.filter(({ serves }) => Object.hasOwn(serves, name))
  const { cycles, claimed, scanned, skipped, errors, lastError } = counters
  const transitions = Object.entries(counters.transitions).toSorted(([, a], [, b]) => b - a)
  return (
    <section class="panel reconciler" aria-labelledby={heading}>
      <header class="chunk-header">
        <h2 id={heading}>{name}</h2>
        {stored?.value['paused'] === true ? <State of="paused" /> : null}
        <span class="hint">{tables.join(', ')}</span>
        <span class="space" />
        <SettingsLink name={name} />
        {may('operate') ? (
          <PauseButton
            name={name}
            processes={own}
            stored={stored === null ? undefined : { name, ...stored }}
            onDone={onDone}
          />
        ) : null}
      </header>
      <dl class="figures">
        <Figure name="Cycles" note="claims that found rows">
          {formatCount(cycles)}
        </Figure>
        <Figure name="Observed" note={`${formatCount(claimed)} claimed`}>
          {formatCount(scanned)}
        </Figure>
        <Figure name="Transitions">
          {formatCount(transitions.reduce((sum, [, count]) => sum + count, 0))}
        </Figure>
        <Figure name="Discarded" note="the row had changed meanwhile">
          {formatCount(skipped)}
        </Figure>
        <Figure name="Errors" tone={errors > 0 ? 'bad' : undefined}>
          {formatCount(errors)}
        </Figure>
      </dl>
      <Facts
        of={[
          ...transitions.map(
            ([transition, count]) =>
              [transition.replace('->', ' → '), <span class="number">{formatCount(count)}</span>] as const,
          ),
          stored !== null &&
            Object.keys(stored.value).length > 0 && [
              'Stored settings',
              <>
                <code>{JSON.stringify(stored.value)}</code> by {stored.changedBy}{' '}
                <Time at={stored.changedAt} />
              </>,
            ],
          lastError !== null && [
            'Last error',
            <span class="error-text">
              <Time at={lastError.at} />: {lastError.error}
            </span>,
          ],
        ]}
      />
      <Table
        caption={`Processes that run ${name}`}
        columns={PROCESS_COLUMNS}
        rows={processes}
        idOf={({ worker }) => worker}
      />
    </section>
  )
}

function workersOf(ids: readonly string[], nobody: string): JSX.Element {
  if (ids.length === 0) return <State of={nobody} tone="warning" />
  const [first = ''] = ids
  return (
    <span title={ids.join('\n')}>
      {ids.length === 1 ? (
        <Link href={hrefOf(`/workers/${encodeURIComponent(first)}`)}>{first}</Link>
      ) : (
        `${formatCount(ids.length)} processes`
      )}
    </span>
  )
}

const TABLE_COLUMNS: readonly Column<LeaseTable>[] = [
  { title: 'Table', cell: ({ table }) => <code>{table}</code> },
  {
    title: 'Waiting',
    align: 'right',
    cell: ({ pending, countedUpTo }) =>
      pending === null ? <None /> : `${formatCount(pending)}${pending >= countedUpTo ? '+' : ''}`,
  },
  {
    title: 'Oldest',
    align: 'right',
    cell: ({ oldestPendingMs }) =>
      oldestPendingMs === null || oldestPendingMs === 0 ? <None /> : formatDuration(oldestPendingMs),
  },
  {
    title: 'In flight',
    align: 'right',
    cell: ({ table, inFlight }) =>
      inFlight === null ? <None /> : <Link href={hrefOf('/leases', { table })}>{formatCount(inFlight)}</Link>,
  },
  { title: 'Processed by', cell: ({ servedBy }) => workersOf(servedBy, 'nobody') },
  { title: 'Reaped by', cell: ({ reapedBy }) => workersOf(reapedBy, 'nobody') },
  {
    title: 'Problem',
    grows: true,
    cell: ({ problem }) => (problem === null ? <None /> : <span class="error-text">{problem}</span>),
  },
]

/** The address has the table and the row, so that an explanation can be sent to a colleague. */
function ExplainForm({ tables }: { readonly tables: readonly string[] }): JSX.Element {
  const { query } = useAddress()
  const asked = { table: query.get('table') ?? tables[0] ?? '', row: query.get('row') ?? '' }
  const [table, setTable] = useState(asked.table)
  const [row, setRow] = useState(asked.row)
  const [tableId, rowId, heading] = [useId(), useId(), useId()]
  const submit = (event: Event): void => {
    event.preventDefault()
    setQuery({ table, row: row.trim() })
  }
  return (
    <section class="panel explain-row" aria-labelledby={heading}>
      <h2 id={heading}>Why is a row not running?</h2>
      <form class="filters" onSubmit={submit}>
        <p class="field">
          <label htmlFor={tableId}>Table</label>
          <select id={tableId} value={table} onChange={(event) => setTable(event.currentTarget.value)}>
            {tables.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </p>
        <p class="field">
          <label htmlFor={rowId}>Id of the row</label>
          <input
            id={rowId}
            value={row}
            required
            autoComplete="off"
            spellcheck={false}
            onInput={(event) => setRow(event.currentTarget.value)}
          />
        </p>
        <button type="submit">Explain</button>
      </form>
      {asked.row === '' ? (
        <p class="hint">Where several columns identify a row, give a JSON array of their values as texts.</p>
      ) : (
        <RowReasons table={asked.table} id={asked.row} />
      )}
    </section>
  )
}

function NoReconcilers(): JSX.Element {
  return (
    <Empty title="No reconciler was started yet.">
      <p>
        A reconciler observes the open rows of a table that you have already, until each has a final status:
      </p>
      <Sample>{`import { leaseTable, startRuntime } from 'leasehold'
import { reconciler } from 'leasehold/reconcile'

const table = leaseTable({
  table: 'app.payment_requests',
  id: 'id',
  lease: { owner: 'reconcile_lease_owner', until: 'reconcile_lease_until' },
  claimable: "status in ('pending', 'detected')",
  order: ['created_at', 'id'],
  attempts: { column: false, expiries: 'reconcile_lease_expiries', error: false },
})

const payments = reconciler({
  table,
  transitions: {
    pending: ['detected', 'expired'],
    detected: ['confirmed', 'expired'],
    confirmed: [],
    expired: [],
  },
  observe: async (row, { signal }) => chain.statusOf(row.address, signal),
})
await startRuntime({ databaseUrl, workers: [payments] })`}</Sample>
      <p>
        <code>npx leasehold lease add</code> adds the lease to the table, and prints its declaration.
      </p>
    </Empty>
  )
}

function NoTables(): JSX.Element {
  return (
    <Empty title="This server was given no lease table of yours.">
      <p>
        Those of the workers in <code>leasehold.config.mjs</code> are listed here. In a server of your own,
        give it the declarations:
      </p>
      <Sample>{`import { leaseTable, openDatabase } from 'leasehold'
import { createDashboard } from 'leasehold/server'

const emails = leaseTable({
  table: 'public.emails',
  claimable: 'sent_at is null and failed_at is null',
  availableAt: 'due_at',
  attempts: { max: 5 },
  outcomes: { done: { sent_at: 'now()' }, dead: { failed_at: 'now()' } },
})

const dashboard = createDashboard({ db: openDatabase({ url: process.env.DATABASE_URL }), tables: [emails] })`}</Sample>
    </Empty>
  )
}
