const TABLE = 'leasehold.outbox'
const COPY = 'public.dump'

export default {
  name: 'restore',
  title: 'an older copy of the table is restored while workers and producers run',
  async run(context) {
    const sql = async (text) => context.withClient(async (client) => client.query(text))
    await sql(`create table ${COPY} as table ${TABLE}`)
    await context.accepted(context.short ? 50 : 200)
    const rows = await context.withClient(async (client) => {
      await client.query('begin')
      await client.query(`lock table ${TABLE} in access exclusive mode`)
      await client.query(`truncate ${TABLE}`)
      await client.query(`insert into ${TABLE} overriding system value select * from ${COPY}`)
      await client.query('truncate public.changes')
      const restored = await client.query(`select id::text as id from ${TABLE}`)
      await client.query('commit')
      return restored.rows.map(({ id }) => id)
    })
    context.history.write({ type: 'restored', rows })
    context.fire('restored', { rows: rows.length })
    await context.accepted(50)
  },
}
