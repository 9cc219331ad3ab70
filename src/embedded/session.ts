import { Socket } from 'node:net'

import { Client } from 'pg'

import { SUPERUSER } from './initialise.ts'

const CONNECT_TIMEOUT_MS = 5_000

export function urlOf(port: number, password: string, database: string): string {
  return `postgresql://${SUPERUSER}:${encodeURIComponent(password)}@127.0.0.1:${port}/${database}`
}

/** Opens one session on the maintenance database, runs `use`, and closes it again. */
export async function withSession<Value>(
  port: number,
  password: string,
  use: (client: Client) => Promise<Value>,
): Promise<Value> {
  const client = await openSession(port, password, 'leasehold embedded')
  try {
    return await use(client)
  } finally {
    await client.end()
  }
}

/** The `postgres` database, because the caller's own may not exist yet and may be dropped. */
export async function openSession(
  port: number,
  password: string,
  name: string,
  socket = new Socket(),
): Promise<Client> {
  const client = new Client({
    connectionString: urlOf(port, password, 'postgres'),
    application_name: name,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
    stream: () => socket,
  })
  // A session the server ends is noticed where the session is used; unheard, it would end the process.
  client.on('error', () => {})
  try {
    await client.connect()
    return client
  } catch (error) {
    await client.end().catch(() => {})
    throw error
  }
}
