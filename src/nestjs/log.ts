/** Leasehold's log, written through Nest's Logger. */
import { Logger } from '@nestjs/common'
import type { EventLogger } from '../observe/log.ts'
import type { LogSource } from '../worker/context.ts'
import { textEntry } from '../worker/unheard-log.ts'

/**
 * Entries as lines of text, because Nest's own logger prints an object over many lines. What happens to single rows in the
 * normal course of work is not written: Nest enables every level by default, and a busy worker would fill the log.
 */
export function nestLog(context: string): EventLogger & LogSource {
  return boundTo(new Logger(context), {})
}

function boundTo(logger: Logger, bound: object): EventLogger & LogSource {
  const text = (fields: object, message: string): string => {
    const { text: line, frames } = textEntry({ ...bound, ...fields }, message)
    return `${line}${frames}`
  }
  return {
    trace: (fields, message) => logger.verbose(text(fields, message)),
    debug: (fields, message) => logger.debug(text(fields, message)),
    info: (fields, message) => logger.log(text(fields, message)),
    warn: (fields, message) => logger.warn(text(fields, message)),
    error: (fields, message) => logger.error(text(fields, message)),
    child: (fields) => boundTo(logger, { ...bound, ...fields }),
    isLevelEnabled: (level) => level !== 'debug' && level !== 'trace',
  }
}
