/** Single values, the same everywhere: times, counts, states, ids, JSON. Everything is text; nothing becomes HTML. */
import type { ComponentChildren, JSX } from 'preact'
import { useState } from 'preact/hooks'
import { useNow } from '../clock.ts'
import { Link } from '../router.tsx'
import {
  formatBytes,
  formatCount,
  formatDuration,
  formatExact,
  formatRelative,
  formatShort,
} from '../format.ts'

/** A time relative to now, with the exact one on hover. */
export function Time({ at }: { readonly at: string | null | undefined }): JSX.Element {
  const now = useNow()
  if (at === null || at === undefined) return <None />
  return (
    <time dateTime={at} title={formatExact(at)}>
      {formatRelative(Date.parse(at), now)}
    </time>
  )
}

/** A time to the millisecond. */
export function ExactTime({ at }: { readonly at: string | null | undefined }): JSX.Element {
  const now = useNow()
  if (at === null || at === undefined) return <None />
  return (
    <time dateTime={at} title={formatRelative(Date.parse(at), now)}>
      {formatExact(at)}
    </time>
  )
}

export function None(): JSX.Element {
  return <span class="none">–</span>
}

export function Duration({ ms }: { readonly ms: number | null | undefined }): JSX.Element {
  if (ms === null || ms === undefined) return <None />
  return <span title={`${formatCount(Math.round(ms))} ms`}>{formatDuration(ms)}</span>
}

/** A count of the API. Estimates have a tilde. */
export function Count({
  of: { count, exact },
}: {
  readonly of: { readonly count: number; readonly exact: boolean }
}): JSX.Element {
  const title = exact ? formatCount(count) : `about ${formatCount(count)}, by the statistics of PostgreSQL`
  return (
    <span class="number" title={title}>
      {exact ? '' : '~'}
      {formatShort(count)}
    </span>
  )
}

export function Bytes({ of }: { readonly of: number | string }): JSX.Element {
  const bytes = Number(of)
  return <span title={`${formatCount(bytes)} bytes`}>{formatBytes(bytes)}</span>
}

export type Tone = 'neutral' | 'good' | 'busy' | 'warning' | 'bad'

const TONES: Readonly<Record<string, Tone>> = {
  PENDING: 'neutral',
  CLAIMED: 'busy',
  PUBLISHED: 'good',
  DEAD: 'bad',
  pending: 'neutral',
  delivered: 'good',
  failed: 'bad',
  AVAILABLE: 'neutral',
  RUNNING: 'busy',
  EXPIRED: 'warning',
  COMPLETED: 'good',
  FAILED: 'bad',
  alive: 'good',
  missing: 'warning',
  dead: 'bad',
  stopped: 'neutral',
  stopping: 'warning',
  paused: 'warning',
  running: 'busy',
  finished: 'good',
  cancelled: 'warning',
  ok: 'good',
  open: 'bad',
  probing: 'warning',
  disabled: 'warning',
  deleted: 'neutral',
  parked: 'bad',
  blocked: 'warning',
  leased: 'busy',
  expired: 'warning',
  claimable: 'good',
  waiting: 'neutral',
}

/** A state as a coloured word. The colour repeats what the word says. */
export function State({ of, tone }: { readonly of: string; readonly tone?: Tone | undefined }): JSX.Element {
  return <span class={`state ${tone ?? TONES[of] ?? 'neutral'}`}>{of}</span>
}

/** A text of a machine, with a button that copies it. */
export function Copyable({ text, label }: { readonly text: string; readonly label?: string }): JSX.Element {
  const [isCopied, setCopied] = useState(false)
  const copy = (): void => {
    copyText(text, setCopied).catch(() => undefined)
  }
  return (
    <span class="copyable">
      <code>{text}</code>
      <button type="button" class="quiet small" onClick={copy} aria-label={`Copy ${label ?? text}`}>
        {isCopied ? 'copied' : 'copy'}
      </button>
    </span>
  )
}

/** Without the right to copy, a person can still select the text. */
async function copyText(text: string, setCopied: (isCopied: boolean) => void): Promise<void> {
  await navigator.clipboard.writeText(text)
  setCopied(true)
  setTimeout(() => setCopied(false), 1_500)
}

/** Something to run in a terminal or in psql. */
export function Command({ text }: { readonly text: string }): JSX.Element {
  return (
    <div class="command">
      <Copyable text={text} label="the command" />
    </div>
  )
}

/** JSON, indented. A text that is no JSON is shown as it is. */
export function Json({ value, label }: { readonly value: unknown; readonly label: string }): JSX.Element {
  const text = typeof value === 'string' ? indented(value) : JSON.stringify(value, null, 2)
  return (
    <pre class="json" tabIndex={0} aria-label={label}>
      {text}
    </pre>
  )
}

function indented(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return text
  }
}

/** Names and values, one below the other. */
export function Facts({
  of,
}: {
  readonly of: readonly (readonly [name: string, value: ComponentChildren] | undefined | false)[]
}): JSX.Element {
  return (
    <dl class="facts">
      {of.map((fact) =>
        fact === undefined || fact === false ? null : (
          <div key={fact[0]}>
            <dt>{fact[0]}</dt>
            <dd>{fact[1]}</dd>
          </div>
        ),
      )}
    </dl>
  )
}

/** A figure that matters, with its name. */
export function Figure({
  name,
  children,
  tone,
  href,
  note,
}: {
  readonly name: string
  readonly children: ComponentChildren
  readonly tone?: Tone | undefined
  /** The rows that it counts. */
  readonly href?: string | undefined
  readonly note?: ComponentChildren
}): JSX.Element {
  return (
    <div class={`figure ${tone ?? 'neutral'}`}>
      <dt>{href === undefined ? name : <Link href={href}>{name}</Link>}</dt>
      <dd>
        <span class="value">{children}</span>
        {note === undefined ? null : <span class="figure-note">{note}</span>}
      </dd>
    </div>
  )
}
