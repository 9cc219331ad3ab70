/** How results are written: tables, lists, JSON, durations and counts. */
import type { Count } from '../operations/count.ts'
import { grouped, relative } from '../figures.ts'
import type { Run } from './command.ts'

export { counted, duration, grouped, relative } from '../figures.ts'

/** No column is cut to fewer characters than this, or than its heading has. */
const MIN_COLUMN_WIDTH = 8
const GAP = '  '

/**
 * A table: the first row holds the headings, and each column is as wide as its widest cell. Given a width, the widest
 * columns are cut until a row fits into it. Control characters in a cell are removed.
 */
export function columns(rows: readonly (readonly string[])[], width = Infinity): string {
  const cells = rows.map((row) => row.map(printable))
  const headings = cells[0] ?? []
  const widths = headings.map((_, i) => Math.max(...cells.map((row) => row[i]?.length ?? 0)))
  const minWidths = headings.map((heading) => Math.max(MIN_COLUMN_WIDTH, heading.length))
  const room = width - GAP.length * (widths.length - 1)
  while (widths.reduce((sum, wide) => sum + wide, 0) > room) {
    const spare = widths.map((wide, i) => (wide > (minWidths[i] ?? 0) ? wide : 0))
    const widest = Math.max(...spare)
    if (widest === 0) break
    widths[spare.indexOf(widest)] = widest - 1
  }
  return cells
    .map((row) =>
      row
        .map((cell, i) => cut(cell, widths[i] ?? 0).padEnd(widths[i] ?? 0))
        .join(GAP)
        .trimEnd(),
    )
    .join('\n')
}

const UNPRINTABLE = /[\p{Cc}\p{Bidi_Control}\u2028\u2029]/gu

/** The text on one line, without control characters: event types, keys and errors come from outside. */
export function printable(text: string): string {
  return text.replaceAll(UNPRINTABLE, ' ').replaceAll(/ {2,}/g, ' ')
}

/** The same for a text of several lines, such as an error that repeats an argument. */
export function printableLines(text: string): string {
  return text.replaceAll(UNPRINTABLE, (character) => (character === '\n' ? character : ' '))
}

/** A command as it is: without a character of it, it would concern something else. */
export function printableCommand(command: string): string {
  return command.search(UNPRINTABLE) === -1
    ? command
    : '(the command contains control characters: --json shows it)'
}

/** JSON that is safe on a terminal: control characters are escaped, which does not change its meaning. */
export function printableJson(value: unknown, indent = 2): string {
  const text = JSON.stringify(
    value,
    (_, part: unknown) => (typeof part === 'bigint' ? String(part) : part),
    indent,
  )
  return text.replaceAll(/[\u007f-\u009f\p{Bidi_Control}\u2028\u2029]/gu, (character) => {
    return `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`
  })
}

function cut(text: string, width: number): string {
  return text.length <= width ? text : `${text.slice(0, width - 1)}…`
}

/** `12,000`, or `about 12,000` for an estimate. */
export function countText({ count, exact }: Count): string {
  return exact ? grouped(count) : `about ${grouped(count)}`
}

export interface Listing<Item> {
  /** What the items are, in the plural; the name of the list in the JSON document as well. */
  readonly what: string
  readonly items: readonly Item[]
  /** The value of the flag that shows the next page; null when this is the last page. */
  readonly next: string | null
  readonly nextFlag: '--before' | '--after'
  /** The filters. Undefined: not filtered by this. */
  readonly chosenBy: Readonly<Record<string, unknown>>
  /** Printed when there are no items at all. */
  readonly none: string
  readonly headings: readonly string[]
  readonly line: (item: Item) => readonly string[]
  /** The item in the JSON document; by default the item itself. */
  readonly json?: (item: Item) => unknown
}

/** A fact about something that is shown: its name, and its text; undefined: it does not apply. */
export type Fact = readonly [name: string, text: string | undefined]

/** One line for each fact that applies, aligned. */
export function factLines(facts: readonly Fact[]): string {
  const shown = facts.filter(([, text]) => text !== undefined)
  const width = Math.max(13, ...shown.map(([name]) => name.length))
  return shown.map(([name, text = '']) => `${name.padEnd(width)} ${printable(text)}`).join('\n')
}

/** A moment as a fact: `2026-01-31T08:15:02.125Z (2 h ago)`. */
export function momentFact(moment: Date | null, now: Date): string | undefined {
  return moment === null ? undefined : `${moment.toISOString()} (${relative(moment, now)})`
}

/** Prints a page of items as a table, or as JSON, and returns the exit code. */
export function printList<Item>({ print, flags, terminal }: Run, listing: Listing<Item>): number {
  const { what, items, next, nextFlag, chosenBy, none, headings, line, json } = listing
  if (flags['json'] === true) {
    print(`${printableJson({ [what]: json === undefined ? items : items.map(json), next })}\n`)
    return 0
  }
  if (items.length === 0) {
    const isUnfiltered = Object.values(chosenBy).every((value) => value === undefined)
    print(isUnfiltered ? `${none}\n` : `No such ${what}.\n`)
    return 0
  }
  print(`${columns([headings, ...items.map(line)], terminal.width)}\n`)
  if (next !== null) print(`There are more: ${nextFlag} ${printable(next)} shows the next ones.\n`)
  return 0
}
