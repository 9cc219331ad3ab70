/** The worker processes, what each has done, and the settings that all of them follow. */
import type { JSX } from 'preact'
import { answer, api, type ItemOf } from '../api.ts'
import { formatCount, formatShort } from '../format.ts'
import { useQuery } from '../query.ts'
import { hrefOf, Link } from '../router.tsx'
import { Empty, Problem, Reading, Sample } from '../ui/feedback.tsx'
import { type Filter, FilterBar, useFilterValues } from '../ui/filters.tsx'
import { type Column, Table } from '../ui/table.tsx'
import { None, State, Time } from '../ui/values.tsx'
import { WorkerSettings } from './worker-settings.tsx'

export type WorkerProcess = ItemOf<'getWorkers'>

const STATES = ['alive', 'stopping', 'missing', 'dead', 'stopped'] as const

/** Those that ended are forgotten after a day, which may be many where processes crash and start again. */
const MOST_SHOWN = 200

/** Alive, and finishing what it has in flight: it claims nothing more. */
export function stateOf({ state, paused }: Pick<WorkerProcess, 'state' | 'paused'>): (typeof STATES)[number] {
  return state === 'alive' && paused.some(({ reason }) => reason === 'stopping') ? 'stopping' : state
}

const COUNTED = ['done', 'retried', 'dead', 'fencedOff', 'recovered'] as const

/** What it has done since it started, in all tables. */
function sumOf({ counters }: WorkerProcess, name: (typeof COUNTED)[number]): number {
  return Object.values(counters.tables).reduce((sum, table) => sum + table[name], 0)
}

/** How many rows it can process at once. */
export function slotsOf({ serves, settings }: WorkerProcess): number {
  return Object.keys(serves).reduce((sum, name) => sum + Number(settings[name]?.['concurrency'] ?? 0), 0)
}

export function Pauses({ of }: { readonly of: WorkerProcess['paused'] }): JSX.Element {
  if (of.length === 0) return <None />
  return (
    <ul class="plain">
      {of.map(({ worker, reason, since, error }) => (
        <li key={`${worker} ${reason}`}>
          {worker} paused ({reason}) <Time at={since} />
          {error === undefined ? '' : `: ${error}`}
        </li>
      ))}
    </ul>
  )
}

function counted(title: string, name: (typeof COUNTED)[number]): Column<WorkerProcess> {
  return {
    title,
    align: 'right',
    cell: (worker) => {
      const count = sumOf(worker, name)
      const isBad = count > 0 && (name === 'dead' || name === 'fencedOff')
      return (
        <span class={isBad ? 'number bad-text' : 'number'} title={formatCount(count)}>
          {formatShort(count)}
        </span>
      )
    },
  }
}

const COLUMNS: readonly Column<WorkerProcess>[] = [
  {
    title: 'State',
    cell: (worker) => (
      <>
        <State of={stateOf(worker)} />
        {worker.paused.length === 0 ? null : <Pauses of={worker.paused} />}
      </>
    ),
  },
  {
    title: 'Process',
    cell: ({ id, host, pid, version }) => (
      <>
        <Link href={hrefOf(`/workers/${encodeURIComponent(id)}`)}>{id}</Link>
        <span class="hint below">
          {host}, pid {pid}, {version}
        </span>
      </>
    ),
  },
  {
    title: 'Runs',
    wraps: true,
    cell: ({ serves, reaps }) => (
      <>
        {Object.keys(serves).join(', ') || <None />}
        <span class="hint below" title={reaps.join(', ')}>
          reaps {reaps.length === 1 ? reaps[0] : `${reaps.length} tables`}
        </span>
      </>
    ),
  },
  {
    title: 'In flight',
    align: 'right',
    cell: (worker) => (
      <span title="Rows in flight, and how many it can process at once">
        {formatCount(worker.inFlight)} / {formatCount(slotsOf(worker))}
      </span>
    ),
  },
  counted('Done', 'done'),
  counted('Retried', 'retried'),
  counted('Dead', 'dead'),
  counted('Fenced off', 'fencedOff'),
  counted('Recovered', 'recovered'),
  {
    title: 'Last seen',
    wraps: true,
    cell: ({ lastSeenAt, startedAt }) => (
      <>
        <Time at={lastSeenAt} />
        <span class="hint below">
          started <Time at={startedAt} />
        </span>
      </>
    ),
  },
]

export function WorkersPage(): JSX.Element {
  const { data, problem, refresh } = useQuery('workers', async (signal) => {
    const [workers, settings] = await Promise.all([
      answer(api.GET('/workers', { signal })),
      answer(api.GET('/settings', { signal })),
    ])
    return { workers: workers.items, settings: settings.items }
  })
  const names = namesOf(data?.workers ?? [])
  const filters: readonly Filter[] = [
    { kind: 'choice', name: 'state', label: 'State', options: STATES, several: true },
    { kind: 'choice', name: 'worker', label: 'Worker', options: names },
  ]
  const values = useFilterValues(filters)
  if (data === undefined) return problem === undefined ? <Reading /> : <Problem of={problem} />
  const name = values.one('worker')
  const states = values.all('state')
  const matching = data.workers
    .filter((worker) => states === undefined || states.includes(stateOf(worker)))
    .filter(({ serves }) => name === undefined || Object.hasOwn(serves, name))
    .toSorted(
      (a, b) =>
        STATES.indexOf(stateOf(a)) - STATES.indexOf(stateOf(b)) ||
        Date.parse(b.startedAt) - Date.parse(a.startedAt),
    )
  return (
    <>
      <header class="page-header">
        <h1>Workers</h1>
        <span class="hint">Processes that run, and for a day those that have ended.</span>
      </header>
      <Problem of={problem} />
      {data.workers.length === 0 ? (
        <NoWorkers />
      ) : (
        <>
          <FilterBar filters={filters} />
          {matching.length === 0 ? (
            <Empty title="No process matches these filters." />
          ) : (
            <Table
              caption="Worker processes"
              columns={COLUMNS}
              rows={matching.slice(0, MOST_SHOWN)}
              idOf={({ id }) => id}
              hrefOf={({ id }) => hrefOf(`/workers/${encodeURIComponent(id)}`)}
              toneOf={(worker) => (stateOf(worker) === 'missing' ? 'warning' : undefined)}
            />
          )}
          {matching.length > MOST_SHOWN ? (
            <p class="hint">
              {MOST_SHOWN} of {formatCount(matching.length)} are shown.
            </p>
          ) : null}
          <h2 class="section">Settings by worker</h2>
          <div class="worker-settings-list">
            {names
              .filter((each) => name === undefined || each === name)
              .map((each) => (
                <WorkerSettings
                  key={each}
                  name={each}
                  processes={data.workers.filter(({ serves }) => Object.hasOwn(serves, each))}
                  stored={data.settings.find((setting) => setting.name === each)}
                  onDone={refresh}
                />
              ))}
          </div>
        </>
      )}
    </>
  )
}

function namesOf(workers: readonly WorkerProcess[]): readonly string[] {
  return [...new Set(workers.flatMap(({ serves }) => Object.keys(serves)))].toSorted()
}

function NoWorkers(): JSX.Element {
  return (
    <Empty title="No worker process was started yet.">
      <p>Start one with the command line:</p>
      <Sample>npx leasehold work</Sample>
      <p>or in a process of your own, with a table of your own:</p>
      <Sample>{`import { leaseTable, startRuntime } from 'leasehold'

const emails = leaseTable({
  table: 'public.emails',
  claimable: 'sent_at is null and failed_at is null',
  availableAt: 'due_at',
  attempts: { max: 5 },
  outcomes: { done: { sent_at: 'now()' }, dead: { failed_at: 'now()' } },
})

await startRuntime({
  databaseUrl: process.env.DATABASE_URL,
  workers: [{ name: 'emails', table: emails, handle: async ({ row, signal }) => send(row.recipient, signal) }],
})`}</Sample>
    </Empty>
  )
}
