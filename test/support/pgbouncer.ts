import { chmod, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'pg'
import { type TestBroker, useBroker } from './brokers/broker.ts'

export interface TestPooler extends TestBroker {
  /** The same database, by way of the pooler. */
  urlOf(databaseUrl: string): string
  /** How it has served this database so far. */
  served(database: string): Promise<{ readonly mode: string; readonly transactions: number }>
}

/** Fewer than its clients use: they share the sessions of the server, as they would in earnest. */
const SERVER_SESSIONS = 4

/** A PgBouncer in transaction mode in front of this server. */
export function usePooler(databaseUrl: string): TestPooler {
  const behind = new URL(databaseUrl)
  const broker = useBroker({
    program: 'pgbouncer',
    install: 'apt-get install pgbouncer',
    url: (port) => `postgresql://127.0.0.1:${port}`,
    async call(program, directory, port) {
      const file = join(directory, 'pgbouncer.ini')
      await writeFile(file, configuration(behind, port))
      // It refuses to run as root, and whoever it becomes has to read this.
      await chmod(directory, 0o755)
      const asRoot = process.getuid?.() === 0
      return { program, args: [...(asRoot ? ['-u', 'nobody'] : []), file], ready: /process up/ }
    },
  })
  // Spread, they would be read now: the port is known later.
  return Object.assign(broker, {
    urlOf(url: string) {
      const through = new URL(url)
      through.hostname = '127.0.0.1'
      through.port = String(broker.port)
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

/** Whoever comes is let in, as the one user: it listens on the loopback of a test. */
function configuration(behind: URL, port: number): string {
  const server = {
    host: behind.hostname,
    port: behind.port || '5432',
    user: decodeURIComponent(behind.username),
    password: decodeURIComponent(behind.password),
  }
  const settings = {
    listen_addr: '127.0.0.1',
    listen_port: port,
    unix_socket_dir: '',
    auth_type: 'any',
    pool_mode: 'transaction',
    default_pool_size: SERVER_SESSIONS,
    max_client_conn: 200,
  }
  const quoted = Object.entries(server).map(([name, value]) => `${name}='${value.replaceAll("'", "''")}'`)
  return [
    '[databases]',
    `* = ${quoted.join(' ')}`,
    '[pgbouncer]',
    ...Object.entries(settings).map(([name, value]) => `${name} = ${value}`),
    '',
  ].join('\n')
}
