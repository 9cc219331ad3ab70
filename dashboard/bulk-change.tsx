/** Changes of many rows: a selection, or everything that matches. First a count, then a reason, then the progress. */
import type { ComponentChildren, JSX } from 'preact'
import { useEffect, useId, useState } from 'preact/hooks'
import { answer, type Answer, api, type ApiProblem } from './api.ts'
import { formatCount } from './format.ts'
import { useAction, useQuery } from './query.ts'
import { hrefOf, Link } from './router.tsx'
import { may } from './session.ts'
import { Progress } from './ui/charts.tsx'
import { Dialog, notify, Problem, Reason } from './ui/feedback.tsx'
import type { Selection } from './ui/table.tsx'
import { State, Time } from './ui/values.tsx'

export type Change = Answer<'getChangesById'>

/** The lists whose rows can be changed. Each has the same routes below it. */
export type ChangeableList = '/outbox/events' | '/webhooks/deliveries' | '/sync/jobs'

export interface BulkAction {
  /** As the API names it. */
  readonly action: string
  readonly label: string
  readonly tone?: 'bad'
  /** Which of the rows that match it concerns: said where there are none. */
  readonly only: string
}

export interface Chosen {
  readonly ids?: readonly string[]
  readonly filter?: object
}

export interface BulkBarProps {
  /** Whether there are rows. Without them a change that runs is still shown: it may have been the last of them. */
  readonly isShown: boolean
  readonly list: ChangeableList
  /** What the rows are called: `events`. */
  readonly rows: string
  readonly actions: readonly BulkAction[]
  readonly selection: Selection
  /** The filter of the list, in the words of the API. What is undefined is not sent. */
  readonly filter: object
  /** The ids by which the list is filtered. */
  readonly ids?: readonly string[] | undefined
  readonly isFiltered: boolean
}

/** Below a list: what can be done with the rows that were chosen, or with all that match. */
export function BulkBar(props: BulkBarProps): JSX.Element | null {
  const { isShown, list, selection, rows, actions, filter, ids, isFiltered } = props
  const [asked, setAsked] = useState<{ readonly action: BulkAction; readonly chosen: Chosen }>()
  if (!may('operate')) return null
  const count = selection.ids.size
  const chosen: Chosen =
    count > 0 ? { ids: [...selection.ids] } : { filter, ...(ids === undefined ? {} : { ids }) }
  const whichRows = count > 0 ? `${count} selected` : `all ${rows} that match`
  // Without a condition the API refuses it: that would be every row there is.
  if (count === 0 && !isFiltered)
    return (
      <p class="bulk-bar hint">
        To change many {rows} at once, select some, or choose filters and change all that match.
      </p>
    )
  return (
    <>
      {isShown ? (
        <div class="bulk-bar" role="group" aria-label={`Change ${whichRows}`}>
          <span>{whichRows}:</span>
          {actions.map((action) => (
            <button
              key={action.action}
              type="button"
              class={action.tone ?? ''}
              onClick={() => setAsked({ action, chosen })}
            >
              {action.label}…
            </button>
          ))}
          {count > 0 ? (
            <button type="button" class="quiet" onClick={() => selection.set([])}>
              Select none
            </button>
          ) : null}
        </div>
      ) : null}
      {asked === undefined ? null : (
        <BulkDialog
          list={list}
          rows={rows}
          {...asked}
          onClose={() => setAsked(undefined)}
          onStarted={() => selection.set([])}
        />
      )}
    </>
  )
}

export interface BulkDialogProps extends Pick<BulkBarProps, 'list' | 'rows'> {
  readonly action: BulkAction
  /** The rows. They are counted again when this changes. */
  readonly chosen: Chosen
  readonly onClose: () => void
  readonly onStarted?: () => void
  /** Fields by which the rows are chosen. */
  readonly children?: ComponentChildren
}

export function BulkDialog(props: BulkDialogProps): JSX.Element {
  const { list, rows, action, chosen, onClose, onStarted, children } = props
  const [reason, setReason] = useState('')
  const [rate, setRate] = useState('')
  const [change, setChange] = useState<Change>()
  const rateId = useId()
  const body = { action: action.action, ...chosen }
  const preview = useQuery(
    JSON.stringify(body),
    async (signal) =>
      // The three lists have the same routes.
      answer(api.POST(`${list as '/outbox/events'}/changes/preview`, { body: body as never, signal })),
    { isLive: false },
  )
  const { run, isRunning, problem } = useAction(async () => {
    const paced = rate === '' ? {} : { rate: Number(rate) }
    const started = await answer(
      api.POST(`${list as '/outbox/events'}/changes`, {
        body: { ...body, ...paced, reason: reason.trim() } as never,
      }),
    )
    setChange(started)
    onStarted?.()
  })
  if (change !== undefined)
    return (
      <Dialog title={`${action.label} ${rows}`} onClose={onClose}>
        <ChangeProgress id={change.id} first={change} />
        <footer>
          <Link href={hrefOf('/changes')}>All changes</Link>
          <button type="button" class="primary" onClick={onClose}>
            Close
          </button>
        </footer>
      </Dialog>
    )
  const matched = preview.data?.matched
  const submit = (event: Event): void => {
    event.preventDefault()
    run()
  }
  return (
    <Dialog title={`${action.label} ${rows}`} onClose={onClose}>
      <form onSubmit={submit}>
        {children}
        <p class="explanation">
          {preview.problem !== undefined ? null : matched === undefined ? (
            'Counting…'
          ) : (
            <>
              This concerns <b class="number matched">{formatCount(matched)}</b> {rows}. It runs in the
              background, and can be cancelled; what is changed by then stays changed.
            </>
          )}
        </p>
        {matched === 0 ? <p>{action.only}</p> : null}
        <Skipped preview={preview.data} />
        <Problem of={preview.problem} />
        <Reason value={reason} onChange={setReason} />
        <p class="field">
          <label htmlFor={rateId}>At most so many per second</label>
          <input
            id={rateId}
            type="number"
            min={1}
            max={1_000_000}
            value={rate}
            placeholder="without a limit"
            onInput={(event) => setRate(event.currentTarget.value)}
          />
        </p>
        <Problem of={problem} />
        <footer>
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button
            type="submit"
            class={action.tone ?? 'primary'}
            disabled={isRunning || matched === undefined || matched === 0}
          >
            {action.label} {matched === undefined ? '' : formatCount(matched)}
          </button>
        </footer>
      </form>
    </Dialog>
  )
}

function Skipped({
  preview,
}: {
  readonly preview: { readonly skipped: readonly { readonly id: string; readonly why: string }[] } | undefined
}): JSX.Element | null {
  if (preview === undefined || preview.skipped.length === 0) return null
  return (
    <details class="skipped">
      <summary>{formatCount(preview.skipped.length)} of those selected will not be changed</summary>
      <ul>
        {preview.skipped.slice(0, 50).map(({ id, why }) => (
          <li key={id}>
            <code>{id}</code> {why}
          </li>
        ))}
      </ul>
    </details>
  )
}

const PROGRESS_EVERY_MS = 1_000

/** How far a change is, with a button that ends it. */
export function ChangeProgress({ id, first }: { readonly id: string; readonly first?: Change }): JSX.Element {
  const {
    data = first,
    problem,
    isReading,
    refresh,
  } = useQuery(id, async (signal) => answer(api.GET('/changes/{id}', { params: { path: { id } }, signal })), {
    isLive: false,
  })
  const isRunning = data?.state === 'running'
  useEffect(() => {
    // Reading again ends a reading that takes longer.
    if (!isRunning || isReading) return undefined
    const timer = window.setTimeout(refresh, PROGRESS_EVERY_MS)
    return () => window.clearTimeout(timer)
  }, [isRunning, isReading, refresh])
  const cancel = useAction(async () => {
    await answer(api.POST('/changes/{id}/cancel', { params: { path: { id } } }))
    notify('The change was cancelled.')
    refresh()
  })
  const shown: ApiProblem | undefined = cancel.problem ?? problem
  if (data === undefined) return <Problem of={shown} />
  const { state, matched, changed, error, startedAt, principal, reason } = data
  return (
    <div class="change">
      <p>
        <State of={state} /> <b class="number changed">{formatCount(changed)}</b>
        {matched === null ? '' : ` of ${formatCount(matched)}`} changed, <Time at={startedAt} /> by{' '}
        {principal}: {reason}
      </p>
      <Progress done={changed} total={Math.max(matched ?? 0, changed)} label="How far the change is" />
      {error === null ? null : <p class="problem">{error}</p>}
      <Problem of={shown} />
      {isRunning && may('operate') ? (
        <button type="button" class="bad" disabled={cancel.isRunning} onClick={() => cancel.run()}>
          Cancel the change
        </button>
      ) : null}
    </div>
  )
}
