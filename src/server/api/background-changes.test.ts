import { beforeEach, expect, it, onTestFinished } from 'vitest'
import { useApi } from '../../../test/support/api.ts'
import { makeEvents } from '../../../test/support/outbox-rows.ts'
import { openDatabase } from '../../postgres/index.ts'
import { BackgroundChanges } from './background-changes.ts'

const errors: unknown[] = []
const { send, db, url, api } = useApi({ onError: (error) => void errors.push(error) })
const PATIENCE = { timeout: 60_000, interval: 20 }

beforeEach(async () => {
  errors.length = 0
  await db.query({ text: 'truncate leasehold.outbox restart identity' })
})

/** Gives up events one by one; with a rate it waits between them. */
async function giveUp(rate?: number): Promise<string> {
  const body = { action: 'give-up', filter: { status: ['PENDING'] }, reason: 'test', rate }
  const { status, body: change } = await send('POST', '/outbox/events/changes', { key: 'operate', body })
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
    prefix: async () => Promise.resolve('leasehold'),
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
    prefix: async () => Promise.resolve('leasehold'),
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
