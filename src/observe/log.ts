import { pino, type Logger } from 'pino'
import { errorEntry } from './error-entry.ts'
import { readable } from './readable.ts'

export type { Logger } from 'pino'

export interface LogOptions {
  readonly level: string
  /** `json`: a line of JSON for each entry. `pretty`: a short line for a person. */
  readonly format: 'json' | 'pretty'
  readonly write: (text: string) => void
}

/** What must not be in a log whatever the entry (WH-NFR-003). */
const SECRETS = ['password', 'secret', 'signature', 'authorization', 'databaseUrl']

/** `postgresql://user:password@host`: an error message of a library may quote a URL. */
const URL_PASSWORD = /(\w:\/\/[^\s:@/"?#]*):[^\s"/?#]+@/g

export function createLog({ level, format, write }: LogOptions): Logger {
  const show = format === 'pretty' ? readable : (line: string): string => line
  return pino(
    {
      level,
      // The process and its host are known to whoever collects the lines.
      base: null,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      serializers: { err: errorEntry },
      redact: { paths: SECRETS.flatMap((name) => [name, `*.${name}`]), censor: '***' },
    },
    { write: (line) => write(withoutUrlPasswords(show(line))) },
  )
}

export function withoutUrlPasswords(text: string): string {
  return text.replaceAll(URL_PASSWORD, '$1:***@')
}
