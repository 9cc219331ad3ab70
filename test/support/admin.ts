import { Client } from 'pg'

/** Runs `use` with a connection of a superuser. Does not import vitest, so that the global setup can use it. */
export async function withAdmin(url: string, use: (admin: Client) => Promise<void>): Promise<void> {
  const admin = new Client({ connectionString: url, application_name: 'test administration' })
  await admin.connect()
  try {
    await use(admin)
  } finally {
    await admin.end()
  }
}

/** The URL of another database on the same server. */
export function withDatabase(url: string, name: string): string {
  const changed = new URL(url)
  changed.pathname = `/${encodeURIComponent(name)}`
  return changed.href
}
