import { readFile } from 'node:fs/promises'
import { join } from 'node:path'

import { hasCode } from './system-errors.ts'

/** What postmaster.pid says of the server that wrote it. */
export interface PidFile {
  readonly pid: number
  readonly dataDirectory: string
  /** Seconds since the epoch. */
  readonly startedAt: number
  /** Absent while the server has only just begun. */
  readonly port: number | undefined
  /** The text itself, to see whether the file is still the same one. */
  readonly text: string
}

export function pidFilePath(data: string): string {
  return join(data, 'postmaster.pid')
}

export async function readPidFile(data: string): Promise<PidFile | undefined> {
  let text: string
  try {
    text = await readFile(pidFilePath(data), 'utf8')
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return undefined
    throw error
  }
  const [pid = '', dataDirectory = '', startedAt = '', port = ''] = text.split('\n')
  return {
    pid: Number.parseInt(pid, 10),
    dataDirectory,
    startedAt: Number.parseInt(startedAt, 10),
    port: /^\d+$/.test(port) ? Number(port) : undefined,
    text,
  }
}
