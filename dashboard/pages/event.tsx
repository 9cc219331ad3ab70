/** One event: what it says, what has happened to it, why it is not running, and what can be done. */
import type { JSX } from 'preact'
import { answer, type Answer, api } from '../api.ts'
import { Explain } from '../explain.tsx'
import { useQuery } from '../query.ts'
import { hrefOf, Link } from '../router.tsx'
import { may } from '../session.ts'
import { type TimelineEntry, Timeline } from '../ui/timeline.tsx'
import { ChangeButton, notify, Problem, Reading } from '../ui/feedback.tsx'
import { Copyable, ExactTime, Facts, Json, State, Time } from '../ui/values.tsx'
import { Unblock } from './held-up-keys.tsx'

type Event = Answer<'getOutboxEventsById'>

export function EventPage({ id }: { readonly id: string }): JSX.Element {
  const path = { id }
  const { data, problem, refresh } = useQuery(`event ${id}`, async (signal) =>
    answer(api.GET('/outbox/events/{id}', { params: { path }, signal })),
  )
  if (data === undefined) return problem === undefined ? <Reading /> : <Problem of={problem} />
  return (
    <>
      <header class="page-header">
        <h1>
          <Link href={hrefOf('/outbox')}>Outbox</Link> / event <span class="number">{data.id}</span>
        </h1>
        <State of={data.parked ? 'parked' : data.status} />
      </header>
      <Problem of={problem} />
      {may('operate') ? <Actions event={data} onDone={refresh} /> : null}
      <div class="columns">
        <div>
          <section class="panel">
            <EventFacts event={data} />
          </section>
          <Explain
            of={`${data.id} ${data.status} ${data.token} ${data.availableAt}`}
            read={async (signal) =>
              answer(api.GET('/outbox/events/{id}/explain', { params: { path }, signal }))
            }
          />
          <section class="panel" aria-labelledby="timeline">
            <h2 id="timeline">Timeline</h2>
            <Timeline entries={timelineOf(data)} />
          </section>
        </div>
        <div>
          <section class="panel" aria-labelledby="payload">
            <h2 id="payload">Payload</h2>
            <Json value={data.payload} label="Payload" />
          </section>
          <section class="panel" aria-labelledby="headers">
            <h2 id="headers">Headers</h2>
            <Json value={data.headers} label="Headers" />
          </section>
        </div>
      </div>
    </>
  )
}

function EventFacts({ event }: { readonly event: Event }): JSX.Element {
  const { orderingKey, maxAttempts, waitsFor, claimedBy, lastError } = event
  return (
    <Facts
      of={[
        ['Type', event.type],
        ['Event id', <Copyable key="id" text={event.eventId} label="the event id" />],
        [
          'Ordering key',
          orderingKey === null ? (
            'none'
          ) : (
            <Link href={hrefOf('/outbox', { orderingKey })}>{orderingKey}</Link>
          ),
        ],
        ['Written', <ExactTime key="at" at={event.createdAt} />],
        event.status === 'PENDING' && ['Due', <Time key="at" at={event.availableAt} />],
        ['Failed attempts', `${event.attempts} of ${maxAttempts ?? 'any number'}`],
        event.expiries > 0 && ['Expired leases', event.expiries],
        ['Token', <span class="number">{event.token}</span>],
        claimedBy !== null && [
          'Leased by',
          <>
            <Link href={hrefOf(`/workers/${encodeURIComponent(claimedBy)}`)}>{claimedBy}</Link> until{' '}
            <Time at={event.lockedUntil} />
          </>,
        ],
        waitsFor !== null && [
          'Waits for',
          <>
            <Link href={hrefOf(`/outbox/events/${waitsFor.id}`)}>event {waitsFor.id}</Link>{' '}
            <State of={waitsFor.parked ? 'parked' : waitsFor.status} />
          </>,
        ],
        lastError !== null && ['Last error', <span class="error-text">{lastError}</span>],
      ]}
    />
  )
}

function Actions({
  event,
  onDone,
}: {
  readonly event: Event
  readonly onDone: () => void
}): JSX.Element | null {
  const { id, status, parked, orderingKey, waitsFor } = event
  const params = { path: { id } }
  const isFinished = status === 'PUBLISHED' || status === 'DEAD'
  if (status === 'CLAIMED') return null
  const holder = parked ? event : waitsFor?.parked === true ? waitsFor : undefined
  return (
    <div class="actions">
      {isFinished ? (
        <ChangeButton
          label="Replay"
          isPrimary
          explanation={
            <p>The event is published once more, with the same event id. Consumers may see it twice.</p>
          }
          act={async (reason) => {
            await answer(api.POST('/outbox/events/{id}/replay', { params, body: { reason } }))
            notify(`Event ${id} will be published once more.`)
            onDone()
          }}
        />
      ) : (
        <>
          <ChangeButton
            label="Retry now"
            isPrimary
            explanation={<p>The event is due at once, and a relay claims it as soon as it can.</p>}
            act={async (reason) => {
              await answer(api.POST('/outbox/events/{id}/retry', { params, body: { reason } }))
              notify(`Event ${id} is due.`)
              onDone()
            }}
          />
          <ChangeButton
            label="Give up"
            tone="bad"
            explanation={<p>The event is dead from now on. Only a replay brings it back.</p>}
            act={async (reason) => {
              await answer(api.POST('/outbox/events/{id}/give-up', { params, body: { reason } }))
              notify(`Event ${id} is dead.`)
              onDone()
            }}
          />
        </>
      )}
      {orderingKey !== null && holder !== undefined ? (
        <Unblock of={{ orderingKey, id: holder.id, state: 'parked' }} onDone={onDone} />
      ) : null}
    </div>
  )
}

const OUTCOMES: Readonly<Record<Event['history'][number]['outcome'], Pick<TimelineEntry, 'title' | 'tone'>>> =
  {
    retry: { title: 'Failed, to be retried', tone: 'warning' },
    dead: { title: 'Dead', tone: 'bad' },
    expired: { title: 'Lease expired', tone: 'warning' },
    published: { title: 'Published', tone: 'good' },
    replayed: { title: 'Replayed', tone: 'busy' },
    givenUp: { title: 'Given up', tone: 'bad' },
  }

/** From the history of the row, and from the row as it is now. */
function timelineOf({
  createdAt,
  claimedAt,
  claimedBy,
  lockedUntil,
  token,
  history,
}: Event): TimelineEntry[] {
  return [
    { at: createdAt, title: 'Written' },
    ...history.map(({ outcome, endedAt, token: held, owner, claimedAt: from, until, error, by }) => ({
      ...OUTCOMES[outcome],
      at: endedAt,
      who: owner ?? by,
      token: held ?? undefined,
      from,
      until,
      text: error,
      isQuiet: by !== null,
    })),
    ...(claimedBy === null || claimedAt === null
      ? []
      : [
          {
            at: claimedAt,
            title: 'Leased',
            who: claimedBy,
            token,
            until: lockedUntil,
            tone: 'busy' as const,
          },
        ]),
  ]
}
