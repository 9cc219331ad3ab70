import { Client } from 'pg'
import { LeaseholdError } from '../errors.ts'

/** Throws for a URL that no connection could be made from; the message never repeats it, it holds a password. */
export function assertUsableUrl(url: string): void {
  const remedy = 'Give one of the form postgresql://user:password@host:5432/database.'
  if (url === '') throw new LeaseholdError('SETTING_INVALID', 'The database URL is empty.', { remedy })
  try {
    // Only parsed here; nothing is dialled.
    void new Client({ connectionString: url })
  } catch {
    throw new LeaseholdError('SETTING_INVALID', 'The database URL cannot be read.', { remedy })
  }
}
