/** One job: how far it is, every chunk of it, why it is not completed, and what can be done. */
import type { JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { answer, type Answer, api, type ItemOf } from '../api.ts'
import { Explain, Reasons } from '../explain.tsx'
import { formatCount, formatDuration, formatRate, formatShort } from '../format.ts'
import { useQuery } from '../query.ts'
import { hrefOf, Link, setQuery, useAddress } from '../router.tsx'
import { may } from '../session.ts'
import { Progress } from '../ui/charts.tsx'
import { ChangeButton, Dialog, Empty, notify, Problem, Reading } from '../ui/feedback.tsx'
import { type Column, Table } from '../ui/table.tsx'
import { type TimelineEntry, Timeline } from '../ui/timeline.tsx'
import { ExactTime, Facts, Figure, Json, None, State, Time, type Tone } from '../ui/values.tsx'
import { PHASE_TONES } from './sync.tsx'

type Job = Answer<'getSyncJobsById'>
type Chunk = ItemOf<'getSyncJobsByIdChunks'>

export function JobPage({ id }: { readonly id: string }): JSX.Element {
  const path = { id }
  const { data, problem, refresh } = useQuery(`job ${id}`, async (signal) =>
    answer(api.GET('/sync/jobs/{id}', { params: { path }, signal })),
  )
  if (data === undefined) return problem === undefined ? <Reading /> : <Problem of={problem} />
  return (
    <>
      <header class="page-header">
        <h1>
          <Link href={hrefOf('/sync')}>Sync</Link> / job <span class="number">{data.id}</span>
        </h1>
        <State of={data.phase} tone={PHASE_TONES[data.phase]} />
      </header>
      <Problem of={problem} />
      {may('operate') ? <Actions job={data} onDone={refresh} /> : null}
      <Figures job={data} />
      <ChunkGrid job={data} />
      {data.chunks.failed > 0 ? <FailedChunks job={data} /> : null}
      <div class="columns">
        <div>
          <Explain
            of={`${data.id} ${data.phase} ${data.token}`}
            read={async (signal) => answer(api.GET('/sync/jobs/{id}/explain', { params: { path }, signal }))}
          />
          <section class="panel" aria-labelledby="timeline">
            <h2 id="timeline">Timeline</h2>
            <Timeline entries={timelineOf(data)} />
          </section>
        </div>
        <div>
          <section class="panel">
            <JobFacts job={data} />
          </section>
          {['{}', 'null', undefined].includes(JSON.stringify(data.params)) ? null : (
            <section class="panel" aria-labelledby="params">
              <h2 id="params">Parameters</h2>
              <Json value={data.params} label="Parameters" />
            </section>
          )}
        </div>
      </div>
    </>
  )
}

function Actions({
  job: { id, phase, chunks },
  onDone,
}: {
  readonly job: Job
  readonly onDone: () => void
}): JSX.Element | null {
  const params = { path: { id } }
  if (phase === 'completed') return null
  return (
    <div class="actions">
      {phase === 'failed' ? (
        <ChangeButton
          label={chunks.failed > 0 ? 'Retry failed chunks' : 'Replay'}
          isPrimary
          explanation={
            <p>
              The job is opened once more.{' '}
              {chunks.failed > 0
                ? `Only its ${formatCount(chunks.failed)} failed chunks are synced; what is done stays done.`
                : 'Only what is missing is synced.'}
            </p>
          }
          act={async (reason) => {
            await answer(api.POST('/sync/jobs/{id}/replay', { params, body: { reason } }))
            notify(`Job ${id} is open again.`)
            onDone()
          }}
        />
      ) : (
        <ChangeButton
          label="Cancel the job"
          tone="bad"
          explanation={
            <p>The job fails at once. What it has synced stays, and a replay goes on from there.</p>
          }
          act={async (reason) => {
            await answer(api.POST('/sync/jobs/{id}/cancel', { params, body: { reason } }))
            notify(`Job ${id} is cancelled.`)
            onDone()
          }}
        />
      )}
    </div>
  )
}

function Figures({ job }: { readonly job: Job }): JSX.Element {
  const { chunks, rows, rowsPerSecond, chunksPerMinute, timeLeftMs } = job
  const done = chunks.done + chunks.skipped
  return (
    <>
      <dl class="figures">
        <Figure
          name="Chunks done"
          note={`of ${formatCount(chunks.total)}${chunks.skipped > 0 ? `; ${formatCount(chunks.skipped)} were fresh enough` : ''}`}
        >
          {formatShort(done)}
        </Figure>
        <Figure
          name="At work"
          note={chunksPerMinute === undefined ? undefined : `${chunksPerMinute.toFixed(1)} chunks per minute`}
        >
          {formatCount(chunks.running)}
        </Figure>
        <Figure
          name="Waiting"
          note={chunks.retrying > 0 ? `${formatCount(chunks.retrying)} have failed before` : undefined}
        >
          {formatShort(chunks.waiting)}
        </Figure>
        <Figure name="Failed" tone={chunks.failed > 0 ? 'bad' : undefined}>
          {formatShort(chunks.failed)}
        </Figure>
        <Figure
          name="Rows"
          note={rowsPerSecond === undefined ? undefined : `${formatRate(rowsPerSecond)} at the moment`}
        >
          {formatShort(rows)}
        </Figure>
        <Figure name="Time left">
          {timeLeftMs === undefined ? <None /> : `about ${formatDuration(timeLeftMs)}`}
        </Figure>
      </dl>
      <p>
        <Progress done={done} failed={chunks.failed} total={chunks.total} label="How far the job is" />
      </p>
    </>
  )
}

function JobFacts({ job }: { readonly job: Job }): JSX.Element {
  const { definition, matrixId, lockedBy, errorMessage, freshForMs } = job
  return (
    <Facts
      of={[
        ['Definition', <Link href={hrefOf('/sync', { definition })}>{definition}</Link>],
        ['Matrix', <Link href={hrefOf('/sync', { matrixId })}>{matrixId}</Link>],
        ['State', `${job.state}, by its own lease`],
        ['Priority', job.priority],
        [
          'Syncs',
          job.force
            ? 'all chunks, also those that were synced before'
            : freshForMs === null
              ? 'chunks that were not synced yet'
              : `chunks that were not synced for ${formatDuration(freshForMs)}`,
        ],
        ['Enqueued', <ExactTime at={job.createdAt} />],
        ['Planned', <ExactTime at={job.plannedAt} />],
        job.completedAt === null && job.failedAt === null && ['Next check', <Time at={job.nextCheckAt} />],
        job.attempts > 0 && ['Failed plans', job.attempts],
        ['Token', <span class="number">{job.token}</span>],
        lockedBy !== null && [
          'Leased by',
          <>
            <Link href={hrefOf(`/workers/${encodeURIComponent(lockedBy)}`)}>{lockedBy}</Link> until{' '}
            <Time at={job.lockedUntil} />
          </>,
        ],
        errorMessage !== null && ['Error', <span class="error-text">{errorMessage}</span>],
      ]}
    />
  )
}

function timelineOf(job: Job): readonly TimelineEntry[] {
  const { createdAt, plannedAt, completedAt, failedAt, errorMessage } = job
  return [
    { at: createdAt, title: 'Enqueued' },
    ...(plannedAt === null ? [] : [{ at: plannedAt, title: 'Planned', tone: 'busy' as const }]),
    ...(completedAt === null ? [] : [{ at: completedAt, title: 'Completed', tone: 'good' as const }]),
    ...(failedAt === null
      ? []
      : [{ at: failedAt, title: 'Failed', tone: 'bad' as const, text: errorMessage }]),
  ]
}

/** A job may have a million chunks: so many are drawn at once. */
const SQUARES = 1_000
const CHUNK_STATES = ['AVAILABLE', 'RUNNING', 'EXPIRED', 'COMPLETED', 'FAILED'] as const

/** What a chunk looks like, and what that means. */
const LOOKS: readonly (readonly [look: string, text: string, tone: Tone])[] = [
  ['done', 'done', 'good'],
  ['skipped', 'fresh enough', 'good'],
  ['running', 'at work', 'busy'],
  ['waiting', 'waiting', 'neutral'],
  ['retrying', 'will be retried', 'warning'],
  ['expired', 'lease expired', 'warning'],
  ['failed', 'failed', 'bad'],
  ['dropped', 'not needed', 'neutral'],
]

function lookOf({ state, skipped, needed, attempts }: Chunk): (typeof LOOKS)[number] {
  const look =
    state === 'COMPLETED'
      ? skipped
        ? 'skipped'
        : 'done'
      : state === 'FAILED'
        ? 'failed'
        : state === 'RUNNING'
          ? 'running'
          : state === 'EXPIRED'
            ? 'expired'
            : !needed
              ? 'dropped'
              : attempts > 0
                ? 'retrying'
                : 'waiting'
  return LOOKS.find(([name]) => name === look) ?? ['waiting', 'waiting', 'neutral']
}

/** One small square for each chunk, in the order of the plan. The address has the position and the chunk that is open. */
function ChunkGrid({ job }: { readonly job: Job }): JSX.Element {
  const { query } = useAddress()
  const cursor = query.get('chunks') ?? undefined
  // The API checks the words of the address.
  const states = query.getAll('chunkStates') as Chunk['state'][]
  const open = query.get('chunk') ?? undefined
  const { data, problem, refresh } = useQuery(
    `chunks ${job.id} ${cursor} ${states.join()}`,
    async (signal) =>
      answer(
        api.GET('/sync/jobs/{id}/chunks', {
          params: {
            path: { id: job.id },
            query: { cursor, limit: SQUARES, ...(states.length === 0 ? {} : { states }) },
          },
          signal,
        }),
      ),
    { isLive: false },
  )
  const counts = JSON.stringify(job.chunks)
  const shown = useRef(counts)
  useEffect(() => {
    // Chunks change as often as the counts of the job do, which follows the server.
    if (shown.current !== counts) refresh()
    shown.current = counts
  }, [counts])
  const items = data?.items ?? []
  const toggle = (state: Chunk['state']): void =>
    setQuery({
      chunkStates: states.includes(state) ? states.filter((each) => each !== state) : [...states, state],
      chunks: undefined,
    })
  const isPaged = cursor !== undefined || (data?.next ?? null) !== null
  return (
    <section class="panel" aria-labelledby="chunks">
      <header class="chunk-header">
        <h2 id="chunks">Chunks</h2>
        <div role="group" aria-label="Only chunks in these states">
          {CHUNK_STATES.map((state) => (
            <button
              key={state}
              type="button"
              class={states.includes(state) ? 'chip chosen' : 'chip'}
              aria-pressed={states.includes(state)}
              onClick={() => toggle(state)}
            >
              {state}
            </button>
          ))}
        </div>
      </header>
      <Problem of={problem} />
      {data === undefined ? (
        problem === undefined ? (
          <Reading />
        ) : null
      ) : items.length === 0 ? (
        <Empty
          title={
            states.length > 0 || cursor !== undefined
              ? 'No chunk is in these states.'
              : job.plannedAt === null
                ? 'The job is not planned yet: its chunks are not known.'
                : 'The plan has no chunks.'
          }
        />
      ) : (
        <>
          <Squares chunks={items} />
          <ul class="legend chunk-legend">
            {LOOKS.map(([look, text]) => (
              <li key={look}>
                <span class={`square look-${look}`} /> {text}
              </li>
            ))}
          </ul>
        </>
      )}
      {isPaged ? (
        <nav class="pager" aria-label="Pages of chunks">
          <button
            type="button"
            disabled={cursor === undefined}
            onClick={() => setQuery({ chunks: undefined })}
          >
            First
          </button>
          <button type="button" disabled={cursor === undefined} onClick={() => history.back()}>
            Back
          </button>
          <button
            type="button"
            disabled={(data?.next ?? null) === null}
            onClick={() => setQuery({ chunks: data?.next ?? undefined })}
          >
            Next
          </button>
          <span class="hint">
            {items[0] === undefined ? '' : `From chunk ${formatCount(items[0].position)} of the plan on, `}
            {formatCount(items.length)} of {formatCount(job.chunks.total)}
          </span>
        </nav>
      ) : null}
      {open === undefined ? null : (
        <ChunkDialog
          job={job}
          hash={open}
          known={items.find(({ hash }) => hash === open) ?? job.failures.find(({ hash }) => hash === open)}
        />
      )}
    </section>
  )
}

/** One of them is reached with the Tab key, the others from there with the arrow keys. */
function Squares({ chunks }: { readonly chunks: readonly Chunk[] }): JSX.Element {
  const [focused, setFocused] = useState<string>()
  const first = chunks.some(({ hash }) => hash === focused) ? focused : chunks[0]?.hash
  const move = (event: KeyboardEvent): void => {
    const { target } = event
    if (!(target instanceof HTMLElement)) return
    const next =
      event.key === 'ArrowRight'
        ? target.nextElementSibling
        : event.key === 'ArrowLeft'
          ? target.previousElementSibling
          : undefined
    if (!(next instanceof HTMLElement)) return
    event.preventDefault()
    setFocused(next.dataset['hash'])
    next.focus()
  }
  const show = (event: MouseEvent): void => {
    if (event.ctrlKey || event.metaKey || !(event.target instanceof HTMLElement)) return
    const { hash } = event.target.dataset
    if (hash === undefined) return
    event.preventDefault()
    setQuery({ chunk: hash })
  }
  return (
    <div
      class="squares"
      role="group"
      aria-label="Chunks, in the order of the plan"
      onKeyDown={move}
      onClick={show}
    >
      {chunks.map((chunk) => {
        const [look, text] = lookOf(chunk)
        const title = `Chunk ${chunk.position}: ${text}${chunk.errorMessage === null ? '' : `: ${chunk.errorMessage.slice(0, 200)}`}`
        return (
          <a
            key={chunk.hash}
            class={`square look-${look}`}
            data-hash={chunk.hash}
            href={`?chunk=${encodeURIComponent(chunk.hash)}`}
            tabIndex={chunk.hash === first ? 0 : -1}
            title={title}
            aria-label={title}
          />
        )
      })}
    </div>
  )
}

function ChunkDialog({
  job,
  hash,
  known,
}: {
  readonly job: Job
  readonly hash: string
  readonly known: Chunk | undefined
}): JSX.Element {
  const [, text, tone] = known === undefined ? [] : lookOf(known)
  return (
    <Dialog title="Chunk" onClose={() => setQuery({ chunk: undefined })} isWide closesOutside>
      {known === undefined ? null : (
        <>
          <Facts
            of={[
              ['State', <State of={text ?? known.state} tone={tone} />],
              ['Position', `${formatCount(known.position)} in the plan`],
              ['Failed attempts', known.attempts],
              ['Last synced', <Time at={known.lastSyncedAt} />],
              known.rowCount !== null && ['Rows', formatCount(known.rowCount)],
              known.state === 'AVAILABLE' && ['Next attempt', <Time at={known.nextAttemptAt} />],
              known.lockedBy !== null && [
                'Leased by',
                <>
                  <Link href={hrefOf(`/workers/${encodeURIComponent(known.lockedBy)}`)}>
                    {known.lockedBy}
                  </Link>{' '}
                  until <Time at={known.lockedUntil} />
                </>,
              ],
              ['Token', known.token],
              known.errorMessage !== null && ['Error', <span class="error-text">{known.errorMessage}</span>],
            ]}
          />
          <h3 class="section">Query</h3>
          <Json value={known.query} label="Query" />
        </>
      )}
      <h3 class="section">Why is it not running?</h3>
      <Reasons
        of={`chunk ${job.id} ${hash} ${known?.state ?? ''}`}
        read={async (signal) =>
          answer(
            api.GET('/sync/jobs/{id}/chunks/{hash}/explain', {
              params: { path: { id: job.id, hash } },
              signal,
            }),
          )
        }
      />
    </Dialog>
  )
}

const FAILED_COLUMNS: readonly Column<Chunk>[] = [
  { title: 'Chunk', align: 'right', cell: ({ position }) => formatCount(position) },
  { title: 'Query', cell: ({ query }) => <code class="clipped">{JSON.stringify(query)}</code> },
  { title: 'Failed', align: 'right', cell: ({ attempts }) => attempts },
  { title: 'Given up', cell: ({ failedAt }) => <Time at={failedAt} /> },
  { title: 'Error', grows: true, cell: ({ errorMessage }) => errorMessage ?? <None /> },
  {
    title: 'Why',
    cell: ({ hash }) => (
      <button type="button" class="small" onClick={() => setQuery({ chunk: hash })}>
        Explain
      </button>
    ),
  },
]

function FailedChunks({ job }: { readonly job: Job }): JSX.Element {
  const { query } = useAddress()
  const cursor = query.get('failed') ?? undefined
  const { data, problem } = useQuery(
    `failed chunks ${job.id} ${cursor} ${job.chunks.failed}`,
    async (signal) =>
      answer(
        api.GET('/sync/jobs/{id}/chunks', {
          params: { path: { id: job.id }, query: { cursor, limit: 50, states: ['FAILED'] } },
          signal,
        }),
      ),
  )
  const next = data?.next ?? null
  return (
    <section class="panel" aria-labelledby="failed-chunks">
      <h2 id="failed-chunks">Failed chunks</h2>
      <Problem of={problem} />
      <Table
        caption="Failed chunks"
        columns={FAILED_COLUMNS}
        rows={data?.items ?? job.failures}
        idOf={({ hash }) => hash}
      />
      {cursor === undefined && next === null ? null : (
        <nav class="pager" aria-label="Pages of failed chunks">
          <button
            type="button"
            disabled={cursor === undefined}
            onClick={() => setQuery({ failed: undefined })}
          >
            First
          </button>
          <button
            type="button"
            disabled={next === null}
            onClick={() => setQuery({ failed: next ?? undefined })}
          >
            Next
          </button>
        </nav>
      )}
    </section>
  )
}
