/** Lists of rows: one look, one way to move with the keyboard, to select, and to turn pages. */
import type { ComponentChildren, JSX } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { useShortcuts } from '../keyboard.tsx'
import { navigate, setQuery } from '../router.tsx'

export interface Column<Row> {
  readonly title: string
  readonly cell: (row: Row) => ComponentChildren
  readonly align?: 'right'
  /** Takes the room that the others leave, and is cut off where that is too little. */
  readonly grows?: boolean
  /** Breaks its lines where the table would not fit. */
  readonly wraps?: boolean
}

export interface Selection {
  readonly ids: ReadonlySet<string>
  readonly toggle: (id: string) => void
  readonly set: (ids: readonly string[]) => void
}

/** The rows that a person has chosen on a page. */
export function useSelection(): Selection {
  const [ids, setIds] = useState<ReadonlySet<string>>(new Set())
  return {
    ids,
    toggle: (id) =>
      setIds((before) => {
        const after = new Set(before)
        if (!after.delete(id)) after.add(id)
        return after
      }),
    set: (chosen) => setIds(new Set(chosen)),
  }
}

export interface TableProps<Row> {
  readonly caption: string
  readonly columns: readonly Column<Row>[]
  readonly rows: readonly Row[]
  readonly idOf: (row: Row) => string
  /** The page of a row. */
  readonly hrefOf?: ((row: Row) => string) | undefined
  readonly selection?: Selection | undefined
  readonly toneOf?: ((row: Row) => 'bad' | 'warning' | undefined) | undefined
}

/** j and k move, Enter opens, x selects. On a narrow screen each row becomes a card. */
export function Table<Row>({
  caption,
  columns,
  rows,
  idOf,
  hrefOf,
  selection,
  toneOf,
}: TableProps<Row>): JSX.Element {
  const [active, setActive] = useState<string>()
  const body = useRef<HTMLTableSectionElement>(null)
  const index = rows.findIndex((row) => idOf(row) === active)
  const move = (by: number): void => {
    const next = rows[Math.min(rows.length - 1, Math.max(0, index + by))]
    if (next !== undefined) setActive(idOf(next))
  }
  const current = rows[index]
  useShortcuts({
    j: { title: 'Next row', act: () => move(1) },
    k: { title: 'Previous row', act: () => move(-1) },
    ...(hrefOf === undefined
      ? {}
      : { Enter: { title: 'Open the row', act: () => current !== undefined && navigate(hrefOf(current)) } }),
    ...(selection === undefined
      ? {}
      : {
          x: { title: 'Select the row', act: () => current !== undefined && selection.toggle(idOf(current)) },
        }),
  })
  useEffect(() => {
    body.current?.querySelector('tr.active')?.scrollIntoView({ block: 'nearest' })
  }, [active])

  const shownIds = rows.map(idOf)
  const allChosen = shownIds.length > 0 && shownIds.every((id) => selection?.ids.has(id))
  return (
    <div class="table-scroll">
      <table>
        <caption class="visually-hidden">{caption}</caption>
        <thead>
          <tr>
            {selection === undefined ? null : (
              <th class="choose">
                <input
                  type="checkbox"
                  aria-label="Select all rows of this page"
                  checked={allChosen}
                  onChange={() => selection.set(allChosen ? [] : shownIds)}
                />
              </th>
            )}
            {columns.map(({ title, align }) => (
              <th key={title} class={align ?? ''} scope="col">
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={body}>
          {rows.map((row) => {
            const id = idOf(row)
            return (
              <tr
                key={id}
                class={`${id === active ? 'active' : ''} ${toneOf?.(row) ?? ''} ${hrefOf === undefined ? '' : 'opens'}`}
                data-id={id}
                onClick={(event) => openRow(event, row, hrefOf)}
              >
                {selection === undefined ? null : (
                  <td class="choose">
                    <input
                      type="checkbox"
                      aria-label={`Select ${id}`}
                      checked={selection.ids.has(id)}
                      onChange={() => selection.toggle(id)}
                    />
                  </td>
                )}
                {columns.map(({ title, cell, align, grows, wraps }) => (
                  <td
                    key={title}
                    data-label={title}
                    class={`${align ?? ''} ${grows === true ? 'grows' : ''} ${wraps === true ? 'wraps' : ''}`}
                  >
                    {cell(row)}
                  </td>
                ))}
              </tr>
            )
          })}
        </tbody>
      </table>
    </div>
  )
}

/** A click anywhere in a row opens it, unless it is on something with a purpose of its own, or selects text. */
function openRow<Row>(event: MouseEvent, row: Row, hrefOf: ((row: Row) => string) | undefined): void {
  if (hrefOf === undefined || !(event.target instanceof Element)) return
  const isControl = event.target.closest('a, button, input, label, select, summary') !== null
  if (isControl || (getSelection()?.toString() ?? '') !== '') return
  if (event.metaKey || event.ctrlKey) open(hrefOf(row), '_blank', 'noopener')
  else navigate(hrefOf(row))
}

/** Keyset paging: the position is in the address, and the way back is the browser's. */
export function Pager({
  next,
  isFirst,
  words: [first, further] = ['Newest', 'Older'],
}: {
  readonly next: string | null | undefined
  readonly isFirst: boolean
  /** What the buttons for the first page and for the next one say. */
  readonly words?: readonly [first: string, further: string] | undefined
}): JSX.Element | null {
  const hasNext = next !== null && next !== undefined
  const turnTo = (cursor: string | undefined): void => {
    setQuery({ cursor })
    scrollTo(0, 0)
  }
  useShortcuts({
    n: { title: 'Next page', act: () => hasNext && turnTo(next) },
  })
  if (isFirst && !hasNext) return null
  return (
    <nav class="pager" aria-label="Pages">
      <button type="button" disabled={isFirst} onClick={() => turnTo(undefined)}>
        {first}
      </button>
      <button type="button" disabled={isFirst} onClick={() => history.back()}>
        Back
      </button>
      <button type="button" disabled={!hasNext} onClick={() => hasNext && turnTo(next)}>
        {further}
      </button>
    </nav>
  )
}
