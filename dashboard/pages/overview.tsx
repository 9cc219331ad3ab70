/** The state of everything at a glance. It follows the live updates of the server. */
import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { formatCount, formatDuration, formatRate, formatShort } from '../format.ts'
import { type History, history, readHistory, type TableHistory } from '../history.ts'
import { type Overview, overview } from '../live.ts'
import { useQuery } from '../query.ts'
import { hrefOf, Link } from '../router.tsx'
import { useStore } from '../store.ts'
import { Chart, type Line } from '../ui/charts.tsx'
import { Problem, Reading } from '../ui/feedback.tsx'
import { type Column, Table } from '../ui/table.tsx'
import { Bytes, Count, Duration, Facts, Figure, None, Time } from '../ui/values.tsx'

export function OverviewPage(): JSX.Element {
  const data = useStore(overview)
  const { problem } = useQuery('history', readHistory, { isLive: false })
  return (
    <>
      <header class="page-header">
        <h1>Overview</h1>
      </header>
      {data === undefined ? <Reading /> : <Figures of={data} />}
      <Problem of={problem} />
      <Charts />
      {data === undefined ? null : (
        <>
          <Applications of={data} />
          <Database of={data.database} />
        </>
      )}
    </>
  )
}

/** What an operator looks at first. Each leads to the rows that it counts. */
function Figures({ of: { outbox, webhooks, workers, totals } }: { readonly of: Overview }): JSX.Element {
  const waitsLong = (outbox.oldestPendingMs ?? 0) > 60_000
  const { missing, paused, stopping } = workers
  const notes = [
    missing > 0 ? `${missing} missing` : '',
    paused > 0 ? `${paused} paused` : '',
    stopping > 0 ? `${stopping} stopping` : '',
  ].filter((note) => note !== '')
  return (
    <dl class="figures">
      <Figure
        name="Events pending"
        href={hrefOf('/outbox', { status: 'PENDING' })}
        tone={waitsLong || outbox.writtenAhead.count > 0 ? 'warning' : undefined}
        note={
          outbox.writtenAhead.count > 0
            ? `${formatCount(outbox.writtenAhead.count)} wait because the clock was ahead`
            : outbox.oldestPendingMs === null
              ? 'none is due'
              : `oldest due for ${formatDuration(outbox.oldestPendingMs)}`
        }
      >
        <Count of={outbox.pending} />
      </Figure>
      <Figure
        name="Dead events"
        href={hrefOf('/outbox', { status: 'DEAD' })}
        tone={outbox.dead.count > 0 ? 'bad' : undefined}
      >
        <Count of={outbox.dead} />
      </Figure>
      <Figure
        name="Failed deliveries"
        href={hrefOf('/webhooks/deliveries', { status: 'failed' })}
        tone={webhooks.failed.count > 0 ? 'bad' : undefined}
      >
        <Count of={webhooks.failed} />
      </Figure>
      <Figure
        name="Workers alive"
        href={hrefOf('/workers')}
        tone={workers.alive === 0 ? 'bad' : missing > 0 ? 'warning' : undefined}
        note={notes.length === 0 ? undefined : notes.join(', ')}
      >
        {formatCount(workers.alive)}
      </Figure>
      <Figure name="Leases in flight" href={hrefOf('/leases')}>
        {formatCount(workers.inFlight)}
      </Figure>
      <Figure name="Recovered" note="leases taken back from dead workers">
        {formatShort(totals.recovered)}
      </Figure>
      <Figure name="Fenced off" note="late writes that changed nothing">
        {formatShort(totals.fencedOff)}
      </Figure>
    </dl>
  )
}

const COLORS = ['--line-1', '--line-2', '--line-4', '--line-3']

/** A chart with more lines cannot be read. */
const MAX_LINES = 4

type ColumnOfHistory = Exclude<keyof TableHistory, 'table' | 'workers'>

/** A line for each of the tables in which most happened, and none for those in which nothing did. */
function linesOf(tables: readonly TableHistory[], column: ColumnOfHistory): readonly Line[] {
  const sum = (table: TableHistory): number =>
    table[column].reduce<number>((total, value) => total + (value ?? 0), 0)
  const busiest = tables.toSorted((a, b) => sum(b) - sum(a)).slice(0, MAX_LINES)
  return busiest
    .filter((table, index) => index === 0 || sum(table) > 0)
    .toSorted((a, b) => a.table.localeCompare(b.table))
    .map((table, index) => ({
      label: shortName(table.table),
      color: COLORS[index] ?? '--line-1',
      values: table[column],
    }))
}

/** All tables together. */
function totalOf({ times, tables }: History, column: 'fencedOff' | 'recovered'): (number | null)[] {
  return times.map((_, index) => {
    const values = tables.flatMap((table) => table[column][index] ?? [])
    return values.length === 0 ? null : values.reduce((total, value) => total + value, 0)
  })
}

/** Without the schema: those of Leasehold are all in one. */
function shortName(table: string): string {
  return table.slice(table.indexOf('.') + 1)
}

function Charts(): JSX.Element {
  const known = useStore(history)
  const { times, tables } = known
  const measured = tables.filter(({ latencyP50Ms }) => latencyP50Ms.some((value) => value !== null))
  const [chosen, setChosen] = useState<string>()
  const latencyOf = measured.find(({ table }) => table === chosen) ?? measured[0]
  return (
    <div class="charts">
      <Chart title="Rows done" times={times} lines={linesOf(tables, 'donePerSecond')} format={formatRate} />
      <Chart
        title="Latency"
        times={times}
        lines={[
          { label: 'p50', color: '--line-1', values: latencyOf?.latencyP50Ms ?? [] },
          { label: 'p99', color: '--line-2', values: latencyOf?.latencyP99Ms ?? [] },
        ]}
        format={formatDuration}
      >
        {measured.length < 2 ? null : (
          <select
            aria-label="Table whose latency is shown"
            value={latencyOf?.table}
            onChange={(event) => setChosen(event.currentTarget.value)}
          >
            {measured.map(({ table }) => (
              <option key={table} value={table}>
                {shortName(table)}
              </option>
            ))}
          </select>
        )}
      </Chart>
      <Chart title="Waiting" times={times} lines={linesOf(tables, 'pending')} format={formatShort} />
      <Chart
        title="Recovered and fenced off"
        times={times}
        lines={[
          { label: 'recovered', color: '--line-4', values: totalOf(known, 'recovered') },
          { label: 'fenced off', color: '--line-3', values: totalOf(known, 'fencedOff') },
        ]}
        format={formatShort}
      />
    </div>
  )
}

interface Application {
  readonly name: string
  readonly path: string
  readonly waiting: Overview['outbox']['pending']
  readonly inFlight: Overview['outbox']['pending']
  readonly done: Overview['outbox']['pending']
  readonly failed: Overview['outbox']['pending']
  readonly oldestMs: number | null | undefined
}

const APPLICATION_COLUMNS: readonly Column<Application>[] = [
  { title: 'Backlog', grows: true, cell: ({ name, path }) => <Link href={hrefOf(path)}>{name}</Link> },
  { title: 'Waiting', align: 'right', cell: ({ waiting }) => <Count of={waiting} /> },
  { title: 'In flight', align: 'right', cell: ({ inFlight }) => <Count of={inFlight} /> },
  { title: 'Done', align: 'right', cell: ({ done }) => <Count of={done} /> },
  { title: 'Dead or failed', align: 'right', cell: ({ failed }) => <Count of={failed} /> },
  {
    title: 'Oldest waiting',
    align: 'right',
    cell: ({ oldestMs }) => (oldestMs === undefined ? <None /> : <Duration ms={oldestMs} />),
  },
]

function Applications({ of: { outbox, webhooks, sync } }: { readonly of: Overview }): JSX.Element {
  const rows: readonly Application[] = [
    {
      name: 'Events of the outbox',
      path: '/outbox',
      waiting: outbox.pending,
      inFlight: outbox.claimed,
      done: outbox.published,
      failed: outbox.dead,
      oldestMs: outbox.oldestPendingMs,
    },
    {
      name: 'Webhook deliveries',
      path: '/webhooks/deliveries',
      waiting: webhooks.pending,
      inFlight: webhooks.inFlight,
      done: webhooks.delivered,
      failed: webhooks.failed,
      oldestMs: webhooks.oldestPendingMs,
    },
    {
      name: 'Sync jobs',
      path: '/sync',
      waiting: sync.open,
      inFlight: sync.chunksLeased,
      done: sync.completed,
      failed: sync.failed,
      oldestMs: undefined,
    },
  ]
  return (
    <section class="panel" aria-labelledby="backlog">
      <h2 id="backlog">Backlog by state</h2>
      <Table caption="Backlog by state" columns={APPLICATION_COLUMNS} rows={rows} idOf={({ name }) => name} />
      <p class="hint">Counts above 100,000 are estimates (~). In flight of sync are chunks.</p>
    </section>
  )
}

type DatabaseState = Overview['database']

const TABLES: readonly Column<DatabaseState['tables'][number]>[] = [
  { title: 'Table', grows: true, cell: ({ name }) => <code>{name}</code> },
  { title: 'Rows', align: 'right', cell: ({ liveRows }) => formatCount(Number(liveRows)) },
  { title: 'Dead tuples', align: 'right', cell: ({ deadRows }) => formatCount(Number(deadRows)) },
  { title: 'Table size', align: 'right', cell: ({ tableBytes }) => <Bytes of={tableBytes} /> },
  { title: 'Index size', align: 'right', cell: ({ indexBytes }) => <Bytes of={indexBytes} /> },
  { title: 'Vacuumed', cell: ({ lastVacuumAt }) => <Time at={lastVacuumAt} /> },
]

function Database({
  of: { version, connections, maxConnections, oldestSnapshot, tables },
}: {
  readonly of: DatabaseState
}): JSX.Element {
  return (
    <section class="panel" aria-labelledby="database">
      <h2 id="database">Database</h2>
      <Facts
        of={[
          ['PostgreSQL', version],
          ['Connections', `${formatCount(connections)} of ${formatCount(maxConnections)}`],
          [
            'Oldest snapshot',
            oldestSnapshot === null
              ? 'none older than a second'
              : `held for ${formatDuration(oldestSnapshot.heldForMs)} by pid ${oldestSnapshot.pid} (${oldestSnapshot.application}, ${oldestSnapshot.state ?? 'unknown state'})`,
          ],
        ]}
      />
      <Table caption="Tables of Leasehold" columns={TABLES} rows={tables} idOf={({ name }) => name} />
    </section>
  )
}
