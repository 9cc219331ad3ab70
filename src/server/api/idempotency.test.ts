import { expect, it } from 'vitest'
import { useApi } from '../../../test/support/api.ts'
import { openSession } from '../../../test/support/database.ts'

const errors: unknown[] = []
const { send, db, url } = useApi({
  // Long enough for a test that holds a lock on a slow machine.
  statementTimeoutMs: 60_000,
  onError: (error) => void errors.push(error),
})

const event = (type: string, more: object = {}) => ({ type, payload: {}, ...more })

async function eventsOf(type: string): Promise<number> {
  const { body } = await send('GET', `/outbox/events?type=${type}`)
  return body.items.length
}

async function stored(key: string): Promise<readonly { principal: string; answer: unknown }[]> {
  const { rows } = await db.query<{ principal: string; answer: unknown }>({
    text: 'select principal, answer from leasehold.api_requests where idempotency_key = $1 order by principal',
    values: [key],
  })
  return rows
}

it('a request that is repeated with its key is executed once, and gets the same answer', async () => {
  const request = { body: event('once'), headers: { 'idempotency-key': 'once' } }
  const first = await send('POST', '/outbox/events', request)
  const second = await send('POST', '/outbox/events', request)
  expect(first.status).toBe(201)
  expect(first.headers.get('idempotency-replayed')).toBeNull()
  expect({ status: second.status, body: second.body }).toEqual({ status: 201, body: first.body })
  expect(second.headers.get('idempotency-replayed')).toBe('true')
  expect(await eventsOf('once')).toBe(1)
})

it('another request with the same key is refused, and changes nothing', async () => {
  const headers = { 'idempotency-key': 'reused' }
  const { body: written } = await send('POST', '/outbox/events', { body: event('reused'), headers })
  const refusal = {
    status: 422,
    body: { code: 'IDEMPOTENCY_CONFLICT', errors: [{ field: 'header.idempotency-key' }] },
  }
  expect(await send('POST', '/outbox/events', { body: event('other'), headers })).toMatchObject(refusal)
  const elsewhere = `/outbox/events/${written.id}/give-up`
  expect(await send('POST', elsewhere, { body: event('reused'), headers })).toMatchObject({ status: 422 })
  expect(await send('POST', elsewhere, { body: { reason: 'test' }, headers })).toMatchObject(refusal)
  expect(await eventsOf('other')).toBe(0)
})

it('a request whose key is in use by one that is not answered yet is refused with 409', async () => {
  const holder = await openSession(url)
  await holder.query('begin; lock table leasehold.outbox in access exclusive mode')
  const request = { body: event('concurrent'), headers: { 'idempotency-key': 'concurrent' } }
  const first = send('POST', '/outbox/events', request)
  await expect
    .poll(async () => {
      const { rows } = await db.query({
        text: `select from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock' and query like '%outbox%'`,
      })
      return rows.length
    })
    .toBe(1)
  const second = await send('POST', '/outbox/events', request)
  expect(second).toMatchObject({ status: 409, body: { code: 'IDEMPOTENCY_CONFLICT' } })
  await holder.query('commit')
  expect((await first).status).toBe(201)
  const third = await send('POST', '/outbox/events', request)
  expect(third.headers.get('idempotency-replayed')).toBe('true')
  expect(third.body).toEqual((await first).body)
  expect(await eventsOf('concurrent')).toBe(1)
})

it('the answer to a request that failed is not stored, so that it can succeed later', async () => {
  const { body: written } = await send('POST', '/outbox/events', { body: event('later') })
  const replay = { body: { reason: 'test' }, headers: { 'idempotency-key': 'later' } }
  const path = `/outbox/events/${written.id}/replay`
  expect((await send('POST', path, replay)).status).toBe(409)
  expect(await stored('later')).toEqual([])
  expect(
    (await send('POST', `/outbox/events/${written.id}/give-up`, { body: { reason: 'test' } })).status,
  ).toBe(200)
  const done = await send('POST', path, replay)
  expect(done.status).toBe(200)
  expect(done.headers.get('idempotency-replayed')).toBeNull()
  expect((await send('POST', path, replay)).headers.get('idempotency-replayed')).toBe('true')
})

it('an answer whose transaction is rolled back when it commits is not stored', async () => {
  await db.query({
    text: `create function leasehold.refuse_at_commit() returns trigger language plpgsql as
$$ begin raise exception 'refused at commit'; end $$;
create constraint trigger refuse_at_commit after insert on leasehold.outbox deferrable initially deferred
  for each row when (new.event_type = 'refused.at.commit') execute function leasehold.refuse_at_commit();
grant execute on function leasehold.refuse_at_commit() to public`,
  })
  const request = { body: event('refused.at.commit'), headers: { 'idempotency-key': 'commit' } }
  expect((await send('POST', '/outbox/events', request)).status).toBe(500)
  expect(errors.splice(0)).toMatchObject([{ message: 'refused at commit' }])
  expect(await stored('commit')).toEqual([])
  await db.query({ text: 'drop trigger refuse_at_commit on leasehold.outbox' })
  const once = await send('POST', '/outbox/events', request)
  expect(once.status).toBe(201)
  expect(once.headers.get('idempotency-replayed')).toBeNull()
  expect(await eventsOf('refused.at.commit')).toBe(1)
})

it('keys of different principals are different keys', async () => {
  const request = { body: event('two'), headers: { 'idempotency-key': 'two' } }
  const answers = [
    await send('POST', '/outbox/events', { ...request, key: 'operate' }),
    await send('POST', '/outbox/events', { ...request, key: 'admin' }),
  ]
  expect(answers.map(({ status }) => status)).toEqual([201, 201])
  expect(answers[0]?.body.id).not.toBe(answers[1]?.body.id)
  expect((await stored('two')).map(({ principal }) => principal)).toEqual(['admin', 'operate'])
})

it('a secret is shown once: it is not stored, and not in the answer to the repeated request', async () => {
  const request = { body: { name: 'shown-once', role: 'read' }, headers: { 'idempotency-key': 'secret' } }
  const first = await send('POST', '/keys', request)
  const second = await send('POST', '/keys', request)
  expect(first.body.key).toMatch(/^lhk_/)
  const { key, ...rest } = first.body
  expect(second.body).toEqual(rest)
  const { rows } = await db.query<{ all: string }>({
    text: `select string_agg(line, '') as all from (
  select to_jsonb(r)::text as line from leasehold.api_requests as r
  union all select to_jsonb(a)::text from leasehold.audit as a
  union all select to_jsonb(k)::text from leasehold.api_keys as k) as lines`,
  })
  expect(rows[0]?.all).toContain('shown-once')
  expect(rows[0]?.all).not.toContain(key.split('_').slice(2).join('_'))
})

it('only answers of the last day are kept', async () => {
  const { forgetAnswers } = await import('./idempotency.ts')
  for (const name of ['old', 'young'])
    await send('POST', '/outbox/events', { body: event(name), headers: { 'idempotency-key': name } })
  await db.query({
    text: `update leasehold.api_requests set created_at = now() - interval '25 hours' where idempotency_key = 'old'`,
  })
  await forgetAnswers(db, 'leasehold')
  expect(await stored('old')).toEqual([])
  expect(await stored('young')).toHaveLength(1)
})
