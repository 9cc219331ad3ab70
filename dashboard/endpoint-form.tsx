/** Creating an endpoint, and changing one: the same fields. */
import type { ComponentChildren, JSX } from 'preact'
import { useId, useState } from 'preact/hooks'
import { answer, type Answer, api } from './api.ts'
import { useAction } from './query.ts'
import { hrefOf, Link } from './router.tsx'
import { ownTenant } from './session.ts'
import { Dialog, notify, Problem, Reason } from './ui/feedback.tsx'
import { type Endpoint, ShownSecret } from './webhooks.tsx'

/** The fields as they are typed. */
interface Typed {
  readonly url: string
  readonly tenant: string
  readonly description: string
  readonly types: string
  readonly rate: string
  readonly concurrency: string
  readonly timeoutSeconds: string
  readonly ordered: boolean
  readonly signing: 'v1' | 'v1a'
  /** `Name: value`, one in each line; undefined: they stay as they are. */
  readonly headers: string | undefined
}

const NEW: Typed = {
  url: '',
  tenant: '',
  description: '',
  types: '',
  rate: '',
  concurrency: '10',
  timeoutSeconds: '15',
  ordered: false,
  signing: 'v1',
  headers: '',
}

function typedOf(endpoint: Endpoint): Typed {
  const { url, tenant, description, eventTypes, ratePerSecond, concurrency, timeoutMs, ordered, signing } =
    endpoint
  return {
    url,
    tenant,
    description,
    types: eventTypes.join(', '),
    rate: ratePerSecond === null ? '' : String(ratePerSecond),
    concurrency: String(concurrency),
    timeoutSeconds: String(timeoutMs / 1_000),
    ordered,
    signing,
    headers: undefined,
  }
}

/** What the API takes. It checks the values, and names the field that is wrong. */
function changeable({ url, description, types, rate, concurrency, timeoutSeconds, ordered, headers }: Typed) {
  return {
    url: url.trim(),
    description,
    eventTypes: types.split(/[\s,]+/).filter((type) => type !== ''),
    ratePerSecond: rate === '' ? null : Number(rate),
    concurrency: Number(concurrency),
    timeoutMs: Math.round(Number(timeoutSeconds) * 1_000),
    ordered,
    ...(headers === undefined ? {} : { headers: headersOf(headers) }),
  }
}

function headersOf(text: string): Record<string, string> {
  const lines = text.split('\n').filter((line) => line.trim() !== '')
  return Object.fromEntries(
    lines.map((line) => {
      const colon = line.includes(':') ? line.indexOf(':') : line.length
      return [line.slice(0, colon).trim(), line.slice(colon + 1).trim()]
    }),
  )
}

/** Only what was changed, so that two people who change different fields do not undo each other's change. */
function changed(before: Typed, after: Typed): Partial<ReturnType<typeof changeable>> {
  const [old, next] = [changeable(before), changeable(after)]
  return Object.fromEntries(
    Object.entries(next).filter(
      ([name, value]) =>
        name === 'headers' || JSON.stringify(value) !== JSON.stringify(old[name as keyof typeof old]),
    ),
  )
}

export function CreateEndpointDialog({
  onClose,
  onCreated,
}: {
  readonly onClose: () => void
  readonly onCreated: () => void
}): JSX.Element {
  const [typed, setTyped] = useState(NEW)
  const [created, setCreated] = useState<Answer<'postWebhooksEndpoints'>>()
  const { run, isRunning, problem } = useAction(async () => {
    const { tenant, signing } = typed
    const body = { ...changeable(typed), ...(tenant === '' ? {} : { tenant }), signing }
    setCreated(await answer(api.POST('/webhooks/endpoints', { body })))
    onCreated()
  })
  if (created !== undefined)
    return (
      <Dialog title="The endpoint was created" onClose={onClose}>
        <ShownSecret of={created} />
        <footer>
          <Link href={hrefOf(`/webhooks/endpoints/${created.id}`)}>Open the endpoint</Link>
          <button type="button" class="primary" onClick={onClose}>
            Done
          </button>
        </footer>
      </Dialog>
    )
  return (
    <Dialog title="New endpoint" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          run()
        }}
      >
        <Fields typed={typed} onChange={setTyped} isNew />
        <Problem of={problem} />
        <Buttons label="Create" isRunning={isRunning} onClose={onClose} />
      </form>
    </Dialog>
  )
}

export function EditEndpointDialog({
  endpoint,
  onClose,
  onChanged,
}: {
  readonly endpoint: Endpoint
  readonly onClose: () => void
  readonly onChanged: () => void
}): JSX.Element {
  const [before] = useState(() => typedOf(endpoint))
  const [typed, setTyped] = useState(before)
  const [reason, setReason] = useState('')
  const { run, isRunning, problem } = useAction(async () => {
    const body = { ...changed(before, typed), reason: reason.trim() }
    const { headersRemoved } = await answer(
      api.PATCH('/webhooks/endpoints/{id}', { params: { path: { id: endpoint.id } }, body }),
    )
    notify(
      headersRemoved.length === 0
        ? 'The endpoint was changed.'
        : 'The endpoint was changed. Its headers were removed, because the URL leads to another server.',
    )
    onChanged()
    onClose()
  })
  return (
    <Dialog title="Change the endpoint" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          run()
        }}
      >
        <Fields typed={typed} onChange={setTyped} headerNames={Object.keys(endpoint.headers)} />
        <Reason value={reason} onChange={setReason} />
        <Problem of={problem} />
        <Buttons label="Change" isRunning={isRunning} onClose={onClose} />
      </form>
    </Dialog>
  )
}

function Buttons({
  label,
  isRunning,
  onClose,
}: {
  readonly label: string
  readonly isRunning: boolean
  readonly onClose: () => void
}): JSX.Element {
  return (
    <footer>
      <button type="button" onClick={onClose}>
        Cancel
      </button>
      <button type="submit" class="primary" disabled={isRunning}>
        {isRunning ? 'Working…' : label}
      </button>
    </footer>
  )
}

function Fields({
  typed,
  onChange,
  isNew = false,
  headerNames = [],
}: {
  readonly typed: Typed
  readonly onChange: (typed: Typed) => void
  readonly isNew?: boolean
  readonly headerNames?: readonly string[]
}): JSX.Element {
  const id = useId()
  const text = (name: keyof Typed) => ({
    id: `${id}-${name}`,
    value: String(typed[name]),
    autoComplete: 'off',
    onInput: (event: { readonly currentTarget: HTMLInputElement }) =>
      onChange({ ...typed, [name]: event.currentTarget.value }),
  })
  const field = (name: keyof Typed, label: string, input: ComponentChildren) => (
    <p class="field">
      <label htmlFor={`${id}-${name}`}>{label}</label>
      {input}
    </p>
  )
  return (
    <>
      {field(
        'url',
        'URL, to which events are POSTed',
        <input {...text('url')} type="url" required placeholder="https://example.com/webhooks" />,
      )}
      {isNew && ownTenant() === null
        ? field('tenant', 'Tenant', <input {...text('tenant')} placeholder="the default tenant" />)
        : null}
      {field(
        'types',
        'Event types, separated by commas',
        <input {...text('types')} placeholder="all; order.paid, invoice.*" spellcheck={false} />,
      )}
      {field('description', 'Description', <input {...text('description')} maxLength={1_000} />)}
      <details class="more-fields">
        <summary>Limits, order, headers{isNew ? ', signature' : ''}</summary>
        <div class="three">
          {field(
            'rate',
            'Per second at most',
            <input {...text('rate')} type="number" min={0} step="any" placeholder="no limit" />,
          )}
          {field(
            'concurrency',
            'At a time at most',
            <input {...text('concurrency')} type="number" min={1} required />,
          )}
          {field(
            'timeoutSeconds',
            'Timeout, seconds',
            <input {...text('timeoutSeconds')} type="number" min={0.001} max={300} step="any" required />,
          )}
        </div>
        <label class="check">
          <input
            type="checkbox"
            checked={typed.ordered}
            onChange={(event) => onChange({ ...typed, ordered: event.currentTarget.checked })}
          />{' '}
          Events of one ordering key one at a time, in the order sent
        </label>
        {isNew
          ? field(
              'signing',
              'Signature',
              <select
                id={`${id}-signing`}
                value={typed.signing}
                onChange={(event) =>
                  onChange({ ...typed, signing: event.currentTarget.value === 'v1a' ? 'v1a' : 'v1' })
                }
              >
                <option value="v1">v1: HMAC-SHA256, with a shared secret</option>
                <option value="v1a">v1a: ed25519, with a public key</option>
              </select>,
            )
          : null}
        {isNew ? null : (
          <label class="check">
            <input
              type="checkbox"
              checked={typed.headers !== undefined}
              onChange={(event) =>
                onChange({ ...typed, headers: event.currentTarget.checked ? '' : undefined })
              }
            />{' '}
            Replace all headers (now: {headerNames.length === 0 ? 'none' : headerNames.join(', ')})
          </label>
        )}
        {typed.headers === undefined
          ? null
          : field(
              'headers',
              'Headers that are sent as well, one in each line; stored encrypted',
              <textarea
                id={`${id}-headers`}
                rows={3}
                spellcheck={false}
                placeholder="Authorization: Bearer …"
                value={typed.headers}
                onInput={(event) => onChange({ ...typed, headers: event.currentTarget.value })}
              />,
            )}
      </details>
    </>
  )
}
