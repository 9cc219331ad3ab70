/** The keys of the HTTP API: who has one, what it opens, and when it was used. */
import type { JSX } from 'preact'
import { useId, useState } from 'preact/hooks'
import { answer, type Answer, api, type ItemOf } from '../api.ts'
import { databaseNow } from '../clock.ts'
import { useAction, useQuery } from '../query.ts'
import { may } from '../session.ts'
import { ChangeButton, Dialog, Empty, notify, Problem, Reading, Sample } from '../ui/feedback.tsx'
import { type Column, Table } from '../ui/table.tsx'
import { Copyable, None, State, Time } from '../ui/values.tsx'

type Key = ItemOf<'getKeys'>

export function KeysPage(): JSX.Element {
  const { data, problem, refresh } = useQuery('keys of the API', async (signal) =>
    answer(api.GET('/keys', { signal })),
  )
  const columns: readonly Column<Key>[] = [
    { title: 'Name', grows: true, cell: ({ name }) => name },
    { title: 'Role', cell: ({ role }) => role },
    { title: 'Tenant', cell: ({ tenant }) => tenant ?? <span class="hint">all</span> },
    { title: 'State', cell: (key) => <KeyState of={key} /> },
    {
      title: 'Created',
      cell: ({ createdAt, createdBy }) => (
        <>
          <Time at={createdAt} /> by {createdBy}
        </>
      ),
    },
    {
      title: 'Last used',
      cell: ({ lastUsedAt }) =>
        lastUsedAt === null ? <span class="hint">never</span> : <Time at={lastUsedAt} />,
    },
    {
      title: 'Expires',
      cell: ({ expiresAt }) =>
        expiresAt === null ? <span class="hint">never</span> : <Time at={expiresAt} />,
    },
    ...(may('admin') ? [{ title: 'Action', cell: (key: Key) => <Revoke of={key} onDone={refresh} /> }] : []),
  ]
  return (
    <>
      <header class="page-header">
        <h1>Keys</h1>
        {may('admin') ? <Create onDone={refresh} /> : null}
      </header>
      <Problem of={problem} />
      {data === undefined ? (
        problem === undefined ? (
          <Reading />
        ) : null
      ) : data.items.length === 0 ? (
        <NoKeys />
      ) : (
        <Table
          caption="Keys of the HTTP API, the newest first"
          columns={columns}
          rows={data.items}
          idOf={({ id }) => id}
        />
      )}
    </>
  )
}

function KeyState({ of }: { readonly of: Key }): JSX.Element {
  if (of.revokedAt === null) return <State of={of.state} tone={of.state === 'valid' ? 'good' : undefined} />
  return (
    <>
      <State of="revoked" tone="bad" />{' '}
      <span class="hint">
        <Time at={of.revokedAt} />
        {of.revokedBy === null ? '' : ` by ${of.revokedBy}`}
      </span>
    </>
  )
}

function Revoke({ of, onDone }: { readonly of: Key; readonly onDone: () => void }): JSX.Element {
  const { id, name, revokedAt } = of
  if (revokedAt !== null) return <None />
  return (
    <ChangeButton
      label="Revoke"
      tone="bad"
      isSmall
      asksReason={false}
      explanation={
        <p>
          The key <b>{name}</b> opens nothing from now on, and its sessions end at once. This cannot be
          undone, and its name is not used again. Changes of many rows that it has started are cancelled.
        </p>
      }
      act={async () => {
        await answer(api.DELETE('/keys/{id}', { params: { path: { id } } }))
        notify(`The key ${name} is revoked.`)
        onDone()
      }}
    />
  )
}

function Create({ onDone }: { readonly onDone: () => void }): JSX.Element {
  const [isOpen, setOpen] = useState(false)
  return (
    <>
      <button type="button" class="primary" onClick={() => setOpen(true)}>
        Create a key
      </button>
      {isOpen ? <CreateDialog onCreated={onDone} onClose={() => setOpen(false)} /> : null}
    </>
  )
}

const ROLES = [
  ['read', 'read: sees everything, changes nothing'],
  ['operate', 'operate: also replays, retries, pauses, changes endpoints'],
  ['admin', 'admin: also creates and revokes keys'],
] as const

const DAY_MS = 86_400_000
const LIFETIMES = [
  ['30', 'after 30 days'],
  ['90', 'after 90 days'],
  ['365', 'after a year'],
  ['', 'never'],
] as const

function CreateDialog({
  onCreated,
  onClose,
}: {
  readonly onCreated: () => void
  readonly onClose: () => void
}): JSX.Element {
  const [name, setName] = useState('')
  const [role, setRole] = useState<Key['role']>('read')
  const [tenant, setTenant] = useState('')
  const [days, setDays] = useState<string>('90')
  const [created, setCreated] = useState<Answer<'postKeys'>>()
  const id = useId()
  const { run, isRunning, problem } = useAction(async () => {
    const given = await answer(
      api.POST('/keys', {
        body: {
          name: name.trim(),
          role,
          ...(tenant.trim() === '' ? {} : { tenant: tenant.trim() }),
          ...(days === ''
            ? {}
            : { expiresAt: new Date(databaseNow() + Number(days) * DAY_MS).toISOString() }),
        },
      }),
    )
    setCreated(given)
    onCreated()
  })
  if (created !== undefined) return <CreatedDialog of={created} onClose={onClose} />
  const submit = (event: Event): void => {
    event.preventDefault()
    run()
  }
  return (
    <Dialog title="Create a key" onClose={onClose}>
      <form onSubmit={submit}>
        <p class="field">
          <label htmlFor={`${id}-name`}>Name, for the audit</label>
          <input
            id={`${id}-name`}
            value={name}
            required
            maxLength={100}
            autoFocus
            autoComplete="off"
            placeholder="ada-laptop"
            onInput={(event) => setName(event.currentTarget.value)}
          />
        </p>
        <p class="field">
          <label htmlFor={`${id}-role`}>What it may do</label>
          <select
            id={`${id}-role`}
            value={role}
            onChange={(event) =>
              setRole(ROLES.find(([each]) => each === event.currentTarget.value)?.[0] ?? 'read')
            }
          >
            {ROLES.map(([each, text]) => (
              <option key={each} value={each}>
                {text}
              </option>
            ))}
          </select>
        </p>
        <p class="field">
          <label htmlFor={`${id}-tenant`}>Only for one tenant</label>
          <input
            id={`${id}-tenant`}
            value={tenant}
            autoComplete="off"
            placeholder="all tenants"
            onInput={(event) => setTenant(event.currentTarget.value)}
          />
        </p>
        <p class="field">
          <label htmlFor={`${id}-expires`}>Expires</label>
          <select id={`${id}-expires`} value={days} onChange={(event) => setDays(event.currentTarget.value)}>
            {LIFETIMES.map(([each, text]) => (
              <option key={each} value={each}>
                {text}
              </option>
            ))}
          </select>
        </p>
        <Problem of={problem} />
        <footer>
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={isRunning}>
            Create
          </button>
        </footer>
      </form>
    </Dialog>
  )
}

function CreatedDialog({
  of: { name, key },
  onClose,
}: {
  readonly of: Answer<'postKeys'>
  readonly onClose: () => void
}): JSX.Element {
  return (
    <Dialog title={`The key ${name}`} onClose={onClose}>
      {key === undefined ? (
        <p>
          The key was created by a request before this one, and is not shown again. Revoke it and create
          another.
        </p>
      ) : (
        <>
          <p>Copy it now: it is shown only this once. The database has only its SHA-256.</p>
          <div class="command new-key">
            <Copyable text={key} label="the key" />
          </div>
        </>
      )}
      <footer>
        <button type="button" class="primary" onClick={onClose}>
          Done
        </button>
      </footer>
    </Dialog>
  )
}

function NoKeys(): JSX.Element {
  return (
    <Empty title="There is no key yet.">
      <p>
        People sign in to these pages with a key, and programs send one with each request. Create one here, or
        on the command line:
      </p>
      <Sample>{`leasehold keys create ada-laptop --role operate --expires 90d`}</Sample>
    </Empty>
  )
}
