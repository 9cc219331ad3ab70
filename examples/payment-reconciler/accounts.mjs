// The database roles of the services: what each needs of Leasehold (docs/operations/roles.md) and of the application's own tables.

/** `password` names the environment variable that holds it. */
export const ACCOUNTS = [
  {
    name: 'payments_api',
    password: 'API_PASSWORD',
    member: ['leasehold_producer'],
    grants: ['select, insert, update on app.payment_requests'],
  },
  {
    name: 'payments_reaper',
    password: 'REAPER_PASSWORD',
    member: ['leasehold_worker'],
    grants: ['select, update on app.payment_requests'],
  },
  {
    name: 'payments_reconciler',
    password: 'RECONCILER_PASSWORD',
    // Every step of a payment writes an event.
    member: ['leasehold_worker', 'leasehold_producer'],
    grants: ['select, update on app.payment_requests'],
  },
  { name: 'payments_relay', password: 'RELAY_PASSWORD', member: ['leasehold_worker'], grants: [] },
  {
    name: 'payments_dispatcher',
    password: 'DISPATCHER_PASSWORD',
    // Alone among the workers it reads the secrets of endpoints.
    member: ['leasehold_dispatcher'],
    grants: [],
  },
  {
    name: 'payments_sync',
    password: 'SYNC_PASSWORD',
    member: ['leasehold_worker'],
    grants: ['select, insert, update on app.blocks'],
  },
]

/** Creates the role, or sets its password. Can be repeated. */
export async function createAccount(db, { name, member, grants }, password) {
  const { rows } = await db.query({
    text: `select quote_literal($1) as password, exists (select from pg_roles where rolname = $2) as known`,
    values: [password, name],
  })
  const [{ password: quoted, known }] = rows
  await db.query({ text: `${known ? 'alter' : 'create'} role ${name} login password ${quoted}` })
  await db.query({ text: `grant usage on schema app to ${name}` })
  for (const role of member) await db.query({ text: `grant ${role} to ${name}` })
  for (const privilege of grants) await db.query({ text: `grant ${privilege} to ${name}` })
}
