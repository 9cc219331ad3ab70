import pg from 'pg'

export default {
  name: 'max-connections',
  title: 'max_connections is exhausted while workers lose their connections',
  times: 2,
  async step(context) {
    const clients = []
    try {
      await context.withClient(async (admin) => {
        for (;;) {
          const client = new pg.Client({ connectionString: context.url, application_name: 'hog' })
          client.on('error', () => {})
          clients.push(client)
          try {
            await client.connect()
          } catch (error) {
            if (error.code !== '53300') throw error
            context.fire('53300', { after: clients.length })
            break
          }
        }
        // Whoever loses its connection now cannot open another one: those that are freed are taken at once.
        await admin.query(
          `select pg_terminate_backend(pid) from pg_stat_activity
          where datname = current_database() and application_name like 'leasehold%' and random() < 0.7`,
        )
      })
      for (let more = 0; more < 30; more += 1) {
        const client = new pg.Client({ connectionString: context.url, application_name: 'hog' })
        client.on('error', () => {})
        clients.push(client)
        await client.connect().catch(() => {})
      }
      await context.delay(context.timing.leaseMs + 1_000)
    } finally {
      await Promise.all(clients.map(async (client) => client.end().catch(() => {})))
    }
    await context.accepted(10)
  },
}
