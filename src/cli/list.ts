/** What the lists of events, deliveries and jobs have in common on the command line. */
import type { Command } from 'commander'
import type { PageOptions } from '../operations/browse.ts'
import type { Database } from '../postgres/index.ts'
import type { Run } from './command.ts'
import { beforeFlag, JSON_FLAG, limitFlag } from './flags.ts'
import { printList } from './output.ts'

export interface ListCommand<Filter extends object, What extends string, Item> {
  /** What the rows are called, in the page that is read and in the JSON document as well. */
  readonly what: What
  /** What `--before` accepts: `the id of an event`. */
  readonly before: string
  readonly readFilter: (flags: Run['flags'], now: Date) => Filter
  readonly list: (db: Database, filter: Filter, options: PageOptions) => Promise<ListPage<What, Item>>
  readonly withTables: <Result>(
    run: Run,
    act: (db: Database, schema: string) => Promise<Result>,
  ) => Promise<Result>
  /** Printed when there are no rows at all. */
  readonly none: string
  readonly headings: readonly string[]
  /** One row of the table. Without a width it may be as wide as it has to. */
  readonly line: (item: Item, now: Date, width: number | undefined) => readonly string[]
}

type ListPage<What extends string, Item> = Readonly<Record<What, readonly Item[]>> & {
  readonly next: string | null
}

/** The flags of every list, besides those that choose rows. */
export function addListFlags(command: Command, rows: string): Command {
  return command
    .option('--limit <n>', 'show at most this many (default: 50)')
    .option('--before <id>', `only ${rows} with ids smaller than this, for the next page`)
    .option(...JSON_FLAG)
}

/** Prints one page, newest first. */
export async function runListCommand<Filter extends object, What extends string, Item>(
  run: Run,
  command: ListCommand<Filter, What, Item>,
): Promise<number> {
  const { what, none, headings, line } = command
  const now = new Date()
  const filter = command.readFilter(run.flags, now)
  const limit = limitFlag(run.flags)
  const before = beforeFlag(run.flags, command.before)
  const page = await command.withTables(run, async (db, schema) =>
    command.list(db, filter, { schema, limit, before }),
  )
  return printList(run, {
    what,
    items: page[what],
    next: page.next,
    nextFlag: '--before',
    chosenBy: { ...filter, before },
    none,
    headings,
    line: (item) => line(item, now, run.terminal.width),
  })
}
