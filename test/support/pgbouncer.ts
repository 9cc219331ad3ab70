import { chmod, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'pg'
import { type TestBroker, useBroker } from './brokers/broker.ts'

export interface TestPooler extends TestBroker {
  /** The URL of the same database through the pooler. */
  urlOf(databaseUrl: string): string
  /** The pool mode and the number of transactions for this database so far. */
  served(database: string): Promise<{ readonly mode: string; readonly transactions: number }>
}

export type PoolMode = 'transaction' | 'session'

/**
 * In transaction mode fewer than its clients use, so that they share the sessions of the server, as in production. In
 * session mode each client has one of its own.
 */
const SERVER_SESSIONS: Readonly<Record<PoolMode, number>> = { transaction: 4, session: 100 }

/** A PgBouncer in front of this server. */
export function usePooler(databaseUrl: string, mode: PoolMode = 'transaction'): TestPooler {
  const server = new URL(databaseUrl)
  const broker = useBroker({
    program: 'pgbouncer',
    install: 'apt-get install pgbouncer',
    url: (port) => `postgresql://127.0.0.1:${port}`,
    async call(program, directory, port) {
      const file = join(directory, 'pgbouncer.ini')
      await writeFile(file, configuration(server, port, mode))
      // It does not run as root, and its account must be able to read this.
      await chmod(directory, 0o755)
      const asRoot = process.getuid?.() === 0
      return { program, args: [...(asRoot ? ['-u', 'nobody'] : []), file], ready: /process up/ }
    },
  })
  // Not a spread, which would read the getters before the port is known.
  return Object.assign(broker, {
    urlOf(url: string) {
      const through = new URL(url)
      through.hostname = '127.0.0.1'
      through.port = String(broker.port)
      // It accepts everybody, and so it does not prove that it knows the password, as a client of the embedded server demands.
      through.password = 'any'
      return through.href
    },
    async served(database: string) {
      const console = new Client({
        connectionString: `postgresql://anybody@127.0.0.1:${broker.port}/pgbouncer`,
      })
      await console.connect()
      try {
        const pools = await console.query<{ database: string; pool_mode: string }>('show pools')
        const stats = await console.query<{ database: string; total_xact_count: string }>('show stats')
        return {
          mode: pools.rows.find((row) => row.database === database)?.pool_mode ?? 'none',
          transactions: Number(stats.rows.find((row) => row.database === database)?.total_xact_count ?? 0),
        }
      } finally {
        await console.end()
      }
    },
  })
}

/** Every client is accepted as the same user, because it only listens on loopback during a test. */
function configuration(server: URL, port: number, mode: PoolMode): string {
  const target = {
    host: server.hostname,
    port: server.port || '5432',
    user: decodeURIComponent(server.username),
    password: decodeURIComponent(server.password),
  }
  const settings = {
    listen_addr: '127.0.0.1',
    listen_port: port,
    unix_socket_dir: '',
    auth_type: 'any',
    pool_mode: mode,
    default_pool_size: SERVER_SESSIONS[mode],
    max_client_conn: 200,
  }
  const quoted = Object.entries(target).map(([name, value]) => `${name}='${value.replaceAll("'", "''")}'`)
  return [
    '[databases]',
    `* = ${quoted.join(' ')}`,
    '[pgbouncer]',
    ...Object.entries(settings).map(([name, value]) => `${name} = ${value}`),
    '',
  ].join('\n')
}
