import { beforeEach, expect, it, onTestFinished } from 'vitest'
import { createKey, revokeKey } from '../../operations/api-keys.ts'
import { type Sent, useApi } from '../../../test/support/api.ts'
import { openSession } from '../../../test/support/database.ts'
import { makeEvents } from '../../../test/support/outbox-rows.ts'
import { openDatabase } from '../../postgres/index.ts'
import { findActingRoles } from './acting.ts'
import { BackgroundChanges } from './background-changes.ts'

const errors: unknown[] = []
const { send, db, url, api } = useApi({ onError: (error) => void errors.push(error) })
const PATIENCE = { timeout: 60_000, interval: 20 }

beforeEach(async () => {
  errors.length = 0
  await db.query({ text: 'truncate leasehold.outbox restart identity' })
})

/** Gives up events one by one; with a rate it waits between them. */
async function giveUp(rate?: number, sent: Sent = { key: 'operate' }): Promise<string> {
  const body = { action: 'give-up', filter: { status: ['PENDING'] }, reason: 'test', rate }
  const { status, body: change } = await send('POST', '/outbox/events/changes', { ...sent, body })
  expect(status).toBe(202)
  return change.id
}

const shown = async (id: string) => (await send('GET', `/changes/${id}`)).body

async function dead(): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    text: `select count(*)::int as count from leasehold.outbox where status = 'DEAD'`,
  })
  return rows[0]?.count ?? 0
}

/** How many statements wait for a lock. */
async function blockedStatements(): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    text: `select count(*)::int as count from pg_stat_activity
where cardinality(pg_blocking_pids(pid)) > 0 and datname = current_database()`,
  })
  return rows[0]?.count ?? 0
}

/** A key, and how requests are sent with it: by itself, or by a session that it opened. */
async function newKey(
  name: string,
): Promise<{ readonly id: string; readonly byKey: Sent; readonly bySession: Sent }> {
  const { id, key } = await createKey(db, { name, role: 'operate' }, { principal: 'test' })
  const opened = await send('POST', '/session', { key: null, body: { key } })
  const [cookie = ''] = (opened.headers.get('set-cookie') ?? '').split(';')
  return {
    id,
    byKey: { key: null, headers: { authorization: `Bearer ${key}` } },
    bySession: { key: null, headers: { cookie } },
  }
}

it('a change ends after its batch when its key is revoked, and says who revoked it', async () => {
  await makeEvents(db, 10, { attempts: 1 })
  const { id: keyId, byKey } = await newKey('stolen')
  const id = await giveUp(2, byKey)
  await expect.poll(async () => (await shown(id)).changed, PATIENCE).toBeGreaterThan(0)
  await revokeKey(db, keyId, { principal: 'boss' })
  await expect
    .poll(async () => shown(id), PATIENCE)
    .toMatchObject({ state: 'cancelled', principal: 'stolen', cancelledBy: 'boss' })
  const { changed } = await shown(id)
  expect(changed).toBeLessThan(10)
  expect(await dead()).toBe(changed)
  // A change of another key goes on.
  const other = await giveUp()
  await expect.poll(async () => (await shown(other)).state, PATIENCE).toBe('finished')
  expect(await dead()).toBe(10)
  expect(errors).toEqual([])
})

it('changes that wait for their rate do not keep others waiting', async () => {
  await makeEvents(db, 10, { attempts: 1 })
  // Each waits for minutes after its first event.
  const slow = [await giveUp(0.01), await giveUp(0.01), await giveUp(0.01)]
  for (const id of slow) await expect.poll(async () => (await shown(id)).changed, PATIENCE).toBeGreaterThan(0)
  const quick = await giveUp(undefined, { key: 'admin' })
  await expect.poll(async () => (await shown(quick)).state, PATIENCE).toBe('finished')
  expect(await dead()).toBe(10)
  for (const id of slow) expect((await send('POST', `/changes/${id}/cancel`)).status).toBe(200)
  expect(errors).toEqual([])
})

it('a change that is cancelled stops after its batch, and says who cancelled it', async () => {
  await makeEvents(db, 10, { attempts: 1 })
  const id = await giveUp(2)
  await expect.poll(async () => (await shown(id)).changed, PATIENCE).toBeGreaterThan(0)
  const cancelled = await send('POST', `/changes/${id}/cancel`, { key: 'admin' })
  expect(cancelled).toMatchObject({
    status: 200,
    body: { state: 'cancelled', principal: 'operate', cancelledBy: 'admin', isBackground: true },
  })
  const { changed } = cancelled.body
  expect(await send('POST', `/changes/${id}/cancel`)).toMatchObject({ status: 409 })
  // Whoever ran it finds out at its next batch, which would have been due by then.
  await api().stop()
  expect(await shown(id)).toMatchObject({ state: 'cancelled', changed })
  expect(await dead()).toBe(changed)
  expect(errors).toEqual([])
})

it('changes that wait for their turn when the server stops are continued by another one', async () => {
  await makeEvents(db, 10, { attempts: 1 })
  // The server of this file has been stopped, so that it only records the changes.
  const ids = [await giveUp(), await giveUp(), await giveUp(), await giveUp()]
  const holder = await openSession(url)
  await holder.query('begin; lock table leasehold.outbox in access exclusive mode')
  const own = openDatabase({ url })
  onTestFinished(async () => own.close())
  const start = (): BackgroundChanges =>
    new BackgroundChanges({
      db: own,
      schema: 'leasehold',
      roles: findActingRoles(own, 'leasehold'),
      onError: (error) => void errors.push(error),
      silentMs: 0,
    })
  const first = start()
  await first.resumeLeft()
  await expect.poll(blockedStatements, PATIENCE).toBe(2)
  const stopping = first.stop()
  await holder.query('rollback')
  await stopping
  expect(errors).toEqual([])
  const second = start()
  await second.resumeLeft()
  for (const id of ids) await expect.poll(async () => (await shown(id)).state, PATIENCE).toBe('finished')
  await second.stop()
  expect(await dead()).toBe(10)
  expect(errors).toEqual([])
})

it('what a server leaves is continued by another one, once', async () => {
  await makeEvents(db, 5, { attempts: 1 })
  // The server of this file has been stopped, so that it only records the change.
  const id = await giveUp()
  expect(await shown(id)).toMatchObject({ state: 'running', matched: null, changed: 0 })
  const own = openDatabase({ url })
  onTestFinished(async () => own.close())
  const options = {
    db: own,
    schema: 'leasehold',
    roles: findActingRoles(own, 'leasehold'),
    onError: (error: unknown) => void errors.push(error),
    silentMs: 0,
  }
  const others = [new BackgroundChanges(options), new BackgroundChanges(options)]
  await Promise.all(others.map(async (each) => each.resumeLeft()))
  await expect
    .poll(async () => shown(id), PATIENCE)
    .toMatchObject({ state: 'finished', matched: 5, changed: 5, principal: 'operate' })
  await Promise.all(others.map(async (each) => each.stop()))
  expect(await dead()).toBe(5)
  const { rows } = await db.query<{ token: string }>({
    text: 'select lock_token as token from leasehold.outbox',
  })
  expect(rows.map(({ token }) => token)).toEqual(['1', '1', '1', '1', '1'])
  expect(errors).toEqual([])
})

it('a change of a session does not begin when the key of the session was revoked, whoever finds it', async () => {
  await makeEvents(db, 3, { attempts: 1 })
  const { id: keyId, bySession } = await newKey('stolen, too')
  // The server of this file has been stopped, so that it only records the changes.
  const [found, started] = [await giveUp(undefined, bySession), await giveUp(undefined, bySession)]
  await revokeKey(db, keyId, { principal: 'boss' })
  const runner = new BackgroundChanges({
    db,
    schema: 'leasehold',
    roles: findActingRoles(db, 'leasehold'),
    onError: (error: unknown) => void errors.push(error),
  })
  const action = 'outbox.giveUp'
  runner.start({ changeId: started, action, principal: 'stolen, too', tenant: null })
  const cancelled = { state: 'cancelled', changed: 0, cancelledBy: 'boss' }
  await expect.poll(async () => shown(started), PATIENCE).toMatchObject(cancelled)
  // The other one is too young to be continued by another server.
  expect(await shown(found)).toMatchObject({ state: 'running' })
  await runner.resumeLeft()
  await runner.stop()
  expect(await shown(found)).toMatchObject(cancelled)
  expect(await dead()).toBe(0)
  expect(errors).toEqual([])
})

it('an error that does not pass ends the change, which shows it, and nobody tries it again', async () => {
  await makeEvents(db, 2, { attempts: 1 })
  await db.query({
    text: `create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'not today'; end $$;
create trigger refuse before update on leasehold.outbox for each row execute function public.refuse()`,
  })
  onTestFinished(async () => void (await db.query({ text: 'drop function public.refuse() cascade' })))
  const id = await giveUp()
  const own = openDatabase({ url })
  onTestFinished(async () => own.close())
  const runner = new BackgroundChanges({
    db: own,
    schema: 'leasehold',
    roles: findActingRoles(own, 'leasehold'),
    onError: (error: unknown) => void errors.push(error),
    silentMs: 0,
  })
  await runner.resumeLeft()
  await expect
    .poll(async () => shown(id), PATIENCE)
    .toMatchObject({ state: 'failed', changed: 0, error: expect.stringContaining('not today') })
  expect(errors).toHaveLength(1)
  await runner.resumeLeft()
  await runner.stop()
  expect(errors).toHaveLength(1)
  expect(await dead()).toBe(0)
})
