/** Rows that were written while the clock of the database was ahead, after it was set back. */
import { beforeEach, expect, it } from 'vitest'
import { examine } from '../src/doctor/doctor.ts'
import { useApi } from './support/api.ts'
import { makeEndpoint } from './support/webhook-endpoints.ts'

const { db, send } = useApi()

beforeEach(async () => {
  await db.query({
    text: 'truncate leasehold.outbox, leasehold.webhook_outbox, leasehold.webhook_endpoints, leasehold.sync_jobs, leasehold.sync_checkpoints restart identity cascade',
  })
})

/** In each table, by a clock that was an hour ahead: as a producer writes it, and for a later time. And the latter by the right clock. */
async function writeAhead(): Promise<void> {
  const endpoint = await makeEndpoint(db, {})
  const times = `(values
    (now() + interval '1 hour', now() + interval '1 hour'),
    (now() + interval '1 hour', now() + interval '3 hours'),
    (now(), now() + interval '2 hours')) as at (written, due)`
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload, ordering_key, created_at, available_at)
select 'a', '{}', key, written, due from ${times} cross join (values (null), ('k')) as keys (key)`,
  })
  await db.query({
    text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, ordering_key, created_at, next_attempt_at)
select $1::uuid, 'a', '{}', key, written, due from ${times} cross join (values (null), ('k')) as keys (key)`,
    values: [endpoint],
  })
  await db.query({
    text: `insert into leasehold.sync_jobs (definition, matrix_id, created_at, next_check_at)
select 'd', written::text || due::text, written, due from ${times}`,
  })
  await db.query({
    text: `insert into leasehold.sync_checkpoints (definition, matrix_id, chunk_hash, chunk_query, created_at, next_attempt_at)
select 'd', 'm', written::text || due::text, '{}', written, due from ${times}`,
  })
}

async function overview(): Promise<readonly unknown[]> {
  const { body } = await send('GET', '/overview', { key: 'read' })
  return [body.outbox.writtenAhead, body.webhooks.writtenAhead, body.sync.writtenAhead]
}

it('the doctor and the overview show rows that wait only because the clock was ahead when they were written, and the remedy makes them due', async () => {
  expect(await overview()).toEqual([0, 0, 0].map((count) => ({ count, exact: true })))
  await writeAhead()
  expect(await overview()).toEqual([2, 2, 2].map((count) => ({ count, exact: true })))
  const found = async () => (await examine(db)).findings.filter(({ check }) => check === 'rows-ahead')
  const findings = await found()
  expect(findings.map(({ text }) => text)).toEqual([
    expect.stringMatching(/^2 rows of leasehold\.outbox wait only because .* up to 60 min/),
    expect.stringMatching(/^2 rows of leasehold\.webhook_outbox wait only because/),
    expect.stringMatching(/^1 row of leasehold\.sync_jobs waits only because/),
    expect.stringMatching(/^1 row of leasehold\.sync_checkpoints waits only because/),
  ])
  for (const { repair = [] } of findings) for (const text of repair) await db.query({ text })
  expect(await found()).toEqual([])
  expect(await overview()).toEqual([0, 0, 0].map((count) => ({ count, exact: true })))
  // What was written for a later time still waits.
  const { rows } = await db.query<{ due: number; waiting: number }>({
    text: `select count(*) filter (where available_at <= now())::int as due, count(*) filter (where available_at > now())::int as waiting
from leasehold.outbox`,
  })
  expect(rows).toEqual([{ due: 2, waiting: 4 }])
})
