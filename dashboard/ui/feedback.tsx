/** What the page tells a person: problems, empty lists, questions before a change, and what has been done. */
import type { ComponentChildren, JSX } from 'preact'
import { useId, useLayoutEffect, useRef, useState } from 'preact/hooks'
import type { ApiProblem } from '../api.ts'
import { isPortal } from '../config.ts'
import { useAction } from '../query.ts'
import { createStore, useStore } from '../store.ts'

/** A problem that the API has answered with: what is wrong, where, and what to do. */
export function Problem({ of }: { readonly of: ApiProblem | undefined }): JSX.Element | null {
  if (of === undefined) return null
  const { message, remedy, fields, code } = of
  return (
    <div class="problem" role="alert">
      <p>{message}</p>
      {fields.length > 1 ? (
        <ul>
          {fields.map(({ field, detail }) => (
            <li key={field}>
              <code>{field}</code> {detail}
            </li>
          ))}
        </ul>
      ) : null}
      {remedy === undefined ? null : <p>{remedy}</p>}
      <p class="code">{code}</p>
    </div>
  )
}

/** Instead of an empty list: what would be here, and how it comes here. */
export function Empty({
  title,
  children,
}: {
  readonly title: string
  readonly children?: ComponentChildren
}): JSX.Element {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  )
}

/** Code to paste. */
export function Sample({ children }: { readonly children: string }): JSX.Element {
  return (
    <pre class="sample" tabIndex={0} aria-label="Code to paste">
      {children}
    </pre>
  )
}

export function Reading(): JSX.Element {
  return (
    <p class="reading" role="status">
      Reading…
    </p>
  )
}

/** A dialog of the browser: it keeps the focus, and Escape closes it. */
export function Dialog({
  title,
  onClose,
  children,
  isWide = false,
  closesOutside = false,
}: {
  readonly title: string
  readonly onClose: () => void
  readonly children: ComponentChildren
  readonly isWide?: boolean
  /** Whether a press beside it closes it: only where nothing is lost by that, neither a text that was typed nor a secret. */
  readonly closesOutside?: boolean
}): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null)
  const heading = useId()
  // Closed while it is still in the page: only then does the focus go back to where it was.
  useLayoutEffect(() => {
    const shown = dialog.current
    shown?.showModal()
    return () => shown?.close()
  }, [])
  const closeOutside = (event: MouseEvent): void => {
    if (closesOutside && event.target === dialog.current) onClose()
  }
  return (
    <dialog
      ref={dialog}
      class={isWide ? 'wide' : ''}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault()
        onClose()
      }}
      onMouseDown={closeOutside}
    >
      <div class="dialog-body">
        <header>
          <h2 id={heading}>{title}</h2>
          <button type="button" class="quiet" onClick={onClose} aria-label="Close">
            ✕
          </button>
        </header>
        {children}
      </div>
    </dialog>
  )
}

export interface ChangeButtonProps {
  readonly label: string
  /** What the dialog says: what will happen. */
  readonly explanation: ComponentChildren
  readonly tone?: 'bad' | undefined
  readonly isPrimary?: boolean
  readonly isSmall?: boolean
  readonly isDisabled?: boolean | undefined
  /** Whether a reason is asked for, which the audit records. */
  readonly asksReason?: boolean
  readonly act: (reason: string) => Promise<void>
}

/** A button for one change: it asks, sends, and says what became of it. */
export function ChangeButton(props: ChangeButtonProps): JSX.Element {
  const { label, tone, isPrimary = false, isSmall = false, isDisabled = false } = props
  const [isOpen, setOpen] = useState(false)
  const classes = [tone === 'bad' ? 'bad' : '', isPrimary ? 'primary' : '', isSmall ? 'small' : '']
  return (
    <>
      <button type="button" class={classes.join(' ')} disabled={isDisabled} onClick={() => setOpen(true)}>
        {label}
      </button>
      {isOpen ? <ChangeDialog {...props} onClose={() => setOpen(false)} /> : null}
    </>
  )
}

function ChangeDialog({
  label,
  explanation,
  tone,
  asksReason = true,
  act,
  onClose,
}: ChangeButtonProps & { readonly onClose: () => void }): JSX.Element {
  const [reason, setReason] = useState('')
  const { run, isRunning, problem } = useAction(async (given: string) => {
    await act(given)
    onClose()
  })
  const submit = (event: Event): void => {
    event.preventDefault()
    run(reason.trim())
  }
  return (
    <Dialog title={label} onClose={onClose}>
      <form onSubmit={submit}>
        <div class="explanation">{explanation}</div>
        {asksReason ? <Reason value={reason} onChange={setReason} /> : null}
        <Problem of={problem} />
        <footer>
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class={tone === 'bad' ? 'bad' : 'primary'} disabled={isRunning}>
            {isRunning ? 'Working…' : label}
          </button>
        </footer>
      </form>
    </Dialog>
  )
}

/** Why something is changed. The audit records it, so it is required. */
export function Reason({
  value,
  onChange,
}: {
  readonly value: string
  readonly onChange: (reason: string) => void
}): JSX.Element {
  const id = useId()
  return (
    <p class="field">
      <label htmlFor={id}>{isPortal ? 'Reason' : 'Reason, for the audit'}</label>
      <input
        id={id}
        value={value}
        required
        maxLength={500}
        autoComplete="off"
        placeholder={isPortal ? 'our server was down' : 'the broker was down'}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
    </p>
  )
}

interface Notice {
  readonly id: number
  readonly text: string
  readonly href: JSX.Element | undefined
}

const notices = createStore<readonly Notice[]>([])
let noticeCount = 0
const NOTICE_MS = 6_000

/** Says in a corner of the page what has been done. */
export function notify(text: string, href?: JSX.Element): void {
  noticeCount += 1
  const id = noticeCount
  notices.set([...notices.get().slice(-3), { id, text, href }])
  setTimeout(() => notices.set(notices.get().filter((notice) => notice.id !== id)), NOTICE_MS)
}

export function Notices(): JSX.Element {
  const shown = useStore(notices)
  return (
    <div class="notices" role="status" aria-live="polite">
      {shown.map(({ id, text, href }) => (
        <p key={id}>
          {text} {href ?? null}
        </p>
      ))}
    </div>
  )
}
