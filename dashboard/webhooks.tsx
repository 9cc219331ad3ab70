/** What the pages of webhooks share: the state of an endpoint, a secret that is shown once, deliveries as rows. */
import type { JSX } from 'preact'
import type { Answer, ItemOf } from './api.ts'
import { useNow } from './clock.ts'
import { isPortal } from './config.ts'
import { formatCount, formatDuration } from './format.ts'
import { hrefOf, Link, useAddress } from './router.tsx'
import { may, ownTenant } from './session.ts'
import type { Column } from './ui/table.tsx'
import { Copyable, ExactTime, None, State, Time, type Tone } from './ui/values.tsx'

export type Endpoint = ItemOf<'getWebhooksEndpoints'>
export type Delivery = ItemOf<'getWebhooksDeliveries'>
export type DeliveryDetails = Answer<'getWebhooksDeliveriesById'>

/** The two lists. */
export function WebhookTabs(): JSX.Element {
  const { path } = useAddress()
  const tabs = [
    ['/webhooks', 'Endpoints'],
    ['/webhooks/deliveries', 'Deliveries'],
  ] as const
  return (
    <nav class="tabs" aria-label="Webhooks">
      {tabs.map(([to, title]) => (
        <Link key={to} href={hrefOf(to)} aria-current={path === to ? 'page' : undefined}>
          {title}
        </Link>
      ))}
    </nav>
  )
}

// Endpoints

type EndpointStateName = 'ok' | 'disabled' | 'open' | 'probing'

export function stateOf(
  { enabled, failingSince, openUntil }: Pick<Endpoint, 'enabled' | 'failingSince' | 'openUntil'>,
  now: number,
): EndpointStateName {
  if (!enabled) return 'disabled'
  if (failingSince === null) return 'ok'
  return openUntil !== null && Date.parse(openUntil) > now ? 'open' : 'probing'
}

/** The customers of a portal have never heard of circuits. */
const WORDS: Readonly<Record<EndpointStateName, string>> = isPortal
  ? { ok: 'ok', disabled: 'disabled', open: 'failing, paused', probing: 'failing, trying again' }
  : { ok: 'ok', disabled: 'disabled', open: 'circuit open', probing: 'probing' }

const TONES: Readonly<Record<EndpointStateName, Tone>> = {
  ok: 'good',
  disabled: 'warning',
  open: 'bad',
  probing: 'warning',
}

export function EndpointState({ of }: { readonly of: Endpoint }): JSX.Element {
  const state = stateOf(of, useNow())
  return (
    <span class="endpoint-state">
      <State of={WORDS[state]} tone={TONES[state]} />{' '}
      {state === 'open' ? (
        <span class="hint">
          tried again <Time at={of.openUntil} />
        </span>
      ) : state === 'disabled' ? (
        <span class="hint">{of.disabledReason}</span>
      ) : null}
    </span>
  )
}

/** What keeps deliveries from the endpoint, in a sentence or two. */
export function EndpointTrouble({ of }: { readonly of: Endpoint }): JSX.Element | null {
  const state = stateOf(of, useNow())
  if (state === 'ok') return null
  const { failures, failingSince, openUntil, disabledAt, disabledReason } = of
  const failing = (
    <>
      {formatCount(failures)} {failures === 1 ? 'attempt has' : 'attempts in a row have'} failed, and nothing
      has arrived since <ExactTime at={failingSince} />.
    </>
  )
  return (
    <section class={`panel trouble ${TONES[state]}`} aria-label="What is wrong with this endpoint">
      {state === 'disabled' ? (
        <p>
          It has been disabled since <ExactTime at={disabledAt} />
          {disabledReason === null ? '' : `: ${disabledReason}`}. Nothing new is sent to it, and what was sent
          before waits until it is enabled.
        </p>
      ) : state === 'open' ? (
        <p>
          {isPortal ? 'Deliveries are paused' : 'The circuit is open'}: {failing} Nothing is attempted before{' '}
          <ExactTime at={openUntil} /> (<Time at={openUntil} />
          ); then one delivery shows whether it is back.{' '}
          {may('operate')
            ? isPortal
              ? 'Enable it to try at once.'
              : 'Enabling it closes the circuit at once.'
            : ''}
        </p>
      ) : (
        <p>
          {isPortal ? 'It is tried again' : 'The circuit is half-open'}: {failing} The next delivery shows
          whether it is back.
        </p>
      )}
    </section>
  )
}

export function typesText(types: readonly string[]): string {
  return types.length === 0 ? 'all' : types.join(', ')
}

export function limitsText({ ratePerSecond, concurrency, timeoutMs }: Endpoint): string {
  const rate = ratePerSecond === null ? '' : `${ratePerSecond}/s, `
  return `${rate}${formatCount(concurrency)} at a time, ${formatDuration(timeoutMs)}`
}

/** A secret that the API shows once. */
export function ShownSecret({
  of: { secret, publicKey, previousSecretUntil },
}: {
  readonly of: {
    readonly secret?: string | undefined
    readonly publicKey: string | null
    readonly previousSecretUntil: string | null
  }
}): JSX.Element {
  return (
    <div class="shown-once">
      {secret === undefined ? (
        <p>The secret was shown before, and is not shown again. Rotate it if nobody has it.</p>
      ) : (
        <>
          <p>
            The secret, with which {publicKey === null ? 'the receiver verifies' : 'deliveries are signed'}.{' '}
            <b>It is shown only now.</b>
          </p>
          <div class="command secret">
            <Copyable text={secret} label="the secret" />
          </div>
        </>
      )}
      {publicKey === null ? null : (
        <>
          <p>The public key, with which the receiver verifies:</p>
          <div class="command">
            <Copyable text={publicKey} label="the public key" />
          </div>
        </>
      )}
      {previousSecretUntil === null ? null : (
        <p>
          Until <ExactTime at={previousSecretUntil} /> (<Time at={previousSecretUntil} />) deliveries are
          signed with the old one as well, so that receivers can change over.
        </p>
      )}
    </div>
  )
}

// Deliveries

/** What is happening to a delivery, or has. */
function Happens({ delivery }: { readonly delivery: Delivery }): JSX.Element {
  const { status, deliveredAt, failedAt, leaseOwner, attempts, nextAttemptAt, lastError, lastErrorCode } =
    delivery
  const error = lastError ?? lastErrorCode
  if (status === 'delivered')
    return (
      <>
        delivered <Time at={deliveredAt} />
      </>
    )
  if (status === 'failed')
    return (
      <>
        <Time at={failedAt} />: {error ?? <None />}
      </>
    )
  if (leaseOwner !== null) return <>{isPortal ? 'is being sent' : `at ${leaseOwner}`}</>
  if (attempts === 0) return <>waits to be sent</>
  return (
    <>
      next attempt <Time at={nextAttemptAt} />
      {error === null ? '' : `: ${error}`}
    </>
  )
}

/** `of: 'endpoint'`: of one endpoint, which needs no column then. */
export function deliveryColumns(of: 'all' | 'endpoint'): readonly Column<Delivery>[] {
  return [
    {
      title: 'Id',
      align: 'right',
      cell: ({ id }) => (
        <Link class="number" href={hrefOf(`/webhooks/deliveries/${id}`)}>
          {id}
        </Link>
      ),
    },
    { title: 'State', cell: ({ status }) => <State of={status} /> },
    { title: 'Type', cell: ({ type }) => type },
    ...(of === 'endpoint'
      ? []
      : [
          {
            title: 'Endpoint',
            cell: ({ endpointId, endpointUrl }: Delivery) => (
              <Link href={hrefOf(`/webhooks/endpoints/${endpointId}`)} class="url">
                {endpointUrl ?? 'deleted'}
              </Link>
            ),
          },
          ...(ownTenant() === null
            ? [{ title: 'Tenant', cell: ({ tenant }: Delivery) => <Tenant of={tenant} /> }]
            : []),
        ]),
    { title: 'Failed', align: 'right', cell: ({ attempts }) => attempts },
    { title: 'HTTP', align: 'right', cell: ({ lastStatus }) => lastStatus ?? <None /> },
    { title: 'Sent', cell: ({ createdAt }) => <Time at={createdAt} /> },
    { title: 'What happens', grows: true, cell: (delivery) => <Happens delivery={delivery} /> },
  ]
}

export function Tenant({ of }: { readonly of: string | null }): JSX.Element {
  return of === null || of === '' ? <None /> : <>{of}</>
}
