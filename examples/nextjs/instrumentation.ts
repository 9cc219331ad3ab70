/** Next.js calls this once, before the first request. */
export async function register(): Promise<void> {
  if (process.env.NEXT_RUNTIME !== 'nodejs') return
  const { migrate } = await import('leasehold')
  const { database } = await import('./lib/database')
  await migrate(database())
  await database().query({
    text: `create table if not exists orders (
      id bigint generated always as identity primary key, item text not null, confirmed_at timestamptz)`,
  })
}
