import { type Run, UsageError } from './run.ts'
import { textFlag } from './flag-values.ts'

/** Who is at it, for the audit. */
export function principalOf({ flags, terminal }: Pick<Run, 'flags' | 'terminal'>): string {
  const given = textFlag(flags, 'principal')
  if (given !== undefined) return given
  try {
    return terminal.account()
  } catch {
    throw new UsageError('this account has no name for the audit: say who you are with --principal.')
  }
}

export function reasonOf(flags: Run['flags']): string {
  const reason = textFlag(flags, 'reason')
  if (reason !== undefined) return reason
  throw new UsageError('--reason is missing: say why, in a few words; the audit keeps it.')
}
