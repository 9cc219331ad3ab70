/** What a command is: how it is defined, and what it is given when it is called. */
import type { Command } from 'commander'
import type { LoadedSettings } from '../config/load.ts'
import type { SettingName } from '../config/schema.ts'
import type { Logger } from '../observe/log.ts'

/** Everything of the process that a command uses, so that a test can call commands without one. */
export interface Terminal {
  readonly environment: Readonly<Record<string, string | undefined>>
  readonly workingDirectory: string
  /** Whether a person reads stderr. */
  readonly isTerminal: boolean
  /** Whether a terminal is at stdin, stdout or stderr: the process is told by SIGHUP when it is closed. */
  readonly hasTerminal: boolean
  /** Results go to stdout; the log and errors go to stderr. */
  readonly out: (text: string) => void
  readonly err: (text: string) => void
  /** Characters in a row of stdout; undefined when it is not a terminal and text may have any width. */
  readonly width: number | undefined
  /** Reads all of stdin. */
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
  /** The options of the command by their names in camel case. */
  readonly flags: Readonly<Record<string, unknown>>
  /** The arguments that are not options, in order. */
  readonly args: readonly string[]
  readonly terminal: Terminal
}

/** The command was called incorrectly: the exit code is 2. */
export class UsageError extends Error {
  override readonly name = 'UsageError'
}

/** Adds a command; in its help, its own options come before the settings. */
export type Define = (
  parent: Command,
  usage: string,
  description: string,
  settings: readonly SettingName[],
  act: (run: Run) => Promise<number>,
  addOptions?: (command: Command) => void,
) => void

/** The settings of every command that uses a database. */
export const DATABASE_SETTINGS = [
  'databaseUrl',
  'directory',
  'schema',
  'databaseWaitMs',
  'logLevel',
  'logFormat',
] as const

/** The settings of every command that sends webhooks or creates endpoints. */
export const WEBHOOK_SETTINGS = [
  'webhookAllow',
  'webhookRefuse',
  'webhookPorts',
  'webhookProxy',
  'webhookEndpointsPerTenant',
] as const
