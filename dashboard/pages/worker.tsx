/** One worker process: what it runs, what it has done, and what it holds. */
import type { JSX } from 'preact'
import { answer, type Answer, api } from '../api.ts'
import { formatCount, formatDuration } from '../format.ts'
import { useQuery } from '../query.ts'
import { hrefOf, Link } from '../router.tsx'
import { Empty, Problem, Reading } from '../ui/feedback.tsx'
import { type Column, Table } from '../ui/table.tsx'
import { Copyable, ExactTime, Facts, None, State, Time } from '../ui/values.tsx'
import { LeaseList, useLeases } from './leases.tsx'
import { Pauses, slotsOf, stateOf } from './workers.tsx'

type Worker = Answer<'getWorkersById'>
type Counted = Worker['counters']['tables'][string] & { readonly table: string }

const COUNTED: readonly (readonly [
  title: string,
  name: 'claims' | 'claimed' | 'done' | 'retried' | 'dead',
])[] = [
  ['Claims', 'claims'],
  ['Claimed', 'claimed'],
  ['Done', 'done'],
  ['Retried', 'retried'],
  ['Dead', 'dead'],
]

const COUNTERS: readonly Column<Counted>[] = [
  { title: 'Table', cell: ({ table }) => <code>{table}</code> },
  ...COUNTED.map(([title, name]) => ({
    title,
    align: 'right' as const,
    cell: (counted: Counted) => formatCount(counted[name]),
  })),
  { title: 'Fenced off', align: 'right', cell: ({ fencedOff }) => formatCount(fencedOff) },
  { title: 'Recovered', align: 'right', cell: ({ recovered }) => formatCount(recovered) },
  { title: 'Renewed', align: 'right', cell: ({ renewed }) => formatCount(renewed) },
  {
    title: 'Last error',
    grows: true,
    cell: ({ lastError }) =>
      lastError === undefined ? (
        <None />
      ) : (
        <>
          <Time at={lastError.at} />: {lastError.error}
        </>
      ),
  },
]

export function WorkerPage({ id }: { readonly id: string }): JSX.Element {
  const { data, problem } = useQuery(`worker ${id}`, async (signal) =>
    answer(api.GET('/workers/{id}', { params: { path: { id } }, signal })),
  )
  const leases = useLeases({ owner: id })
  return (
    <>
      <header class="page-header">
        <h1>
          <Link href={hrefOf('/workers')}>Workers</Link> / {id}
        </h1>
        {data === undefined ? null : <State of={stateOf(data)} />}
      </header>
      <Problem of={problem} />
      {data !== undefined ? <Shown worker={data} /> : problem === undefined ? <Reading /> : null}
      <h2 class="section">What it holds</h2>
      <LeaseList leases={leases} empty={<Empty title="It holds nothing at the moment." />} />
    </>
  )
}

function Shown({ worker }: { readonly worker: Worker }): JSX.Element {
  const { host, pid, version, startedAt, lastSeenAt, stoppedAt, diedAt, reaps, serves, paused } = worker
  const counters = Object.entries(worker.counters.tables).map(([table, counted]) => ({ table, ...counted }))
  return (
    <>
      <section class="panel">
        <Facts
          of={[
            ['Process', <Copyable text={worker.id} label="the id of the process" />],
            ['Host', `${host}, pid ${pid}`],
            ['Version', version],
            [
              'Runs',
              <ul class="plain">
                {Object.entries(serves).map(([name, { table }]) => (
                  <li key={name}>
                    <Link href={hrefOf('/workers', { worker: name })}>{name}</Link> on <code>{table}</code>,{' '}
                    {formatCount(Number(worker.settings[name]?.['concurrency'] ?? 0))} at once
                  </li>
                ))}
              </ul>,
            ],
            ['Reaps', reaps.length === 0 ? 'nothing' : reaps.join(', ')],
            ['In flight', `${formatCount(worker.inFlight)} of ${formatCount(slotsOf(worker))} slots`],
            ['Started', <ExactTime at={startedAt} />],
            ['Last seen', <Time at={lastSeenAt} />],
            ['Counted for', formatDuration(worker.counters.uptimeMs)],
            stoppedAt !== null && ['Stopped', <ExactTime at={stoppedAt} />],
            diedAt !== null && ['Died', <ExactTime at={diedAt} />],
            ['Paused', <Pauses of={paused} />],
            [
              'If it dies',
              worker.sessionVisible
                ? 'its session ends, and its leases are taken back within seconds'
                : 'its leases are taken back when they expire: its session is not visible',
            ],
          ]}
        />
      </section>
      {counters.length === 0 ? null : (
        <>
          <h2 class="section">What it has done since it started</h2>
          <Table caption="Counters by table" columns={COUNTERS} rows={counters} idOf={({ table }) => table} />
        </>
      )}
    </>
  )
}
