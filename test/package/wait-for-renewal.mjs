// Ends when the lease of the only row in the outbox was renewed.
import pg from 'pg'

const client = new pg.Client(process.env.DATABASE_URL)
await client.connect()
const leaseEnd = async () =>
  (await client.query(`select locked_until::text as until from ${process.env.SCHEMA}.outbox`)).rows[0].until
const first = await leaseEnd()
// PostgreSQL does not notify anybody of a renewal.
while ((await leaseEnd()) === first) await client.query('select pg_sleep(0.05)')
await client.end()
