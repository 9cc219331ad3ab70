/** One delivery: what is sent, how every attempt ended, why it is not made, and what can be done. */
import type { JSX } from 'preact'
import { answer, api } from '../api.ts'
import { databaseNow, useNow } from '../clock.ts'
import { isPortal } from '../config.ts'
import { Explain } from '../explain.tsx'
import { formatDuration } from '../format.ts'
import { useQuery } from '../query.ts'
import { hrefOf, Link } from '../router.tsx'
import { may, ownTenant } from '../session.ts'
import { ChangeButton, notify, Problem, Reading } from '../ui/feedback.tsx'
import { type TimelineEntry, Timeline } from '../ui/timeline.tsx'
import { Copyable, ExactTime, Facts, Json, State, Time } from '../ui/values.tsx'
import { type DeliveryDetails, stateOf, Tenant } from '../webhooks.tsx'

export function DeliveryPage({ id }: { readonly id: string }): JSX.Element {
  const path = { id }
  const { data, problem, refresh } = useQuery(`delivery ${id}`, async (signal) =>
    answer(api.GET('/webhooks/deliveries/{id}', { params: { path }, signal })),
  )
  if (data === undefined) return problem === undefined ? <Reading /> : <Problem of={problem} />
  return (
    <>
      <header class="page-header">
        <h1>
          <Link href={hrefOf('/webhooks/deliveries')}>Deliveries</Link> /{' '}
          <span class="number">{data.id}</span>
        </h1>
        <State of={data.status} />
      </header>
      <Problem of={problem} />
      {may('operate') ? <Actions delivery={data} onDone={refresh} /> : null}
      <div class="columns">
        <div>
          <section class="panel" aria-label="Facts">
            <DeliveryFacts delivery={data} />
          </section>
          {ownTenant() === null ? (
            <Explain
              of={`${data.id} ${data.status} ${data.token} ${data.nextAttemptAt}`}
              read={async (signal) =>
                answer(api.GET('/webhooks/deliveries/{id}/explain', { params: { path }, signal }))
              }
            />
          ) : (
            <WhatNext delivery={data} />
          )}
          <section class="panel" aria-labelledby="timeline">
            <h2 id="timeline">Timeline</h2>
            <Timeline entries={timelineOf(data)} />
          </section>
        </div>
        <div>
          <section class="panel" aria-labelledby="body">
            <h2 id="body">Body</h2>
            <Json value={data.body} label="Body" />
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

function DeliveryFacts({ delivery }: { readonly delivery: DeliveryDetails }): JSX.Element {
  const { endpointId, endpointUrl, eventId, orderingKey, leaseOwner, waitsFor, lastError } = delivery
  const isDue = Date.parse(delivery.nextAttemptAt) <= useNow()
  return (
    <Facts
      of={[
        [
          'Endpoint',
          endpointUrl === null ? (
            'deleted'
          ) : (
            <Link href={hrefOf(`/webhooks/endpoints/${endpointId}`)}>{endpointUrl}</Link>
          ),
        ],
        ownTenant() === null && ['Tenant', <Tenant key="tenant" of={delivery.tenant} />],
        ['Type', delivery.type],
        [
          'Event id',
          <>
            <Copyable text={eventId} label="the event id" />{' '}
            <Link href={hrefOf('/webhooks/deliveries', { id: eventId })}>all of this event</Link>
          </>,
        ],
        ['Ordering key', orderingKey ?? 'none'],
        ['Sent', <ExactTime key="at" at={delivery.createdAt} />],
        delivery.status === 'pending' && [
          'Next attempt',
          isDue ? 'due' : <Time key="at" at={delivery.nextAttemptAt} />,
        ],
        ['Failed attempts', delivery.attempts],
        delivery.expiries > 0 && ['Expired leases', delivery.expiries],
        !isPortal && ['Token', <span class="number">{delivery.token}</span>],
        leaseOwner !== null &&
          !isPortal && [
            'Leased by',
            <>
              {ownTenant() === null ? (
                <Link href={hrefOf(`/workers/${encodeURIComponent(leaseOwner)}`)}>{leaseOwner}</Link>
              ) : (
                leaseOwner
              )}{' '}
              until <Time at={delivery.leaseUntil} />
            </>,
          ],
        waitsFor !== null && [
          'Waits for',
          <>
            <Link href={hrefOf(`/webhooks/deliveries/${waitsFor.id}`)}>delivery {waitsFor.id}</Link> of the
            same ordering key
          </>,
        ],
        lastError !== null && ['Last error', <span class="error-text">{lastError}</span>],
      ]}
    />
  )
}

/** Those of one tenant are told what concerns them: their endpoint, and not our workers. */
function WhatNext({ delivery }: { readonly delivery: DeliveryDetails }): JSX.Element {
  const { endpointId, status, deliveredAt, failedAt, leaseOwner, nextAttemptAt, waitsFor } = delivery
  const now = useNow()
  const { data: endpoint } = useQuery(`endpoint ${endpointId}`, async (signal) =>
    delivery.endpointUrl === null
      ? undefined
      : answer(api.GET('/webhooks/endpoints/{id}', { params: { path: { id: endpointId } }, signal })),
  )
  const state = endpoint === undefined ? undefined : stateOf(endpoint, now)
  return (
    <section class="panel" aria-labelledby="next">
      <h2 id="next">What happens next?</h2>
      <p>
        {status === 'delivered' ? (
          <>
            Nothing: it was delivered <Time at={deliveredAt} />.
          </>
        ) : status === 'failed' ? (
          <>
            Nothing: it was given up <Time at={failedAt} />. A replay sends it once more.
          </>
        ) : leaseOwner !== null ? (
          <>It is being sent now.</>
        ) : delivery.endpointUrl === null ? (
          <>Its endpoint was deleted, so that it fails within a minute or so.</>
        ) : state === 'disabled' ? (
          <>It waits until its endpoint is enabled.</>
        ) : state === 'open' ? (
          <>
            Its endpoint has failed too often, and gets nothing until <ExactTime at={endpoint?.openUntil} /> (
            <Time at={endpoint?.openUntil} />
            ).
          </>
        ) : waitsFor !== null ? (
          <>
            It waits for{' '}
            <Link href={hrefOf(`/webhooks/deliveries/${waitsFor.id}`)}>delivery {waitsFor.id}</Link>, which
            was sent before it with the same ordering key.
          </>
        ) : Date.parse(nextAttemptAt) > now ? (
          <>
            The next attempt is made <Time at={nextAttemptAt} />.
          </>
        ) : (
          <>It is sent as soon as the limits of its endpoint permit.</>
        )}
      </p>
    </section>
  )
}

function Actions({
  delivery: { id, status, leaseOwner, nextAttemptAt },
  onDone,
}: {
  readonly delivery: DeliveryDetails
  readonly onDone: () => void
}): JSX.Element | null {
  const params = { path: { id } }
  const isDue = Date.parse(nextAttemptAt) <= useNow()
  if (status === 'pending' && leaseOwner !== null) return null
  return (
    <div class="actions">
      {status === 'pending' ? (
        <>
          {isDue ? null : (
            <ChangeButton
              label="Retry now"
              isPrimary
              explanation={
                <p>The delivery is due at once, and is attempted as soon as its endpoint permits.</p>
              }
              act={async (reason) => {
                await answer(api.POST('/webhooks/deliveries/{id}/retry', { params, body: { reason } }))
                notify(`Delivery ${id} is due.`)
                onDone()
              }}
            />
          )}
          <ChangeButton
            label="Cancel delivery"
            tone="bad"
            explanation={<p>The delivery fails without another attempt. Only a replay brings it back.</p>}
            act={async (reason) => {
              await answer(api.POST('/webhooks/deliveries/{id}/cancel', { params, body: { reason } }))
              notify(`Delivery ${id} was cancelled.`)
              onDone()
            }}
          />
        </>
      ) : (
        <ChangeButton
          label="Replay"
          isPrimary
          explanation={
            <p>
              It is sent once more, with the same event id
              {status === 'delivered' ? ', although it has arrived already' : ''}.
            </p>
          }
          act={async (reason) => {
            await answer(api.POST('/webhooks/deliveries/{id}/replay', { params, body: { reason } }))
            notify(`Delivery ${id} will be sent once more.`)
            onDone()
          }}
        />
      )}
    </div>
  )
}

function timelineOf(delivery: DeliveryDetails): readonly TimelineEntry[] {
  const { status, history, leaseOwner, leaseUntil, token, failedAt, nextAttemptAt, createdAt } = delivery
  const last = history.at(-1)
  // A delivery that was cancelled, or whose endpoint was deleted, fails without an attempt.
  const hasFailedOtherwise =
    status === 'failed' &&
    failedAt !== null &&
    Date.parse(failedAt) > Date.parse(last?.recordedAt ?? createdAt)
  return [
    { at: createdAt, title: 'Sent' },
    ...history.map((attempt) => ({
      at: attempt.recordedAt,
      title: `Attempt ${attempt.attempt}: ${outcomeOf(attempt)}`,
      tone: attempt.errorCode === null ? ('good' as const) : ('bad' as const),
      text: attempt.error,
      details: <AttemptDetails of={attempt} />,
    })),
    ...(leaseOwner === null
      ? []
      : [
          {
            at: delivery.lastAttemptAt ?? createdAt,
            title: 'In flight',
            tone: 'busy' as const,
            ...(isPortal ? {} : { who: leaseOwner, token, until: leaseUntil }),
          },
        ]),
    ...(status === 'pending' && leaseOwner === null && Date.parse(nextAttemptAt) > databaseNow()
      ? [{ at: nextAttemptAt, title: 'Next attempt' }]
      : []),
    ...(hasFailedOtherwise
      ? [{ at: failedAt, title: 'Failed', tone: 'bad' as const, text: delivery.lastError }]
      : []),
  ]
}

type Attempt = DeliveryDetails['history'][number]

function outcomeOf({ errorCode, status }: Attempt): string {
  if (status !== null) return `HTTP ${status}`
  return errorCode ?? 'delivered'
}

function AttemptDetails({
  of: { durationMs, token, startedAt, errorCode, response },
}: {
  readonly of: Attempt
}): JSX.Element {
  return (
    <>
      <p class="hint">
        {startedAt === null
          ? 'nobody knows when it started'
          : durationMs === null
            ? ''
            : `took ${formatDuration(durationMs)}`}
        {isPortal ? '' : `, token ${token}`}
        {errorCode === null ? '' : `, ${errorCode}`}
      </p>
      {response === null || response === '' ? null : (
        <pre class="json response" tabIndex={0} aria-label="The beginning of the response">
          {response}
        </pre>
      )}
    </>
  )
}
