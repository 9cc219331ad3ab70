export default {
  name: 'statement-timeout',
  title: 'the role of the workers has a statement_timeout of 200 ms, and the table is locked for longer',
  async prepare(context) {
    await context.withAdmin(async (admin) =>
      admin.query(`alter database ${context.database} set statement_timeout = '200ms'`),
    )
  },
  async run(context) {
    const cancelled = context.watch('databaseLost', ({ error }) => String(error).includes('57014'))
    const troubled = context.watch('trouble', ({ error }) => String(error).includes('57014'))
    for (let round = context.rounds(8); round > 0; round -= 1) {
      await context.withClient(async (client) => {
        await client.query('set statement_timeout = 0')
        await client.query('begin')
        await client.query('lock table leasehold.outbox in exclusive mode')
        await context.delay(context.random.between(400, 900))
        await client.query('rollback')
      })
      await context.delay(context.random.between(100, 600))
    }
    for (let left = cancelled.count() + troubled.count(); left > 0; left -= 1) context.fire('57014')
  },
}
