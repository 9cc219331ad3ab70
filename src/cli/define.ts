import type { Command } from 'commander'
import type { SettingName } from '../config/index.ts'
import type { Run } from './run.ts'

/** What every command needs that talks to a database. */
export const DATABASE_SETTINGS = [
  'databaseUrl',
  'directory',
  'schema',
  'databaseWaitMs',
  'logLevel',
  'logFormat',
] as const

/** Where webhooks may go. */
export const WEBHOOK_SETTINGS = ['webhookAllow', 'webhookProxy'] as const

/** Adds a command; its own options stand before the settings in its help. */
export type Define = (
  parent: Command,
  usage: string,
  description: string,
  settings: readonly SettingName[],
  act: (run: Run) => Promise<number>,
  addOptions?: (command: Command) => void,
) => void
