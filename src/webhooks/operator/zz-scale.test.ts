import { afterAll, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { makeEndpoint } from '../../../test/support/webhook-rows.ts'
import { openDatabase } from '../../postgres/database.ts'
import { listDeliveries } from './browse.ts'
import { countDeliveries, oldestPendingDelivery } from './counts.ts'
import { summariseEndpoints } from './endpoint-summary.ts'
import { cancel } from './cancel.ts'
import { recover, requeue } from './requeue.ts'
import { webhookUpkeep } from './upkeep.ts'
const database = useDatabase()
const db = openDatabase({ url: database.url, queryTimeoutMs: 600_000 })
afterAll(async () => db.close())
async function timed(name: string, act: () => Promise<unknown>) {
  const t = performance.now()
  let r: unknown
  try { r = await act() } catch (e) { r = String(e) }
  console.log(name, Math.round(performance.now() - t), 'ms', JSON.stringify(r, (_, v) => typeof v === 'bigint' ? String(v) : Array.isArray(v) ? v.length : v))
}
it('scale', async () => {
  const eps: string[] = []
  for (let i = 0; i < 50; i++) eps.push(await makeEndpoint(db, { tenant: 't' + (i % 5) }))
  const rare = await makeEndpoint(db)
  await db.query({ text: 'alter table leasehold.webhook_outbox disable trigger user' })
  await timed('insert', async () => db.query({ text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, created_at, next_attempt_at, delivery_status, delivered_at, failed_at, last_error, attempts)
select ($1::uuid[])[1 + n % 50], 'order.paid', '{"n":1}', m, m, s, case when s = 'delivered' then m end, case when s = 'failed' then m + interval '3 days' end, case when s='failed' then 'HTTP 500' end, 0
from (select n, now() - (3000000 - n) * interval '0.15 s' as m, case when n < 100000 and n % 2 = 0 then 'failed' when n > 2700000 and n % 3 = 0 then 'pending' else 'delivered' end as s from generate_series(1, 3000000) as n) as x`, values: [eps] }))
  await db.query({ text: `update leasehold.webhook_outbox set endpoint_id = $1 where id in (5, 70, 1000)`, values: [rare] })
  await db.query({ text: 'alter table leasehold.webhook_outbox enable trigger user' })
  await db.query({ text: 'vacuum analyze leasehold.webhook_outbox' })
  await timed('list', () => listDeliveries(db))
  await timed('list failed', () => listDeliveries(db, { status: 'failed' }))
  await timed('list failedSince', () => listDeliveries(db, { failedSince: new Date(Date.now() - 172_800_000) }))
  await timed('list rare endpoint', () => listDeliveries(db, { endpoint: rare }, { timeoutMs: 60_000 }))
  await timed('list rare endpoint failed', () => listDeliveries(db, { endpoint: rare, status: 'failed' }))
  await timed('list pending', () => listDeliveries(db, { status: 'pending' }))
  await timed('counts', () => countDeliveries(db))
  await timed('oldest', () => oldestPendingDelivery(db))
  await timed('endpoints', () => summariseEndpoints(db))
  await timed('recover dry', () => recover(db, { since: new Date(Date.now() - 30 * 86_400_000), dryRun: true }))
  await timed('recover 1 endpoint dry', () => recover(db, { since: new Date(Date.now() - 30 * 86_400_000), endpoint: rare, dryRun: true }))
  await timed('requeue delivered of rare dry', () => requeue(db, { filter: { status: 'delivered', endpoint: rare }, dryRun: true }))
  await timed('cancel rare dry', () => cancel(db, { filter: { endpoint: rare }, dryRun: true }))
  await timed('requeue 20000', () => requeue(db, { filter: { status: 'failed' }, limit: 20000, principal: 'a', reason: 'b' }))
  await timed('cancel 20000', () => cancel(db, { filter: { status: 'pending' }, limit: 20000, principal: 'a', reason: 'b' }))
  await timed('upkeep nothing', () => webhookUpkeep(db, { pauseMs: 0 }))
  await timed('upkeep', () => webhookUpkeep(db, { pauseMs: 0, deliveredMs: 450_000_000 }))
}, 600_000)
