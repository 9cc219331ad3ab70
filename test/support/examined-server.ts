import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { Client } from 'pg'
import { afterAll, beforeAll } from 'vitest'
import { type Diagnosis, examine, type ExamineOptions, type Finding } from '../../src/doctor/doctor.ts'
import { type Database, migrate, openDatabase } from '../../src/postgres/index.ts'
import { callLeasehold } from './command-line.ts'
import { removeDirectory, temporaryDirectory } from './directory.ts'
import { type ServerOptions, startServer, type TestServer } from './server.ts'

/** What an administrator would set, and room for a prepared transaction. */
const SETTINGS = {
  fsync: 'on',
  full_page_writes: 'on',
  idle_in_transaction_session_timeout: '5min',
  max_prepared_transactions: '5',
}

export interface ExaminedServer {
  /** Of the owner of the schema, who is no superuser. */
  readonly url: () => string
  readonly adminUrl: () => string
  /** A pool of the owner. */
  readonly db: () => Database
  /** Runs statements as a superuser, each by itself. */
  readonly asAdmin: (...statements: readonly string[]) => Promise<void>
  /** Examines in new sessions of the owner. */
  readonly examine: (options?: ExamineOptions) => Promise<Diagnosis>
  /** Does what the finding says: statements as the owner, commands as the command line. */
  readonly repair: (finding: Finding) => Promise<void>
}

/** The arguments that a shell would give to the command. */
export async function argumentsOf(command: string): Promise<string[]> {
  const { stdout } = await promisify(execFile)('sh', [
    '-c',
    `leasehold() { printf '%s\\0' "$@"; }\n${command}`,
  ])
  return stdout.split('\0').slice(0, -1)
}

/** A server of this file alone, set up with care, on which a role that is no superuser has migrated the schema. */
export function useExaminedServer(options: ServerOptions = {}): ExaminedServer {
  let server: TestServer
  let db: Database
  let directory = ''
  const url = (): string => {
    const owner = new URL(server.url)
    owner.username = 'owner'
    owner.password = 'only-for-this-test'
    return owner.href
  }
  const run = async (as: string, statements: readonly string[]): Promise<void> => {
    const client = new Client({ connectionString: as })
    await client.connect()
    try {
      for (const statement of statements) await client.query(statement)
    } finally {
      await client.end()
    }
  }
  const asAdmin = async (...statements: readonly string[]): Promise<void> => run(server.url, statements)

  beforeAll(async () => {
    server = await startServer({ ...options, settings: { ...SETTINGS, ...options.settings } })
    directory = await temporaryDirectory()
    const { pathname } = new URL(server.url)
    await asAdmin(
      `create role owner login createrole password 'only-for-this-test'`,
      `alter database ${pathname.slice(1)} owner to owner`,
    )
    db = openDatabase({ url: url() })
    await migrate(db)
  })
  afterAll(async () => {
    await db.close()
    await server.remove()
    await removeDirectory(directory)
  })

  return {
    url,
    adminUrl: () => server.url,
    db: () => db,
    asAdmin,
    async examine(given) {
      // A setting of the role applies to new sessions.
      const fresh = openDatabase({ url: url(), maxConnections: 2 })
      try {
        return await examine(fresh, given)
      } finally {
        await fresh.close()
      }
    },
    async repair({ repair = [] }) {
      for (const step of repair) {
        if (!step.startsWith('leasehold ')) {
          await run(url(), [step])
          continue
        }
        const args = await argumentsOf(step)
        const called = await callLeasehold(args, { databaseUrl: url(), workingDirectory: directory })
        if (called.code !== 0) throw new Error(called.stderr)
      }
    },
  }
}
