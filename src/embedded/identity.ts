import { open, realpath } from 'node:fs/promises'
import { join } from 'node:path'

import { readPidFile } from './pid-file.ts'
import { withSession } from './session.ts'
import { hasCode } from './system-errors.ts'

/** The pid file is written when the process starts, the server's own start time a little later. */
const START_TIME_TOLERANCE_S = { before: 2, after: 60 }

export type Identity =
  | { readonly outcome: 'ours' }
  /** Nothing answers, or it answers that it is not ready: starting, in recovery, shutting down. */
  | { readonly outcome: 'silent'; readonly reason: string }
  /** Something answers and it is not the server of this data directory. */
  | { readonly outcome: 'other'; readonly reason: string }

/**
 * Proves that what answers on `port` is the server of this data directory: it takes our password and
 * names the system identifier, the path and the start time that the directory itself holds.
 */
export async function proveIdentity(data: string, port: number, password: string): Promise<Identity> {
  let answer: Answer
  try {
    answer = await ask(port, password)
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error)
    // 28P01, 28000: a PostgreSQL that does not know our password.
    return { outcome: hasCode(error, '28P01', '28000', '3D000') ? 'other' : 'silent', reason }
  }
  const expected = await systemIdentifier(data)
  if (answer.systemIdentifier !== expected) {
    return other(`it is database system ${answer.systemIdentifier}, the data directory is ${expected}`)
  }
  if ((await realpath(answer.dataDirectory).catch(() => answer.dataDirectory)) !== (await realpath(data))) {
    return other(`it serves ${answer.dataDirectory}`)
  }
  const pidFile = await readPidFile(data)
  if (pidFile === undefined) return { outcome: 'silent', reason: 'there is no postmaster.pid' }
  const late = answer.startedAt - pidFile.startedAt
  if (late < -START_TIME_TOLERANCE_S.before || late > START_TIME_TOLERANCE_S.after) {
    return other(`it started ${late} s after the process that postmaster.pid names`)
  }
  return { outcome: 'ours' }
}

function other(reason: string): Identity {
  return { outcome: 'other', reason }
}

interface Answer {
  readonly systemIdentifier: string
  readonly dataDirectory: string
  readonly startedAt: number
}

async function ask(port: number, password: string): Promise<Answer> {
  return withSession(port, password, async (client) => {
    const { rows } = await client.query<Answer>(`
      select system_identifier::text as "systemIdentifier",
             current_setting('data_directory') as "dataDirectory",
             extract(epoch from pg_postmaster_start_time())::float8 as "startedAt"
      from pg_control_system()`)
    const row = rows[0]
    if (row === undefined) throw new Error('pg_control_system() returned no row')
    return row
  })
}

/** The first eight bytes of pg_control, in the byte order of every platform the binaries exist for. */
async function systemIdentifier(data: string): Promise<string> {
  const file = await open(join(data, 'global', 'pg_control'), 'r')
  try {
    const { buffer } = await file.read(Buffer.alloc(8), 0, 8, 0)
    return buffer.readBigInt64LE().toString()
  } finally {
    await file.close()
  }
}
