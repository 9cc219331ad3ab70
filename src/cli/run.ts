import type { Logger } from '../observe/index.ts'
import type { LoadedSettings } from '../config/index.ts'

/** What a command touches of the process, so that nothing else does. */
export interface Terminal {
  readonly environment: Readonly<Record<string, string | undefined>>
  readonly workingDirectory: string
  /** Whether a person reads stderr. */
  readonly isTerminal: boolean
  /** Answers go to stdout; the log and errors go to stderr. */
  readonly out: (text: string) => void
  readonly err: (text: string) => void
  /** How many characters a line of stdout has; undefined when it is no terminal, and lines may be of any length. */
  readonly width: number | undefined
  /** Everything that comes in on stdin. */
  readonly input: () => Promise<string>
  /** Asks the person at the terminal; undefined when there is none. */
  readonly ask: ((question: string) => Promise<string>) | undefined
  /** The account that runs the command, for the audit. */
  readonly account: () => string
}

/** One call of a command. */
export interface Run {
  readonly loaded: LoadedSettings
  readonly log: Logger
  readonly version: string
  readonly print: (text: string) => void
  /** What is an option of one command and no setting. */
  readonly flags: Readonly<Record<string, unknown>>
  /** What was given without a flag, in order. */
  readonly args: readonly string[]
  readonly terminal: Terminal
}

/** The command was wrongly called: the exit code is 2. */
export class UsageError extends Error {
  override readonly name = 'UsageError'
}
