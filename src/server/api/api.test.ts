import { expect, it } from 'vitest'
import { useApi } from '../../../test/support/api.ts'

const { send, db } = useApi()

it('writes, lists, shows and replays an event', async () => {
  const written = await send('POST', '/outbox/events', {
    key: 'operate',
    body: { type: 'order.paid', payload: { id: 1 } },
  })
  expect(written.status).toBe(201)
  const listed = await send('GET', '/outbox/events?limit=1', { key: 'read' })
  expect(listed.body.items).toMatchObject([{ id: written.body.id, type: 'order.paid', status: 'PENDING' }])
  expect((await send('GET', `/outbox/events/${written.body.id}`, { key: 'read' })).body.payload).toEqual({
    id: 1,
  })
  const conflict = await send('POST', `/outbox/events/${written.body.id}/replay`, {
    body: { reason: 'test' },
  })
  expect(conflict).toMatchObject({ status: 409, body: { code: 'STATE_CONFLICT' } })
  const given = await send('POST', `/outbox/events/${written.body.id}/give-up`, {
    key: 'operate',
    body: { reason: 'test' },
  })
  expect(given).toMatchObject({ status: 200, body: { status: 'DEAD' } })
  const replayed = await send('POST', `/outbox/events/${written.body.id}/replay`, {
    key: 'operate',
    body: { reason: 'test' },
  })
  expect(replayed).toMatchObject({ status: 200, body: { status: 'PENDING' } })
})

it('overview', async () => {
  expect((await send('GET', '/overview', { key: 'read' })).body).toMatchObject({
    outbox: { pending: { count: 1 } },
  })
  for (const path of [
    '/workers',
    '/settings',
    '/outbox/keys',
    '/changes',
    '/audit',
    '/keys',
    '/session',
    '/doctor',
    '/outbox/events/1/explain',
  ]) {
    const got = await send('GET', path)
    expect(got.status, path).toBe(200)
  }
})

it('a background change', async () => {
  const started = await send('POST', '/outbox/events/changes', {
    key: 'operate',
    body: { action: 'give-up', ids: ['1'], reason: 'x' },
  })
  expect(started.status).toBe(202)
  await expect
    .poll(async () => (await send('GET', `/changes/${started.body.id}`)).body.state, { timeout: 5000 })
    .toBe('finished')
})
void db
