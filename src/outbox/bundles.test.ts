/** Whoever makes an event claimable writes it into a bundle, in whatever way: docs/decisions/014-bundles.md, rule 1. */
import { afterAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { makeEvents } from '../../test/support/outbox-rows.ts'
import { openLeaseStore } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { enqueue } from './index.ts'
import { replay } from './operator/replay.ts'
import { unblock } from './operator/unblock.ts'
import { outboxTable } from './table.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
beforeEach(async () => sql('truncate leasehold.outbox restart identity'))
afterAll(async () => db.close())

const LEASE_MS = 60_000
const BY = { principal: 'test', reason: 'because' }

async function sql(text: string): Promise<void> {
  await db.query({ text })
}

async function openStore() {
  return openLeaseStore(db, outboxTable(), { owner: 'r', bucket: 0 })
}

/** Events that can be claimed and are in no bundle that is due when they are. */
async function unseen(): Promise<number> {
  const { rows } = await db.query<{ count: number }>({
    text: `select count(*)::int as count from leasehold.outbox as o
      where available_at is not null and not behind and not exists (
        select from leasehold.outbox_bundles as b
        where b.bucket = o.bucket and rows @> array[o.id] and (at <= o.available_at or at <= clock_timestamp() + interval '100 ms')
      )`,
  })
  return rows[0]?.count ?? 0
}

/** Without what stands there already, so that only what is written now counts. */
async function emptyBundles(): Promise<void> {
  await sql('delete from leasehold.outbox_bundles')
}

const WAYS: Readonly<Record<string, () => Promise<unknown>>> = {
  'a plain INSERT': async () => sql(`insert into leasehold.outbox (event_type, payload) values ('a', '{}')`),
  'an INSERT of many, now and later, in several buckets': async () =>
    sql(`insert into leasehold.outbox (event_type, payload, bucket, available_at)
      select 'a', '{}', n % 3, now() + (n % 5) * interval '1 h' from generate_series(1, 1000) as n`),
  enqueue: async () =>
    enqueue(
      db,
      [1, 2, 3].map((n) => ({ type: 'a', payload: { n } })),
    ),
  'enqueue of a line': async () =>
    enqueue(
      db,
      [1, 2, 3].map((n) => ({ type: 'a', payload: { n }, orderingKey: 'k' })),
    ),
  'the function': async () => sql(`select leasehold.enqueue('a', '{}')`),
  'an INSERT with ON CONFLICT': async () =>
    sql(`insert into leasehold.outbox (event_type, payload) values ('a', '{}')
      on conflict (bucket, event_id) do update set available_at = now()`),
}

it.each(Object.keys(WAYS))('an event that was written by %s is in a bundle', async (way) => {
  await WAYS[way]?.()
  expect(await unseen()).toBe(0)
  await emptyBundles()
  expect(await unseen(), 'there was an event').toBeGreaterThan(0)
})

it('what was rolled back leaves no bundle', async () => {
  await expect(
    db.transaction(async (tx) => {
      await enqueue(tx, { type: 'a', payload: {} })
      throw new Error('no')
    }),
  ).rejects.toThrow('no')
  const { rows } = await db.query({ text: 'select from leasehold.outbox_bundles' })
  expect(rows).toEqual([])
})

it('a bundle has at most 200 events, and those of one statement share it, also when they are due since different moments', async () => {
  await sql(`insert into leasehold.outbox (event_type, payload, available_at)
    select 'a', '{}', now() - n * interval '1 ms' from generate_series(1, 1000) as n`)
  const { rows } = await db.query<{ size: number }>({
    text: 'select cardinality(rows) as size from leasehold.outbox_bundles',
  })
  expect(Math.max(...rows.map(({ size }) => size))).toBe(200)
  expect(rows.length).toBeLessThanOrEqual(6)
})

describe('an event that becomes claimable again is in a bundle', () => {
  it('after a retry, a release and a reap', async () => {
    await makeEvents(db, 3)
    const store = await openStore()
    const leases = (await store.claim({ limit: 3, leaseMs: LEASE_MS })).claimed.map(({ lease }) => lease)
    await emptyBundles()
    await store.settle('retry', leases.slice(0, 1), { args: [{ error: 'x', delay_ms: 5 }] })
    await store.release(leases.slice(1, 2), 5_000)
    await sql("update leasehold.outbox set locked_until = now() where status = 'CLAIMED'")
    expect(await store.reap()).toHaveLength(1)
    expect(await unseen()).toBe(0)
  })

  it('after a replay, at once and at a rate', async () => {
    await makeEvents(db, 20, { status: 'DEAD' })
    await makeEvents(db, 20, { status: 'PUBLISHED' })
    await replay(db, { filter: { status: 'DEAD' }, ...BY })
    await replay(db, { filter: { status: 'PUBLISHED' }, rate: 1_000, ...BY })
    const { rows } = await db.query({ text: "select from leasehold.outbox where status = 'PENDING'" })
    expect(rows).toHaveLength(40)
    expect(await unseen()).toBe(0)
  })

  it('when those before it in its line are done, or given up', async () => {
    await enqueue(
      db,
      [1, 2, 3].map((n) => ({ type: 'a', payload: { n }, orderingKey: 'k' })),
    )
    const store = await openStore()
    const { claimed } = await store.claim({ limit: 1, leaseMs: LEASE_MS })
    await store.settle(
      'done',
      claimed.map(({ lease }) => lease),
    )
    expect(await unseen()).toBe(0)
    const second = await store.claim({ limit: 1, leaseMs: LEASE_MS })
    expect(second.claimed).toHaveLength(1)
    await store.settle(
      'retry',
      second.claimed.map(({ lease }) => lease),
      { args: [{ error: 'x', delay_ms: 1e6 }] },
    )
    expect(await unblock(db, { orderingKey: 'k', ...BY })).toMatchObject({ failing: 1 })
    expect(await unseen()).toBe(0)
    expect(
      (await store.claim({ limit: 9, leaseMs: LEASE_MS })).claimed.map(({ row }) => row['payload']),
    ).toEqual([{ n: 3 }])
  })

  it.each([
    ['sooner', "available_at = available_at - interval '1 h'"],
    ['later', "available_at = available_at + interval '1 h'"],
    ['in another bucket', 'bucket = 5'],
    ['under another number', 'id = id + 1000'],
  ])('when somebody changes it by hand: %s', async (_, set) => {
    await makeEvents(db, 3)
    await emptyBundles()
    await sql(`update leasehold.outbox set ${set}`)
    expect(await unseen()).toBe(0)
  })

  it('when somebody takes its mark away by hand', async () => {
    await enqueue(
      db,
      [1, 2].map((n) => ({ type: 'a', payload: { n }, orderingKey: 'k' })),
    )
    await emptyBundles()
    await sql('update leasehold.outbox set behind = false where behind')
    expect(await unseen(), 'only the first, whose bundle was removed').toBe(1)
  })
})

it('claims, renewals and publications write no bundle', async () => {
  await makeEvents(db, 10)
  const store = await openStore()
  const leases = (await store.claim({ limit: 10, leaseMs: LEASE_MS })).claimed.map(({ lease }) => lease)
  await store.renew(leases, LEASE_MS)
  await store.settle('done', leases)
  const { rows } = await db.query({ text: 'select from leasehold.outbox_bundles' })
  expect(rows).toEqual([])
})

it('who may only write events needs no right on bundles', async () => {
  const role = `producer_${Date.now()}`
  await sql(`create role ${role}`)
  try {
    await sql(`grant usage on schema leasehold to ${role}; grant insert on leasehold.outbox to ${role}`)
    await db.transaction(async (tx) => {
      await tx.query({ text: `set local role ${role}` })
      await tx.query({ text: `insert into leasehold.outbox (event_type, payload) values ('a', '{}')` })
    })
    expect(await unseen()).toBe(0)
    const { rows } = await db.query({ text: 'select from leasehold.outbox' })
    expect(rows).toHaveLength(1)
  } finally {
    await sql(`drop owned by ${role}; drop role ${role}`)
  }
})

it('nobody can make triggers of the functions that write as their owner', async () => {
  const role = `stranger_${Date.now()}`
  await sql(`create role ${role}`)
  try {
    await sql(`grant usage on schema leasehold to ${role}; grant insert on leasehold.outbox to ${role}`)
    for (const [name, when] of [
      ['bundle_outbox', 'after insert'],
      ['empty_outbox_bundles', 'after truncate'],
      ['check_outbox_transition', 'after update'],
    ]) {
      const attempt = db.transaction(async (tx) => {
        await tx.query({ text: `set local role ${role}` })
        await tx.query({ text: 'create temp table own (behind boolean)' })
        await tx.query({
          text: `create trigger t ${when} on own for each statement execute function leasehold.${name}()`,
        })
      })
      await expect(attempt).rejects.toThrow(`permission denied for function leasehold.${name}`)
    }
  } finally {
    await sql(`drop owned by ${role}; drop role ${role}`)
  }
})

it('an outbox that is truncated has no bundles', async () => {
  await makeEvents(db, 3)
  await sql('truncate leasehold.outbox')
  const { rows } = await db.query({ text: 'select from leasehold.outbox_bundles' })
  expect(rows).toEqual([])
})
