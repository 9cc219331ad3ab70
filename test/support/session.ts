import { Client } from 'pg'
import { onTestFinished } from 'vitest'

/** A session of its own, which ends with the test. */
export async function openSession(url: string): Promise<Client> {
  const client = new Client({ connectionString: url })
  await client.connect()
  onTestFinished(async () => client.end())
  return client
}
