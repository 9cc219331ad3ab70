import { until } from '../until.mjs'

export default {
  name: 'read-only',
  title: 'the database takes no writes for longer than a lease, and then does again',
  times: 2,
  async step(context) {
    const refused = context.watch('databaseLost', ({ error }) => String(error).includes('25006'))
    await setReadOnly(context, true)
    try {
      await context.delay(context.timing.leaseMs + context.random.between(500, 1_500))
    } finally {
      await setReadOnly(context, false)
    }
    for (let left = refused.count(); left > 0; left -= 1) context.fire('25006')
    await context.accepted(10)
  },
}

/** In a soak the server may be away at this moment, or have no connection left. */
async function setReadOnly(context, isReadOnly) {
  const set = async () =>
    context.withAdmin(async (admin) => {
      await admin.query(`alter system set default_transaction_read_only = ${isReadOnly}`)
      await admin.query('select pg_reload_conf()')
      return true
    })
  await until('a connection', async () => set().catch(() => false))
}
