/** What the commands that explain a row have in common: their flags, what they ask, and how an explanation is printed. */
import type { Command } from 'commander'
import type { ExplainOptions } from '../operations/explain/explain.ts'
import type { Explanation } from '../operations/explain/reasons.ts'
import type { Database } from '../postgres/index.ts'
import type { Run } from './command.ts'
import type { WithTables } from './database.ts'
import { isSet, JSON_FLAG } from './flags.ts'
import { printable, printableCommand, printableJson } from './output.ts'

export function addExplainFlags(command: Command): Command {
  return command
    .option(
      '--try',
      'if nothing keeps it from running, also claim it in a transaction that is rolled back, to see whether the database refuses it',
    )
    .option(...JSON_FLAG)
}

/** Explains a row: one line for each reason, and under it the command that would change it. */
export async function runExplain(
  run: Run,
  withTables: WithTables,
  explain: (db: Database, options: ExplainOptions) => Promise<Explanation>,
): Promise<number> {
  const { print, flags } = run
  const tryClaim = isSet(flags, 'try')
  const explanation = await withTables(
    run,
    async (db, schema) => explain(db, { schema, tryClaim }),
    // A trial needs what a claim needs.
    tryClaim ? 'worker' : undefined,
  )
  if (isSet(flags, 'json')) {
    print(`${printableJson(explanation)}\n`)
    return 0
  }
  const { table, id, state, reasons } = explanation
  const lines = reasons.flatMap(({ code, text, command }) => [
    `\n${code}: ${printable(text)}`,
    ...(command === undefined ? [] : [`  ${printableCommand(command)}`]),
  ])
  print(`${printable(`${table} ${id}: ${state}`)}\n${lines.join('\n')}\n`)
  return 0
}
