/** `leasehold changes …`: bulk changes, those that the HTTP API runs in the background among them. */
import type { Command } from 'commander'
import { cancelChange, type ChangeSummary, listChanges, showChange } from '../operations/changes.ts'
import { DATABASE_SETTINGS, type Define, type Run } from './command.ts'
import { withRegistry } from './database.ts'
import { isSet, JSON_FLAG, PRINCIPAL_FLAG, principalOf } from './flags.ts'
import { runListCommand } from './list.ts'
import { factLines, grouped, momentFact, printableJson, relative } from './output.ts'

export function addChangeCommands(changes: Command, define: Define): void {
  define(changes, 'list', 'show bulk changes, the latest first', DATABASE_SETTINGS, list, (command) =>
    command
      .option('--limit <n>', 'show at most this many (default: 50)')
      .option('--before <position>', 'the next page: what the page before says')
      .option(...JSON_FLAG),
  )
  define(changes, 'show <id>', 'show how far a bulk change is', DATABASE_SETTINGS, show, (command) =>
    command.option(...JSON_FLAG),
  )
  define(
    changes,
    'cancel <id>',
    'end a bulk change; what it has changed stays changed',
    DATABASE_SETTINGS,
    cancel,
    (command) => command.option(...PRINCIPAL_FLAG).option(...JSON_FLAG),
  )
}

async function list(run: Run): Promise<number> {
  return runListCommand(run, {
    what: 'changes',
    before: '`next` of the page before',
    readFilter: () => ({}),
    async list(db, _filter, options) {
      const { rows, next } = await listChanges(db, options)
      return { changes: rows, next }
    },
    withTables: withRegistry,
    none: 'There was no bulk change.',
    headings: ['ID', 'ACTION', 'STATE', 'CHANGED', 'STARTED', 'WHO', 'REASON'],
    line: (change: ChangeSummary, now) => [
      change.id,
      change.action,
      change.state,
      progressOf(change),
      relative(change.startedAt, now),
      change.principal,
      change.reason,
    ],
  })
}

function progressOf({ changed, matched }: ChangeSummary): string {
  return matched === null ? grouped(changed) : `${grouped(changed)} of ${grouped(matched)}`
}

async function show(run: Run): Promise<number> {
  const [id = ''] = run.args
  return print(run, await withRegistry(run, async (db, schema) => showChange(db, id, schema)))
}

async function cancel(run: Run): Promise<number> {
  const [id = ''] = run.args
  const principal = principalOf(run)
  const ended = await withRegistry(
    run,
    async (db, schema) => cancelChange(db, id, { principal, schema }),
    'operator',
  )
  return print(run, ended)
}

function print({ flags, print: write }: Run, change: ChangeSummary): number {
  const now = new Date()
  const facts = factLines([
    ['Change', change.id],
    ['Action', change.action],
    ['State', change.state],
    ['Changed', progressOf(change)],
    ['Filter', Object.keys(change.filter).length === 0 ? undefined : JSON.stringify(change.filter)],
    ['Named ids', change.namedIds === null ? undefined : grouped(change.namedIds)],
    ['Rate', change.rate === null ? undefined : `${change.rate} per second`],
    ['Limit', change.limit === null ? undefined : grouped(change.limit)],
    ['Who', change.principal],
    ['Reason', change.reason],
    ['Started', momentFact(change.startedAt, now)],
    ['Last batch', momentFact(change.updatedAt, now)],
    ['Ended', momentFact(change.finishedAt, now)],
    ['Cancelled by', change.cancelledBy ?? undefined],
    ['Error', change.error ?? undefined],
    ['Continue', howToContinue(change)],
  ])
  write(isSet(flags, 'json') ? `${printableJson(change)}\n` : `${facts}\n`)
  return 0
}

/** A server continues its changes itself. */
function howToContinue({ state, isBackground, action, id }: ChangeSummary): string | undefined {
  if (state !== 'running' || isBackground) return undefined
  const command = action.replace('.', ' ').replace('giveUp', 'give-up')
  return `leasehold ${command} --resume ${id}, if the command that ran it has ended`
}
