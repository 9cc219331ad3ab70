/** `leasehold audit`: who has changed what. */
import { listAudit, type RecordedEntry } from '../operations/audit.ts'
import type { Run } from './command.ts'
import { withRegistry } from './database.ts'
import { readPeriod, textFlag } from './flags.ts'
import { runListCommand } from './list.ts'
import { relative } from './output.ts'

export async function audit(run: Run): Promise<number> {
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
