/** Why is it not running? The reasons, and for each the command that would change it. */
import type { JSX } from 'preact'
import { useId } from 'preact/hooks'
import { answer, type Answer, api } from './api.ts'
import { useQuery } from './query.ts'
import { Dialog, Problem, Reading } from './ui/feedback.tsx'
import { Command, State, Time } from './ui/values.tsx'

export type Explanation = Answer<'getOutboxEventsByIdExplain'>

/** What a reason stands in the way of; the others are good news, or only worth knowing. */
const HARMLESS = new Set(['claimable', 'finished', 'leased', 'oldSnapshot'])

export interface ExplainProps {
  /** Stands for the row, and for its state: a new state has new reasons. */
  readonly of: string
  readonly read: (signal: AbortSignal) => Promise<Explanation>
}

export function Explain({ of, read }: ExplainProps): JSX.Element {
  const heading = useId()
  return (
    <section class="panel explain" aria-labelledby={heading}>
      <h2 id={heading}>Why is it not running?</h2>
      <Reasons of={of} read={read} />
    </section>
  )
}

/** The same without a frame, for dialogs. */
export function Reasons({ of, read }: ExplainProps): JSX.Element {
  const { data, problem } = useQuery(`explain ${of}`, read, { everyMs: 5_000 })
  return (
    <>
      <Problem of={problem} />
      {data === undefined ? (
        problem === undefined ? (
          <Reading />
        ) : null
      ) : (
        <>
          <p>
            <State of={data.state} /> <code>{data.table}</code>
          </p>
          <ol class="reasons">
            {data.reasons.map(({ code, text, until, command }) => (
              <li key={`${code} ${text}`} class={HARMLESS.has(code) ? 'harmless' : ''} data-code={code}>
                <p>
                  <code>{code}</code> {text}
                </p>
                {until === undefined ? null : (
                  <p class="hint">
                    Ends <Time at={until} />, if nothing else happens.
                  </p>
                )}
                {command === undefined ? null : <Command text={command} />}
              </li>
            ))}
          </ol>
        </>
      )}
    </>
  )
}

/** Of a row of a lease table that the server was given. */
export function RowReasons({ table, id }: { readonly table: string; readonly id: string }): JSX.Element {
  return (
    <Reasons
      of={`${table} ${id}`}
      read={async (signal) =>
        answer(api.GET('/tables/{table}/rows/{id}/explain', { params: { path: { table, id } }, signal }))
      }
    />
  )
}

export function ExplainRowDialog({
  table,
  id,
  onClose,
}: {
  readonly table: string
  readonly id: string
  readonly onClose: () => void
}): JSX.Element {
  return (
    <Dialog title={`Row ${id}`} onClose={onClose} isWide closesOutside>
      <RowReasons table={table} id={id} />
    </Dialog>
  )
}
