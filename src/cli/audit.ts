/** `leasehold audit`: who has changed what. */
import type { Command } from 'commander'
import { listAudit, type RecordedEntry } from '../admin/audit.ts'
import { addPeriodFlags, readPeriod } from './bulk-change.ts'
import { DATABASE_SETTINGS, type Define, type Run } from './command.ts'
import { withRegistry } from './database.ts'
import { textFlag } from './flags.ts'
import { addListFlags, runListCommand } from './list.ts'
import { relative } from './output.ts'

export function addAuditCommand(program: Command, define: Define): void {
  define(
    program,
    'audit',
    'show what operators have changed, newest first',
    DATABASE_SETTINGS,
    auditCommand,
    (command) =>
      addListFlags(
        addPeriodFlags(
          command
            .option('--principal <name>', 'only changes by this account or key')
            .option('--action <name>', 'only this action: outbox.replay, or outbox.* for all of the outbox')
            .option('--target <id>', 'only changes of this object'),
          'changes made',
        ),
        'entries',
      ),
  )
}

async function auditCommand(run: Run): Promise<number> {
  return runListCommand(run, {
    what: 'entries',
    before: 'the id of an entry',
    readFilter: (flags, now) => ({
      principal: textFlag(flags, 'principal'),
      action: textFlag(flags, 'action'),
      target: textFlag(flags, 'target'),
      ...readPeriod(flags, now),
    }),
    async list(db, filter, options) {
      const { rows, next } = await listAudit(db, filter, options)
      return { entries: rows, next }
    },
    withTables: withRegistry,
    none: 'The audit is empty.',
    headings: ['ID', 'WHEN', 'WHO', 'ACTION', 'TARGET', 'REASON'],
    line: ({ id, at, principal, action, target, details }: RecordedEntry, now) => [
      id,
      relative(at, now),
      principal,
      action,
      target ?? '-',
      'reason' in details && typeof details.reason === 'string' ? details.reason : '',
    ],
  })
}
