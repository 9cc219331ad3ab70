/** Ordering keys that an event holds up: which event, why, and how many wait behind it. */
import type { JSX } from 'preact'
import { useState } from 'preact/hooks'
import { answer, api, type ItemOf } from '../api.ts'
import { formatCount } from '../format.ts'
import { useQuery } from '../query.ts'
import { hrefOf, Link } from '../router.tsx'
import { may } from '../session.ts'
import { ChangeButton, Empty, notify, Problem, Reading } from '../ui/feedback.tsx'
import { type Column, Table } from '../ui/table.tsx'
import { None, State, Time } from '../ui/values.tsx'

type HeldUpKey = ItemOf<'getOutboxKeys'>

/** Counting stops here. */
const MOST_WAITING = 1_000

export function HeldUpKeysPage(): JSX.Element {
  const { data, problem, refresh } = useQuery('keys', async (signal) =>
    answer(api.GET('/outbox/keys', { params: { query: { limit: 200 } }, signal })),
  )
  const columns: readonly Column<HeldUpKey>[] = [
    {
      title: 'Key',
      cell: ({ orderingKey }) => <Link href={hrefOf('/outbox', { orderingKey })}>{orderingKey}</Link>,
    },
    { title: 'State', cell: ({ state }) => <State of={state} /> },
    {
      title: 'Held up by',
      cell: ({ id, type }) => (
        <>
          <Link class="number" href={hrefOf(`/outbox/events/${id}`)}>
            {id}
          </Link>{' '}
          {type}
        </>
      ),
    },
    {
      title: 'Waiting',
      align: 'right',
      cell: ({ waiting }) => `${formatCount(waiting)}${waiting >= MOST_WAITING ? '+' : ''}`,
    },
    { title: 'Failed', align: 'right', cell: ({ attempts }) => attempts },
    {
      title: 'Next attempt',
      cell: ({ state, availableAt }) => (state === 'parked' ? 'after unblocking' : <Time at={availableAt} />),
    },
    { title: 'Error', grows: true, cell: ({ lastError }) => lastError ?? <None /> },
    ...(may('operate')
      ? [{ title: 'Action', cell: (key: HeldUpKey) => <Unblock of={key} onDone={refresh} isSmall /> }]
      : []),
  ]
  return (
    <>
      <header class="page-header">
        <h1>Keys that are held up</h1>
        <Link href={hrefOf('/outbox')}>Events</Link>
      </header>
      <Problem of={problem} />
      {data === undefined ? (
        problem === undefined ? (
          <Reading />
        ) : null
      ) : data.items.length === 0 ? (
        <Empty title="No key is held up.">
          <p>
            Events of one ordering key are published one at a time. If one fails, the later ones wait for it;
            keys for which that is so are listed here.
          </p>
        </Empty>
      ) : (
        <Table
          caption="Keys that are held up"
          columns={columns}
          rows={data.items}
          idOf={(key) => key.orderingKey}
        />
      )}
      {data?.more === true || data?.partial === true ? (
        <p class="hint">There are more; not all are shown.</p>
      ) : null}
    </>
  )
}

/** Lets a key go on: with the event that holds it up, or without it. */
export function Unblock({
  of: { orderingKey, id, state },
  onDone,
  isSmall = false,
}: {
  readonly of: Pick<HeldUpKey, 'orderingKey' | 'id' | 'state'>
  readonly onDone: () => void
  readonly isSmall?: boolean
}): JSX.Element {
  const [replay, setReplay] = useState(true)
  return (
    <ChangeButton
      label="Unblock"
      isSmall={isSmall}
      explanation={
        <>
          <p>
            Event {id} holds up the key <code>{orderingKey}</code>.{' '}
            {state === 'parked' ? 'It is dead.' : 'It waits for its next attempt.'}
          </p>
          <label class="check">
            <input type="radio" name="replay" checked={replay} onChange={() => setReplay(true)} /> Publish it
            first, then go on
          </label>
          <label class="check">
            <input type="radio" name="replay" checked={!replay} onChange={() => setReplay(false)} /> Go on
            without it
          </label>
        </>
      }
      act={async (reason) => {
        await answer(api.POST('/outbox/keys/unblock', { body: { orderingKey, replay, reason } }))
        notify(`The key ${orderingKey} goes on.`)
        onDone()
      }}
    />
  )
}
