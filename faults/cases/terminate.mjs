export default {
  name: 'terminate',
  title: 'pg_terminate_backend ends sessions of workers and producers again and again',
  times: 20,
  async step(context) {
    const { rowCount } = await context.withClient(async (client) =>
      client.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and random() < 0.5`,
      ),
    )
    if (rowCount > 0) context.fire('pg_terminate_backend', { sessions: rowCount })
    await context.delay(context.random.between(50, 500))
  },
}
