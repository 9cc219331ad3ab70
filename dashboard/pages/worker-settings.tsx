/** The settings of the workers with one name, in all processes: what they were started with, and what is stored on top. */
import type { JSX } from 'preact'
import { useId, useState } from 'preact/hooks'
import { answer, api, type ApiProblem, type ItemOf } from '../api.ts'
import { formatCount } from '../format.ts'
import { useAction } from '../query.ts'
import { hrefOf, Link } from '../router.tsx'
import { may } from '../session.ts'
import { ChangeButton, Dialog, notify, Problem } from '../ui/feedback.tsx'
import { type Column, Table } from '../ui/table.tsx'
import { None, State, Time } from '../ui/values.tsx'
import type { WorkerProcess } from './workers.tsx'

type Stored = ItemOf<'getSettings'>

/** Those that are numbers, with what they mean. The API checks them. */
const SETTINGS: readonly (readonly [name: string, meaning: string])[] = [
  ['concurrency', 'rows that are processed at once'],
  ['leaseMs', 'how long a lease is'],
  ['heartbeatMs', 'how often leases are renewed'],
  ['reaperIntervalMs', 'how often expired leases are taken back'],
  ['shutdownTimeoutMs', 'how long handlers may take when the process stops'],
  ['prefetch', 'rows that are claimed ahead'],
  ['prefetchBytes', 'bytes of rows in flight'],
  ['batch', 'rows of one claim or settlement'],
  ['claimLoops', 'claims at once, from the next start on'],
  ['pollMs', 'how often an idle worker claims'],
  ['settleDelayMs', 'how long a finished row waits for others'],
  ['maxLeases', 'leases for which a row may be held'],
]

interface Named {
  readonly name: string
  readonly processes: readonly WorkerProcess[]
  readonly stored: Stored | undefined
}

interface Row {
  readonly name: string
  readonly meaning: string
  readonly declared: readonly string[]
  readonly stored: string | undefined
  readonly applied: readonly string[]
}

export function WorkerSettings({ onDone, ...named }: Named & { readonly onDone: () => void }): JSX.Element {
  const { name, processes, stored } = named
  const heading = useId()
  const running = processes.filter(({ state }) => state === 'alive' || state === 'missing')
  const tables = [...new Set(processes.map(({ serves }) => serves[name]?.table ?? ''))]
  const isPaused = isPausedByOperator(named)
  return (
    <section class="panel worker-settings" aria-labelledby={heading}>
      <header>
        <h3 id={heading}>{name}</h3>
        {isPaused ? <State of="paused" /> : null}
        <span class="hint">
          {formatCount(running.length)} {running.length === 1 ? 'process' : 'processes'}, {tables.join(', ')}
        </span>
        <span class="space" />
        {may('operate') ? (
          <>
            <PauseButton {...named} onDone={onDone} />
            <ChangeSettings {...named} onDone={onDone} />
          </>
        ) : null}
      </header>
      {stored === undefined || Object.keys(stored.value).length === 0 ? null : (
        <p class="hint">
          Stored for all processes: <code>{textOf(stored.value)}</code>, by {stored.changedBy}{' '}
          <Time at={stored.changedAt} />
        </p>
      )}
      <details>
        <summary>Settings in force</summary>
        <Table
          caption={`Settings of ${name}`}
          columns={COLUMNS}
          rows={rowsOf({ ...named, processes: running.length > 0 ? running : processes })}
          idOf={(row) => row.name}
        />
      </details>
    </section>
  )
}

const COLUMNS: readonly Column<Row>[] = [
  { title: 'Setting', cell: ({ name }) => <code>{name}</code> },
  {
    title: 'Started with',
    align: 'right',
    cell: ({ declared }) => (declared.length === 0 ? <None /> : declared.join(', ')),
  },
  { title: 'Stored', align: 'right', cell: ({ stored }) => stored ?? <None /> },
  {
    title: 'In force',
    align: 'right',
    cell: ({ applied }) => (applied.length === 0 ? <None /> : <b>{applied.join(', ')}</b>),
  },
  { title: 'Meaning', grows: true, cell: ({ meaning }) => meaning },
]

function rowsOf({ name, processes, stored }: Named): readonly Row[] {
  return SETTINGS.map(([setting, meaning]) => ({
    name: setting,
    meaning,
    // Processes of different versions may have been started with different ones.
    declared: distinct(processes.map(({ declared }) => declared[name]?.[setting])),
    stored: stored === undefined ? undefined : distinct([stored.value[setting]])[0],
    applied: distinct(processes.map(({ settings }) => settings[name]?.[setting])),
  }))
}

function distinct(values: readonly unknown[]): readonly string[] {
  const known = values.filter((value) => typeof value === 'number')
  return [...new Set(known)].map((value) => formatCount(Math.round(value)))
}

function textOf(value: Readonly<Record<string, unknown>>): string {
  return Object.entries(value)
    .map(([name, each]) => `${name}=${String(each)}`)
    .join(' ')
}

function isPausedByOperator({ name, processes, stored }: Named): boolean {
  const own = stored?.value['paused']
  if (typeof own === 'boolean') return own
  return processes.some(({ declared, state }) => state === 'alive' && declared[name]?.['paused'] === true)
}

/** Pauses or resumes the workers of this name in all processes. */
export function PauseButton({
  onDone,
  isSmall = false,
  ...named
}: Named & { readonly onDone: () => void; readonly isSmall?: boolean }): JSX.Element {
  const { name, processes } = named
  const isPaused = isPausedByOperator(named)
  const wasStartedPaused = processes.some(({ declared }) => declared[name]?.['paused'] === true)
  const paused = isPaused ? (wasStartedPaused ? false : null) : true
  return (
    <ChangeButton
      key={String(isPaused)}
      label={isPaused ? 'Resume' : 'Pause'}
      isSmall={isSmall}
      asksReason={false}
      explanation={
        isPaused ? (
          <p>
            The workers <code>{name}</code> of all processes claim again.
          </p>
        ) : (
          <p>
            The workers <code>{name}</code> of all processes finish what they have in flight and claim nothing
            more, until you resume them. Processes that start later are paused as well.
          </p>
        )
      }
      act={async () => {
        await answer(api.PATCH('/settings/{name}', { params: { path: { name } }, body: { paused } }))
        notify(isPaused ? `${name} claims again.` : `${name} is paused.`)
        onDone()
      }}
    />
  )
}

function ChangeSettings(props: Named & { readonly onDone: () => void }): JSX.Element {
  const [isOpen, setOpen] = useState(false)
  return (
    <>
      <button type="button" onClick={() => setOpen(true)}>
        Change settings…
      </button>
      {isOpen ? <SettingsDialog {...props} onClose={() => setOpen(false)} /> : null}
    </>
  )
}

function SettingsDialog({
  onDone,
  onClose,
  ...named
}: Named & { readonly onDone: () => void; readonly onClose: () => void }): JSX.Element {
  const { name, stored } = named
  const before = Object.fromEntries(SETTINGS.map(([setting]) => [setting, inputOf(stored?.value[setting])]))
  const [typed, setTyped] = useState(before)
  const [unreadable, setUnreadable] = useState<readonly string[]>([])
  const { run, isRunning, problem } = useAction(async () => {
    const changed = Object.entries(typed).filter(([setting, text]) => text.trim() !== before[setting])
    const patch = Object.fromEntries(
      changed.map(([setting, text]) => [setting, text.trim() === '' ? null : Number(text)]),
    )
    const noNumbers = Object.keys(patch).filter((setting) => Number.isNaN(patch[setting]))
    setUnreadable(noNumbers)
    if (noNumbers.length > 0) return
    await answer(api.PATCH('/settings/{name}', { params: { path: { name } }, body: patch }))
    notify(`The settings of ${name} are changed in all processes.`)
    onDone()
    onClose()
  })
  const rows = rowsOf(named)
  return (
    <Dialog title={`Settings of ${name}`} onClose={onClose} isWide>
      <form
        noValidate
        onSubmit={(event) => {
          event.preventDefault()
          run()
        }}
      >
        <p class="explanation">
          They apply at once, in all processes. A field that is empty leaves what a process was started with,
          or the default.
        </p>
        <div class="settings-fields">
          {rows.map((row) => (
            <SettingField
              key={row.name}
              row={row}
              value={typed[row.name] ?? ''}
              error={unreadable.includes(row.name) ? 'is not a number' : errorOf(problem, row.name)}
              onChange={(text) => setTyped({ ...typed, [row.name]: text })}
            />
          ))}
        </div>
        {problem === undefined || isAtField(problem) ? null : <Problem of={problem} />}
        <footer>
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={isRunning}>
            {isRunning ? 'Working…' : 'Change'}
          </button>
        </footer>
      </form>
    </Dialog>
  )
}

function SettingField({
  row: { name, meaning, applied },
  value,
  error,
  onChange,
}: {
  readonly row: Row
  readonly value: string
  readonly error: string | undefined
  readonly onChange: (text: string) => void
}): JSX.Element {
  const id = useId()
  return (
    <p class="field">
      <label htmlFor={id}>
        <code>{name}</code> {meaning}
      </label>
      <input
        id={id}
        inputMode="decimal"
        autoComplete="off"
        value={value}
        placeholder={`now ${applied.join(', ') || 'unknown'}`}
        aria-invalid={error !== undefined}
        aria-describedby={error === undefined ? undefined : `${id}-error`}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
      {error === undefined ? null : (
        <span id={`${id}-error`} class="field-error" role="alert">
          {error}
        </span>
      )}
    </p>
  )
}

function inputOf(value: unknown): string {
  return typeof value === 'number' ? String(value) : ''
}

const isNamed = (setting: string, field: string): boolean => field === `body.${setting}`

function errorOf(problem: ApiProblem | undefined, setting: string): string | undefined {
  return problem?.fields.find(({ field }) => isNamed(setting, field))?.detail
}

/** Whether everything that is wrong is said beside a field. */
function isAtField({ fields }: ApiProblem): boolean {
  return fields.length > 0 && fields.every(({ field }) => SETTINGS.some(([name]) => isNamed(name, field)))
}

/** A link to the settings of a worker. */
export function SettingsLink({ name }: { readonly name: string }): JSX.Element {
  return <Link href={hrefOf('/workers', { worker: name })}>Settings</Link>
}
