/** What an event keeps of its attempts: who made each, under which token, from when to when, and how it ended. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { makeEvents } from '../../test/support/outbox-rows.ts'
import { recording, records, useRelays, write } from '../../test/support/running-relay.ts'
import type { Lease } from '../lease/lease.ts'
import { type LeaseStore, openLeaseStore } from '../lease/store.ts'
import { openDatabase } from '../postgres/database.ts'
import { Events } from '../worker/index.ts'
import { showEvent } from './admin/browse.ts'
import { giveUp } from './admin/give-up.ts'
import { replay } from './admin/replay.ts'
import { unblock } from './admin/unblock.ts'
import { MAX_HISTORY } from './history.ts'
import { outboxTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const startRelay = useRelays(url)
afterAll(async () => db.close())
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox restart identity' }))

const LEASE_MS = 60_000
const ALICE = { principal: 'alice', reason: 'the broker is back' }

async function storeOf(owner: string): Promise<LeaseStore> {
  return openLeaseStore(db, outboxTable(), { owner })
}

async function claimOne(store: LeaseStore): Promise<Lease> {
  const { claimed } = await store.claim({ limit: 1, leaseMs: LEASE_MS })
  const [row] = claimed
  if (row === undefined) throw new Error('nothing could be claimed')
  return row.lease
}

async function fail(store: LeaseStore, outcome: 'retry' | 'dead', error: string): Promise<void> {
  const lease = await claimOne(store)
  const args = outcome === 'retry' ? { error, delay_ms: 0 } : { error }
  expect((await store.settle(outcome, [lease], { args: [args] })).ended).toHaveLength(1)
}

/** Claims an event and lets its lease expire. */
async function expire(store: LeaseStore): Promise<void> {
  await store.claim({ limit: 1, leaseMs: 1 })
  for (let reaped = 0; reaped === 0;) reaped = (await store.reap()).length
}

const history = async (id = '1') => (await showEvent(db, id)).history

async function storedHistory(): Promise<unknown> {
  const { rows } = await db.query<{ history: unknown }>({ text: 'select history from leasehold.outbox' })
  return rows[0]?.history
}

describe('the history of an event', () => {
  it('an attempt that fails is appended with its owner, its token, its lease and its error', async () => {
    await makeEvents(db, 1)
    await fail(await storeOf('relay-a'), 'retry', 'connection refused')
    await fail(await storeOf('relay-b'), 'dead', 'no such topic')
    const [first, second, ...others] = await history()
    expect(others).toEqual([])
    expect(first).toEqual({
      outcome: 'retry',
      attempt: 1,
      token: expect.any(BigInt),
      owner: 'relay-a',
      claimedAt: expect.any(Date),
      until: expect.any(Date),
      endedAt: expect.any(Date),
      error: 'connection refused',
      by: null,
    })
    expect(first?.until?.getTime()).toBe((first?.claimedAt?.getTime() ?? 0) + LEASE_MS)
    expect(second).toMatchObject({
      outcome: 'dead',
      attempt: 2,
      token: (first?.token ?? 0n) + 1n,
      owner: 'relay-b',
      error: 'no such topic',
    })
  })

  it('a lease that is taken back is appended as expired, whether it is over or its owner is dead', async () => {
    await makeEvents(db, 1)
    const [store, other] = [await storeOf('relay-a'), await storeOf('reaper')]
    await expire(store)
    await claimOne(store)
    await other.reap({ ownedBy: 'relay-a', reason: 'the process relay-a died' })
    const [first, second] = await history()
    expect([first, second]).toMatchObject([
      {
        outcome: 'expired',
        attempt: 1,
        owner: 'relay-a',
        error: expect.stringContaining('the lease expired'),
      },
      {
        outcome: 'expired',
        attempt: 2,
        token: (first?.token ?? 0n) + 1n,
        owner: 'relay-a',
        error: 'the process relay-a died',
      },
    ])
  })

  it('a lease that expires as the last attempt is appended as expired, and the event is dead', async () => {
    await makeEvents(db, 1)
    await db.query({ text: 'update leasehold.outbox set max_attempts = 1' })
    const store = await storeOf('relay-a')
    await expire(store)
    expect(await showEvent(db, '1')).toMatchObject({
      status: 'DEAD',
      history: [{ outcome: 'expired', attempt: 1 }],
    })
  })

  it('nothing is stored of an event that is published at once, or given back before its attempt', async () => {
    await makeEvents(db, 1)
    const store = await storeOf('relay-a')
    await store.release([await claimOne(store)])
    expect(await storedHistory()).toBeNull()
    await store.settle('done', [await claimOne(store)])
    expect(await storedHistory()).toBeNull()
  })

  it('LIFE-05: who published an event is known, under which token, and from when to when', async () => {
    await write(db, null)
    const events = new Events()
    const settled = events.next('settled')
    const { runtime } = await startRelay({ publisher: recording() }, { events })
    await settled
    const event = await showEvent(db, '1')
    expect(event).toMatchObject({
      status: 'PUBLISHED',
      publishedBy: runtime.id,
      claimedBy: null,
      lockedUntil: null,
    })
    expect(event.history).toEqual([
      {
        outcome: 'published',
        attempt: 1,
        token: expect.any(BigInt),
        owner: runtime.id,
        claimedAt: event.claimedAt,
        until: null,
        endedAt: event.publishedAt,
        error: null,
        by: null,
      },
    ])
    expect(event.claimedAt).toBeInstanceOf(Date)
  })

  it('the history holds the newest entries, and of an error its beginning', async () => {
    await makeEvents(db, 1)
    await db.query({ text: 'update leasehold.outbox set max_attempts = null' })
    const store = await storeOf('relay-a')
    for (let n = 1; n <= MAX_HISTORY + 5; n += 1) await fail(store, 'retry', `${n}: ${'ü'.repeat(2_000)}`)
    const entries = await history()
    expect(entries.map(({ attempt }) => attempt)).toEqual(
      Array.from({ length: MAX_HISTORY }, (_, i) => i + 6),
    )
    expect(entries.every(({ error }) => error?.length === 500)).toBe(true)
    expect(entries.at(-1)?.error?.startsWith('25: ü')).toBe(true)
  })
})

describe('what operators do', () => {
  it('LIFE-09: a replay keeps the history, moves the publication into it, and is appended', async () => {
    await makeEvents(db, 1)
    const store = await storeOf('relay-a')
    await fail(store, 'retry', 'connection refused')
    await store.settle('done', [await claimOne(store)])
    const before = await showEvent(db, '1')
    await replay(db, { ids: ['1'], ...ALICE })
    const after = await showEvent(db, '1')
    expect(after.history).toEqual([
      ...before.history,
      {
        outcome: 'replayed',
        by: 'alice',
        error: 'the broker is back',
        endedAt: expect.any(Date),
        attempt: null,
        token: null,
        owner: null,
        claimedAt: null,
        until: null,
      },
    ])
    expect(before.history.map(({ outcome }) => outcome)).toEqual(['retry', 'published'])
    expect(after).toMatchObject({ status: 'PENDING', publishedBy: null, claimedAt: null })
    await store.settle('done', [await claimOne(store)])
    const whole = await history()
    const first = whole[0]?.token ?? 0n
    expect(whole.map(({ outcome, token }) => [outcome, token])).toEqual([
      ['retry', first],
      ['published', first + 1n],
      ['replayed', null],
      ['published', first + 2n],
    ])
  })

  it('giving up an event is appended, and so is unblocking its key', async () => {
    await makeEvents(db, 2, { key: `'key ' || n`, attempts: 1 })
    await giveUp(db, { ids: ['1'], ...ALICE })
    await unblock(db, { orderingKey: 'key 2', ...ALICE })
    for (const id of ['1', '2'])
      expect(await history(id)).toMatchObject([
        { outcome: 'givenUp', by: 'alice', error: 'the broker is back' },
      ])
  })

  it('unblocking a key with a replay is appended, of a failing and of a parked event', async () => {
    await makeEvents(db, 1, { key: `'failing'`, attempts: 1 })
    await makeEvents(db, 1, { key: `'parked'`, status: 'DEAD', parked: true })
    for (const orderingKey of ['failing', 'parked'])
      await unblock(db, { orderingKey, replay: true, ...ALICE })
    for (const id of ['1', '2'])
      expect(await history(id)).toMatchObject([{ outcome: 'replayed', by: 'alice' }])
    expect((await records(db)).map(({ status }) => status)).toEqual(['PENDING', 'PENDING'])
  })
})
