/** What the commands that list things share: which page is asked for, and how it is shown. */
import { isRowId } from '../admin/request-checks.ts'
import { isSet, textFlag, wholeFlag, wrong } from './flag-values.ts'
import type { Run } from './run.ts'
import { columns, printable, printableJson } from './text-columns.ts'

const LARGEST_PAGE = 1_000

export function limitFlag(flags: Run['flags']): number | undefined {
  return wholeFlag(flags, 'limit', LARGEST_PAGE)
}

/** `--before`, where the newest come first; `id` says what it takes. */
export function beforeFlag(flags: Run['flags'], id: string): string | undefined {
  const before = textFlag(flags, 'before')
  if (before === undefined || isRowId(before)) return before
  throw wrong('before', before, `give ${id}.`)
}

export interface Listing<Item> {
  /** Their name, in the plural: that of the list in the JSON document as well. */
  readonly what: string
  readonly items: readonly Item[]
  /** What the flag takes that shows the next page; null: there is none. */
  readonly next: string | null
  readonly nextFlag: '--before' | '--after'
  /** By what they were chosen. Undefined: not by this. */
  readonly chosenBy: Readonly<Record<string, unknown>>
  /** Said where there are none at all. */
  readonly none: string
  readonly headings: readonly string[]
  readonly line: (item: Item) => readonly string[]
  /** How one stands in the JSON document, where not as it is. */
  readonly json?: (item: Item) => unknown
}

/** Prints a page as a table, or as JSON, and returns the exit code. */
export function printList<Item>({ print, flags, terminal }: Run, listing: Listing<Item>): number {
  const { what, items, next, nextFlag, chosenBy, none, headings, line, json = asItIs } = listing
  if (isSet(flags, 'json')) {
    print(`${printableJson({ [what]: items.map(json), next })}\n`)
    return 0
  }
  if (items.length === 0) {
    const all = Object.values(chosenBy).every((value) => value === undefined)
    print(all ? `${none}\n` : `No such ${what}.\n`)
    return 0
  }
  print(`${columns([headings, ...items.map(line)], terminal.width)}\n`)
  if (next !== null) print(`There are more: ${nextFlag} ${printable(next)} shows the next ones.\n`)
  return 0
}

function asItIs(item: unknown): unknown {
  return item
}
