/** Jobs: found by state, definition, matrix, time, id or error, and cancelled or replayed one by one or all that match. */
import type { JSX } from 'preact'
import { answer, api, type ItemOf } from '../api.ts'
import { BulkBar } from '../bulk-change.tsx'
import { formatCount } from '../format.ts'
import { hrefOf, Link } from '../router.tsx'
import { SearchedList, useSearch } from '../search.tsx'
import { may } from '../session.ts'
import { Progress } from '../ui/charts.tsx'
import { Empty, Sample } from '../ui/feedback.tsx'
import { type Filter, FilterBar, useFilterValues } from '../ui/filters.tsx'
import { type Column, useSelection } from '../ui/table.tsx'
import { State, Time, type Tone } from '../ui/values.tsx'

export type Job = ItemOf<'getSyncJobs'>

const STATES = ['AVAILABLE', 'RUNNING', 'EXPIRED', 'COMPLETED', 'FAILED'] as const

export const PHASE_TONES: Readonly<Record<Job['phase'], Tone>> = {
  waiting: 'neutral',
  planning: 'busy',
  syncing: 'busy',
  completed: 'good',
  failed: 'bad',
}

const FILTERS: readonly Filter[] = [
  { kind: 'choice', name: 'states', label: 'State', options: STATES, several: true },
  { kind: 'text', name: 'definition', label: 'Definition', placeholder: 'invoices' },
  { kind: 'text', name: 'matrixId', label: 'Matrix' },
  { kind: 'text', name: 'error', label: 'Error contains', placeholder: 'timeout' },
  { kind: 'text', name: 'id', label: 'Id' },
  { kind: 'time', name: 'from', label: 'Enqueued from' },
  { kind: 'time', name: 'to', label: 'to' },
]

const COLUMNS: readonly Column<Job>[] = [
  {
    title: 'Id',
    align: 'right',
    cell: ({ id }) => (
      <Link class="number" href={hrefOf(`/sync/jobs/${id}`)}>
        {id}
      </Link>
    ),
  },
  {
    title: 'Phase',
    cell: ({ phase, state }) => (
      <span title={state}>
        <State of={phase} tone={PHASE_TONES[phase]} />
      </span>
    ),
  },
  { title: 'Definition', cell: ({ definition }) => definition },
  { title: 'Matrix', cell: ({ matrixId }) => matrixId },
  { title: 'Chunks', cell: (job) => <JobProgress job={job} /> },
  { title: 'Enqueued', cell: ({ createdAt }) => <Time at={createdAt} /> },
  { title: 'What happens', grows: true, cell: (job) => <Happens job={job} /> },
]

export function JobProgress({ job: { chunks, phase } }: { readonly job: Job }): JSX.Element {
  const done = chunks.done + chunks.skipped
  const text = `${formatCount(done)} of ${formatCount(chunks.total)}${phase === 'planning' || phase === 'waiting' ? ' so far' : ''}`
  return (
    <div class="job-progress" title={chunkSummary(chunks)}>
      <Progress done={done} failed={chunks.failed} total={chunks.total} label={`Chunks: ${text}`} />
      <span class="hint number">
        {text}
        {chunks.failed > 0 ? `, ${formatCount(chunks.failed)} failed` : ''}
      </span>
    </div>
  )
}

function chunkSummary({ done, skipped, running, waiting, retrying, failed }: Job['chunks']): string {
  return `${done} done, ${skipped} skipped, ${running} running, ${waiting} waiting (${retrying} of them to be retried), ${failed} failed`
}

/** What is happening to the job, or has. */
function Happens({ job }: { readonly job: Job }): JSX.Element {
  const { phase, errorMessage, completedAt, failedAt, lockedBy, nextCheckAt, chunks } = job
  if (phase === 'completed')
    return (
      <>
        completed <Time at={completedAt} />
      </>
    )
  if (phase === 'failed')
    return (
      <>
        <Time at={failedAt} />: {errorMessage ?? 'no error is known'}
      </>
    )
  if (lockedBy !== null) return <>at {lockedBy}</>
  if (phase === 'syncing') return <>{formatCount(chunks.running)} chunks at work</>
  return (
    <>
      due <Time at={nextCheckAt} />
      {errorMessage === null ? '' : `: ${errorMessage}`}
    </>
  )
}

export function SyncPage(): JSX.Element {
  const filters = useFilterValues(FILTERS)
  const selection = useSelection()
  const conditions = {
    definition: filters.one('definition'),
    matrixId: filters.one('matrixId'),
    error: filters.one('error'),
    from: filters.one('from'),
    to: filters.one('to'),
    // The API checks the words of the address.
    states: filters.all('states') as Job['state'][] | undefined,
  }
  const id = filters.all('id')
  const search = useSearch(filters, async (cursor, signal) =>
    answer(api.GET('/sync/jobs', { params: { query: { ...conditions, id, cursor, limit: 50 } }, signal })),
  )
  return (
    <>
      <header class="page-header">
        <h1>Sync</h1>
      </header>
      <FilterBar filters={FILTERS} />
      <SearchedList
        search={search}
        caption="Jobs, the newest first"
        columns={COLUMNS}
        idOf={(job) => job.id}
        hrefOf={(job) => hrefOf(`/sync/jobs/${job.id}`)}
        selection={may('operate') ? selection : undefined}
        toneOf={({ phase }) => (phase === 'failed' ? 'bad' : undefined)}
        empty={filters.isEmpty ? <NoJobs /> : <Empty title="No job matches these filters." />}
      />
      <BulkBar
        isShown={search.items.length > 0}
        list="/sync/jobs"
        rows="jobs"
        actions={[
          { action: 'replay', label: 'Replay', only: 'Only jobs that have failed are replayed.' },
          { action: 'cancel', label: 'Cancel', tone: 'bad', only: 'Only open jobs are cancelled.' },
        ]}
        selection={selection}
        filter={conditions}
        isFiltered={!filters.isEmpty}
        ids={id}
      />
    </>
  )
}

function NoJobs(): JSX.Element {
  return (
    <Empty title="No job was enqueued yet.">
      <p>
        A job syncs one matrix, such as the invoices of an account. Its plan says which chunks there are, and
        each chunk is synced under a lease of its own:
      </p>
      <Sample>{`import { startRuntime } from 'leasehold'
import { createSync } from 'leasehold/sync'

const sync = createSync()
const invoices = sync.define('invoices', {
  async *plan({ matrixId: account }, { signal, call }) {
    await call() // one call is reserved for each chunk; a plan reserves its own
    for await (const month of billing.monthsOf(account, signal)) yield { month }
  },
  async syncChunk({ matrixId: account, query: { month } }, { signal, settleIn }) {
    const found = await billing.invoicesOf(account, month, signal)
    await db.transaction(async (tx) => {
      await save(tx, account, month, found)
      await settleIn(tx, { rows: found.length })
    })
  },
  source: { name: 'billing-api', perSecond: 10 },
})
await startRuntime({ databaseUrl, workers: sync.runner() })
await invoices.enqueue(tx, { matrixId: 'acme' })`}</Sample>
    </Empty>
  )
}
