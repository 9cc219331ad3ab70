/** One endpoint: how it is doing, what it is told, and what can be done about it. */
import type { JSX } from 'preact'
import { useId, useState } from 'preact/hooks'
import { answer, type Answer, api } from '../api.ts'
import { BulkDialog } from '../bulk-change.tsx'
import { databaseNow } from '../clock.ts'
import { isPortal } from '../config.ts'
import { EditEndpointDialog } from '../endpoint-form.tsx'
import { formatCount, formatDuration } from '../format.ts'
import { useAction, useQuery } from '../query.ts'
import { hrefOf, Link, navigate } from '../router.tsx'
import { may, ownTenant } from '../session.ts'
import { Chart } from '../ui/charts.tsx'
import { ChangeButton, Dialog, notify, Problem, Reading, Reason } from '../ui/feedback.tsx'
import { fromLocal, toLocal } from '../ui/filters.tsx'
import { type Column, Table } from '../ui/table.tsx'
import { Copyable, ExactTime, Facts, None, Time } from '../ui/values.tsx'
import {
  deliveryColumns,
  EndpointState,
  EndpointTrouble,
  ShownSecret,
  stateOf,
  Tenant,
  typesText,
} from '../webhooks.tsx'

type Endpoint = Answer<'getWebhooksEndpointsById'>
type Health = Answer<'getWebhooksEndpointsByIdHealth'>

const HEALTH_EVERY_MS = 10_000
const RECENT = 10

export function EndpointPage({ id }: { readonly id: string }): JSX.Element {
  const path = { id }
  const { data, problem, refresh } = useQuery(`endpoint ${id}`, async (signal) =>
    answer(api.GET('/webhooks/endpoints/{id}', { params: { path }, signal })),
  )
  const health = useQuery(
    `health ${id}`,
    async (signal) => answer(api.GET('/webhooks/endpoints/{id}/health', { params: { path }, signal })),
    { everyMs: HEALTH_EVERY_MS },
  )
  if (data === undefined) return problem === undefined ? <Reading /> : <Problem of={problem} />
  return (
    <>
      <header class="page-header">
        <h1>
          <Link href={hrefOf('/webhooks')}>Webhooks</Link> / {data.url}
        </h1>
        <EndpointState of={data} />
      </header>
      <Problem of={problem} />
      <EndpointTrouble of={data} />
      {may('operate') ? <Actions endpoint={data} onDone={refresh} /> : null}
      {health.data === undefined ? <Problem of={health.problem} /> : <Charts of={health.data} />}
      <div class="columns">
        <section class="panel" aria-labelledby="facts">
          <h2 id="facts">Endpoint</h2>
          <EndpointFacts endpoint={data} />
        </section>
        <section class="panel" aria-labelledby="failures">
          <h2 id="failures">Last failed attempts</h2>
          <Failures of={health.data} />
        </section>
      </div>
      <RecentDeliveries id={id} />
    </>
  )
}

function EndpointFacts({ endpoint }: { readonly endpoint: Endpoint }): JSX.Element {
  const { ratePerSecond, headers, publicKey, previousSecretUntil } = endpoint
  const names = Object.keys(headers)
  return (
    <Facts
      of={[
        ['Id', <Copyable key="id" text={endpoint.id} label="the id" />],
        ownTenant() === null && ['Tenant', <Tenant key="tenant" of={endpoint.tenant} />],
        endpoint.description !== '' && ['Description', endpoint.description],
        ['Event types', typesText(endpoint.eventTypes)],
        ['Rate', ratePerSecond === null ? 'no limit' : `at most ${ratePerSecond} per second`],
        ['Concurrency', `at most ${formatCount(endpoint.concurrency)} at a time`],
        ['Timeout', `${formatDuration(endpoint.timeoutMs)} for each attempt`],
        ['Order', endpoint.ordered ? 'one at a time for each ordering key' : 'none'],
        ['Headers', names.length === 0 ? 'none' : `${names.join(', ')} (their values are hidden)`],
        ['Signature', endpoint.signing],
        publicKey !== null && ['Public key', <Copyable key="key" text={publicKey} label="the public key" />],
        previousSecretUntil !== null && [
          'Old secret',
          <>
            valid until <ExactTime at={previousSecretUntil} /> (<Time at={previousSecretUntil} />)
          </>,
        ],
        ['Created', <ExactTime key="at" at={endpoint.createdAt} />],
        ['Changed', <ExactTime key="at" at={endpoint.updatedAt} />],
      ]}
    />
  )
}

// What can be done

type Asked = 'edit' | 'rotate' | 'recover'

function Actions({
  endpoint,
  onDone,
}: {
  readonly endpoint: Endpoint
  readonly onDone: () => void
}): JSX.Element {
  const [asked, setAsked] = useState<Asked>()
  const close = (): void => setAsked(undefined)
  const { id } = endpoint
  const params = { path: { id } }
  const state = stateOf(endpoint, databaseNow())
  return (
    <>
      <div class="actions">
        <TestEvent id={id} />
        <button type="button" onClick={() => setAsked('edit')}>
          Change…
        </button>
        <button type="button" onClick={() => setAsked('rotate')}>
          Rotate secret…
        </button>
        <button type="button" onClick={() => setAsked('recover')}>
          Recover…
        </button>
        {state === 'ok' ? null : (
          <ChangeButton
            label="Enable"
            isPrimary
            explanation={
              <p>
                {state === 'disabled' ? 'It gets events again, and what waits is sent.' : ''} What is due is
                attempted at once.
              </p>
            }
            act={async (reason) => {
              await answer(api.POST('/webhooks/endpoints/{id}/enable', { params, body: { reason } }))
              notify('The endpoint is enabled.')
              onDone()
            }}
          />
        )}
        {state === 'disabled' ? null : (
          <ChangeButton
            label="Disable"
            tone="bad"
            explanation={
              <p>
                Nothing new is sent to it: what happens while it is disabled, it never gets. What was sent
                before waits until it is enabled.
              </p>
            }
            act={async (reason) => {
              await answer(api.POST('/webhooks/endpoints/{id}/disable', { params, body: { reason } }))
              notify('The endpoint is disabled.')
              onDone()
            }}
          />
        )}
        <ChangeButton
          label="Delete"
          tone="bad"
          explanation={
            <p>
              The endpoint is gone for good, with its secret. Deliveries that wait for it fail within a minute
              or so.
            </p>
          }
          act={async (reason) => {
            await answer(api.DELETE('/webhooks/endpoints/{id}', { params: { ...params, query: { reason } } }))
            notify('The endpoint was deleted.')
            navigate(hrefOf('/webhooks'))
          }}
        />
      </div>
      {asked === 'edit' ? (
        <EditEndpointDialog endpoint={endpoint} onClose={close} onChanged={onDone} />
      ) : asked === 'rotate' ? (
        <RotateDialog endpoint={endpoint} onClose={close} onRotated={onDone} />
      ) : asked === 'recover' ? (
        <RecoverDialog endpoint={endpoint} onClose={close} />
      ) : null}
    </>
  )
}

/** Nothing is lost by it, so that it asks nothing. */
function TestEvent({ id }: { readonly id: string }): JSX.Element {
  const [sent, setSent] = useState<string>()
  const { run, isRunning, problem } = useAction(async () => {
    const delivery = await answer(
      api.POST('/webhooks/endpoints/{id}/test', { params: { path: { id } }, body: {} }),
    )
    setSent(delivery.id)
  })
  return (
    <>
      <button type="button" class="primary" disabled={isRunning} onClick={() => run()}>
        Send a test event
      </button>
      {sent === undefined ? null : (
        <span role="status">
          Sent: <Link href={hrefOf(`/webhooks/deliveries/${sent}`)}>delivery {sent}</Link>
        </span>
      )}
      <Problem of={problem} />
    </>
  )
}

const DAY_HOURS = 24

function RotateDialog({
  endpoint: { id },
  onClose,
  onRotated,
}: {
  readonly endpoint: Endpoint
  readonly onClose: () => void
  readonly onRotated: () => void
}): JSX.Element {
  const [hours, setHours] = useState(String(DAY_HOURS))
  const [reason, setReason] = useState('')
  const [rotated, setRotated] = useState<Answer<'postWebhooksEndpointsByIdRotateSecret'>>()
  const hoursId = useId()
  const { run, isRunning, problem } = useAction(async () => {
    const body = { keepOldForMs: Math.round(Number(hours) * 3_600_000), reason: reason.trim() }
    setRotated(
      await answer(api.POST('/webhooks/endpoints/{id}/rotate-secret', { params: { path: { id } }, body })),
    )
    onRotated()
  })
  if (rotated !== undefined)
    return (
      <Dialog title="The new secret" onClose={onClose}>
        <ShownSecret of={rotated} />
        <footer>
          <button type="button" class="primary" onClick={onClose}>
            Done
          </button>
        </footer>
      </Dialog>
    )
  return (
    <Dialog title="Rotate the secret" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          run()
        }}
      >
        <p class="explanation">
          The endpoint gets a new secret. For a while deliveries are signed with the old one as well, so that
          the receiver can change over without losing any.
        </p>
        <p class="field">
          <label htmlFor={hoursId}>The old one is valid for so many hours; 0 if it has leaked</label>
          <input
            id={hoursId}
            type="number"
            min={0}
            step="any"
            required
            value={hours}
            onInput={(event) => setHours(event.currentTarget.value)}
          />
        </p>
        <Reason value={reason} onChange={setReason} />
        <Problem of={problem} />
        <footer>
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={isRunning}>
            Rotate
          </button>
        </footer>
      </form>
    </Dialog>
  )
}

const DAY_MS = 86_400_000

/** Replays everything that has failed at the endpoint since a time. */
function RecoverDialog({
  endpoint: { id, failingSince },
  onClose,
}: {
  readonly endpoint: Endpoint
  readonly onClose: () => void
}): JSX.Element {
  const [since, setSince] = useState(() => failingSince ?? new Date(databaseNow() - DAY_MS).toISOString())
  const sinceId = useId()
  return (
    <BulkDialog
      list="/webhooks/deliveries"
      rows="failed deliveries"
      action={{ action: 'replay', label: 'Replay', only: 'Nothing has failed since then.' }}
      chosen={{ filter: { endpoint: id, failedSince: since } }}
      onClose={onClose}
    >
      <p class="field">
        <label htmlFor={sinceId}>Everything that has failed since</label>
        <input
          id={sinceId}
          type="datetime-local"
          step={1}
          required
          value={toLocal(since)}
          onInput={(event) => {
            const typed = fromLocal(event.currentTarget.value)
            if (typed !== '') setSince(typed)
          }}
        />
      </p>
    </BulkDialog>
  )
}

// How it is doing

function Charts({ of: { hours, partial } }: { readonly of: Health }): JSX.Element {
  const times = hours.map(({ from }) => Date.parse(from))
  return (
    <>
      <div class="charts">
        <Chart
          title="Attempts per hour, last 24 h"
          times={times}
          lines={[
            {
              label: 'delivered',
              color: '--line-1',
              values: hours.map(({ delivered }) => delivered),
            },
            { label: 'failed', color: '--line-3', values: hours.map(({ failed }) => failed) },
          ]}
          format={(value) => (Number.isInteger(value) ? formatCount(value) : '')}
        />
        <Chart
          title="Duration of an attempt"
          times={times}
          lines={[{ label: 'median', color: '--line-2', values: hours.map(({ medianMs }) => medianMs) }]}
          format={formatDuration}
        />
      </div>
      {partial ? (
        <p class="hint">Only the newest deliveries are counted; there may have been more attempts.</p>
      ) : null}
    </>
  )
}

const FAILURES: readonly Column<Health['failures'][number]>[] = [
  { title: 'When', cell: ({ at }) => <Time at={at} /> },
  {
    title: 'Delivery',
    align: 'right',
    cell: ({ deliveryId }) => (
      <Link class="number" href={hrefOf(`/webhooks/deliveries/${deliveryId}`)}>
        {deliveryId}
      </Link>
    ),
  },
  { title: 'HTTP', align: 'right', cell: ({ status }) => status ?? <None /> },
  { title: 'Error', grows: true, cell: ({ errorCode }) => errorCode },
]

function Failures({ of }: { readonly of: Health | undefined }): JSX.Element {
  if (of === undefined) return <Reading />
  if (of.failures.length === 0) return <p class="hint">None in the last 24 hours.</p>
  return (
    <Table
      caption="The last attempts that failed"
      columns={FAILURES}
      rows={of.failures}
      idOf={({ deliveryId, at }) => `${deliveryId} ${at}`}
    />
  )
}

function RecentDeliveries({ id }: { readonly id: string }): JSX.Element {
  const query = { endpoint: id, limit: RECENT }
  const { data, problem } = useQuery(`deliveries of ${id}`, async (signal) =>
    answer(api.GET('/webhooks/deliveries', { params: { query }, signal })),
  )
  return (
    <section class="panel" aria-labelledby="recent">
      <h2 id="recent">
        <Link href={hrefOf('/webhooks/deliveries', { endpoint: id })}>Newest deliveries</Link>
      </h2>
      <Problem of={problem} />
      {data === undefined ? (
        problem === undefined ? (
          <Reading />
        ) : null
      ) : data.items.length === 0 ? (
        <p class="hint">
          {isPortal
            ? 'Nothing was sent to it yet. Send a test event to try it.'
            : 'Nothing was sent to it lately.'}
        </p>
      ) : (
        <Table
          caption="The newest deliveries of this endpoint"
          columns={deliveryColumns('endpoint')}
          rows={data.items}
          idOf={(delivery) => delivery.id}
          hrefOf={(delivery) => hrefOf(`/webhooks/deliveries/${delivery.id}`)}
          toneOf={({ status }) => (status === 'failed' ? 'bad' : undefined)}
        />
      )}
    </section>
  )
}
