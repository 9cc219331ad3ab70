/**
 * Lists that are searched page by page. A search that no index answers reads a bounded number of rows at a time, so that a
 * page can be empty although there are further ones: then the search goes on by itself for a while, and says how far it is.
 */
import type { ComponentChildren, JSX } from 'preact'
import { useCallback, useRef } from 'preact/hooks'
import type { ApiProblem } from './api.ts'
import { useQuery } from './query.ts'
import { setQuery } from './router.tsx'
import { useShortcuts } from './keyboard.tsx'
import { Problem, Reading } from './ui/feedback.tsx'
import { Pager, Table, type TableProps } from './ui/table.tsx'

interface Page<Item> {
  readonly items: readonly Item[]
  readonly next: string | null
}

export interface Search<Item> {
  readonly items: readonly Item[]
  readonly next: string | null | undefined
  readonly isFirst: boolean
  readonly isKnown: boolean
  /** Whether the rows are those of before, while others are read. */
  readonly isOld: boolean
  readonly problem: ApiProblem | undefined
  readonly refresh: () => void
}

/** A search that finds nothing reads so many pages, of 100,000 rows each, before it asks whether to go on. */
const EMPTY_PAGES = 10

/** Reads the page that the address names. Only the first page follows changes: a later one would move under the reader. */
export function useSearch<Item>(
  { key, cursor }: { readonly key: string; readonly cursor: string | undefined },
  read: (cursor: string | undefined, signal: AbortSignal) => Promise<Page<Item>>,
): Search<Item> {
  const readOn = useCallback(
    async (signal: AbortSignal): Promise<Page<Item>> => {
      let page = await read(cursor, signal)
      for (let asked = 1; page.items.length === 0 && page.next !== null && asked < EMPTY_PAGES; asked += 1)
        page = await read(page.next, signal)
      return page
    },
    [key],
  )
  const { data, problem, refresh } = useQuery(key, readOn, { isLive: cursor === undefined })
  // A list that is gone while the next one is read would make the page jump, and what is pressed would get no click.
  const before = useRef<Page<Item> | undefined>(undefined)
  const shown = data ?? (problem === undefined ? before.current : undefined)
  before.current = shown
  return {
    items: shown?.items ?? [],
    next: data?.next,
    isFirst: cursor === undefined,
    isKnown: shown !== undefined,
    isOld: shown !== data,
    problem,
    refresh,
  }
}

export function SearchedList<Item>({
  search,
  empty,
  pagerWords,
  ...table
}: Omit<TableProps<Item>, 'rows'> & {
  readonly search: Search<Item>
  /** What is shown if there is nothing. */
  readonly empty: ComponentChildren
  /** Of lists that are not newest first. */
  readonly pagerWords?: readonly [first: string, further: string]
}): JSX.Element {
  const { items, next, isFirst, isKnown, isOld, problem, refresh } = search
  useShortcuts({ '.': { title: 'Read the list again', act: refresh } })
  return (
    <>
      <Problem of={problem} />
      {!isKnown ? (
        problem === undefined ? (
          <Reading />
        ) : null
      ) : items.length > 0 ? (
        <div class={isOld ? 'old' : ''} aria-busy={isOld}>
          <Table {...table} rows={items} />
        </div>
      ) : next === null || next === undefined ? (
        empty
      ) : (
        <p class="empty">
          Nothing was found so far.{' '}
          <button type="button" onClick={() => setQuery({ cursor: next })}>
            Search further back
          </button>
        </p>
      )}
      <Pager next={next} isFirst={isFirst} words={pagerWords} />
    </>
  )
}
