/** Changes of many rows: how far each is, who asked for it, why, and for which rows. */
import type { JSX } from 'preact'
import { useEffect } from 'preact/hooks'
import { answer, api } from '../api.ts'
import { type Change, ChangeProgress } from '../bulk-change.tsx'
import { isPortal } from '../config.ts'
import { formatCount, formatDuration } from '../format.ts'
import { useQuery } from '../query.ts'
import { hrefOf, Link } from '../router.tsx'
import { SearchedList, useSearch } from '../search.tsx'
import { Progress } from '../ui/charts.tsx'
import { Empty, Problem, Reading, Sample } from '../ui/feedback.tsx'
import { useFilterValues } from '../ui/filters.tsx'
import type { Column } from '../ui/table.tsx'
import { Copyable, ExactTime, Facts, Json, None, State, Time } from '../ui/values.tsx'

const COLUMNS: readonly Column<Change>[] = [
  { title: 'Action', cell: ({ id, action }) => <Link href={hrefOf(`/changes/${id}`)}>{action}</Link> },
  { title: 'State', cell: ({ state }) => <State of={state} /> },
  {
    title: 'Changed',
    align: 'right',
    cell: ({ changed, matched }) => (
      <>
        {formatCount(changed)}
        {matched === null ? '' : ` of ${formatCount(matched)}`}
      </>
    ),
  },
  {
    title: 'Progress',
    cell: ({ changed, matched }) => (
      <Progress done={changed} total={Math.max(matched ?? 0, changed)} label="How far the change is" />
    ),
  },
  { title: 'By', cell: ({ principal }) => principal },
  { title: 'Started', cell: ({ startedAt }) => <Time at={startedAt} /> },
  { title: 'Reason', grows: true, cell: ({ reason }) => reason },
]

/** The live updates tell of rows, not of how far a change is. */
const RUNNING_EVERY_MS = 2_000

export function ChangesPage(): JSX.Element {
  const search = useSearch(useFilterValues([]), async (cursor, signal) =>
    answer(api.GET('/changes', { params: { query: { cursor, limit: 50 } }, signal })),
  )
  const { items, refresh } = search
  const isAnyRunning = items.some(({ state }) => state === 'running')
  useEffect(() => {
    if (!isAnyRunning) return undefined
    const timer = window.setInterval(refresh, RUNNING_EVERY_MS)
    return () => window.clearInterval(timer)
  }, [isAnyRunning, refresh])
  return (
    <>
      <header class="page-header">
        <h1>Changes</h1>
      </header>
      <SearchedList
        search={search}
        caption="Changes of many rows, the newest first"
        columns={COLUMNS}
        idOf={({ id }) => id}
        hrefOf={({ id }) => hrefOf(`/changes/${id}`)}
        toneOf={({ state }) => (state === 'failed' ? 'bad' : undefined)}
        empty={<NoChanges />}
      />
    </>
  )
}

function NoChanges(): JSX.Element {
  if (isPortal)
    return (
      <Empty title="Nobody has changed many deliveries at once yet.">
        <p>
          Below the list of deliveries there are buttons that change all that match its filters, such as
          replaying all that have failed. What they do is listed here, and can be cancelled.
        </p>
      </Empty>
    )
  return (
    <Empty title="Nobody has changed many rows at once yet.">
      <p>
        Below every list there are buttons that change all rows that match its filters, such as replaying all
        dead events of a type. What they do is listed here, and can be cancelled. On the command line:
      </p>
      <Sample>{`leasehold outbox replay --status DEAD --type order.paid --reason "the broker is back" --dry-run`}</Sample>
    </Empty>
  )
}

export function ChangePage({ id }: { readonly id: string }): JSX.Element {
  const { data, problem } = useQuery(`change ${id}`, async (signal) =>
    answer(api.GET('/changes/{id}', { params: { path: { id } }, signal })),
  )
  if (data === undefined) return problem === undefined ? <Reading /> : <Problem of={problem} />
  const { namedIds, rate, limit, cancelledBy, startedAt, finishedAt } = data
  return (
    <>
      <header class="page-header">
        <h1>
          <Link href={hrefOf('/changes')}>Changes</Link> / {data.action}
        </h1>
      </header>
      <div class="columns">
        <div>
          <section class="panel" aria-labelledby="progress">
            <h2 id="progress">Progress</h2>
            <ChangeProgress id={id} first={data} />
          </section>
          <section class="panel">
            <Facts
              of={[
                ['Asked for by', data.principal],
                ['Reason', data.reason],
                ['Started', <ExactTime key="at" at={startedAt} />],
                [
                  'Ended',
                  finishedAt === null ? (
                    <None />
                  ) : (
                    <>
                      <ExactTime at={finishedAt} />, after{' '}
                      {formatDuration(Date.parse(finishedAt) - Date.parse(startedAt))}
                    </>
                  ),
                ],
                cancelledBy !== null && ['Cancelled by', cancelledBy],
                rate !== null && ['At most', `${formatCount(rate)} per second`],
                limit !== null && ['Limit', `${formatCount(limit)} rows`],
                [
                  'Runs in',
                  data.isBackground ? 'a server, in the background' : 'the command that asked for it',
                ],
                ['Id', <Copyable key="id" text={data.id} label="the id of the change" />],
                [
                  'Audit',
                  <Link
                    href={hrefOf('/audit', {
                      action: data.action,
                      principal: data.principal,
                      from: startedAt,
                    })}
                  >
                    what it has done
                  </Link>,
                ],
              ]}
            />
          </section>
        </div>
        <div>
          <section class="panel" aria-labelledby="filter">
            <h2 id="filter">Rows that it concerns</h2>
            {namedIds === null ? null : <p>{formatCount(namedIds)} rows were named.</p>}
            <Json value={data.filter} label="Filter" />
          </section>
          {Object.keys(data.counts).length === 0 ? null : (
            <section class="panel" aria-labelledby="counts">
              <h2 id="counts">What became of them</h2>
              <Facts of={Object.entries(data.counts).map(([name, count]) => [name, formatCount(count)])} />
            </section>
          )}
        </div>
      </div>
    </>
  )
}
