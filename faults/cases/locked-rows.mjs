export default {
  name: 'locked-rows',
  title: 'another session keeps rows locked for longer than their leases',
  worker: { publishMs: [20, 200] },
  produces: { pauseMs: 60, keys: 30 },
  times: 5,
  async step(context) {
    await context.withClient(async (client) => {
      await client.query('begin')
      const { rowCount } = await client.query(
        `select id from leasehold.outbox where status in ('CLAIMED', 'PENDING') order by random() limit 8
        for update skip locked`,
      )
      if (rowCount > 0) context.fire('rows locked', { rows: rowCount })
      await context.delay(context.timing.leaseMs + 500)
      await client.query('rollback')
    })
  },
}
