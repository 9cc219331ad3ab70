import { UsageError } from './run.ts'
import { printable } from './text-columns.ts'

/** A payload as it stands on the command line, or comes from stdin. */
export function jsonArgument(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    const start = printable(text.length > 60 ? `${text.slice(0, 60)}…` : text)
    const problem = error instanceof Error ? printable(error.message) : String(error)
    throw new UsageError(
      `the payload is not JSON: ${start}\n  ${problem}\n  Give it as '{"id": 1}', a text as '"text"', or - to read it from stdin.`,
    )
  }
}
