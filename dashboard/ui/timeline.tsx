/** What has happened to a row: who held it, under which token, from when to when, and how it ended. */
import type { ComponentChildren, JSX } from 'preact'
import { ExactTime, State, type Tone } from './values.tsx'

export interface TimelineEntry {
  readonly at: string
  readonly title: string
  readonly tone?: Tone
  /** The worker process. */
  readonly who?: string | null | undefined
  readonly token?: string | undefined
  readonly from?: string | null | undefined
  readonly until?: string | null | undefined
  readonly text?: string | null | undefined
  /** Whether the text is no error. */
  readonly isQuiet?: boolean
  /** What else there is to say. */
  readonly details?: ComponentChildren
}

/** The latest first. */
export function Timeline({ entries }: { readonly entries: readonly TimelineEntry[] }): JSX.Element {
  const sorted = entries.toSorted((a, b) => Date.parse(b.at) - Date.parse(a.at))
  return (
    <ol class="timeline">
      {sorted.map(({ at, title, tone, who, token, from, until, text, isQuiet = false, details }) => (
        <li key={`${at} ${title} ${token ?? ''}`} class={tone ?? 'neutral'}>
          <p>
            <State of={title} tone={tone} /> <ExactTime at={at} />
          </p>
          {who === undefined || who === null ? null : (
            <p class="hint">
              by <code>{who}</code>
              {token === undefined ? '' : `, token ${token}`}
              {from === undefined || from === null ? null : (
                <>
                  , leased <ExactTime at={from} />
                </>
              )}
              {until === undefined || until === null ? null : (
                <>
                  {from === undefined || from === null ? ', until ' : ' to '}
                  <ExactTime at={until} />
                </>
              )}
            </p>
          )}
          {text === undefined || text === null ? null : <p class={isQuiet ? '' : 'error-text'}>{text}</p>}
          {details ?? null}
        </li>
      ))}
    </ol>
  )
}
