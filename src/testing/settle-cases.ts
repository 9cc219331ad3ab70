import assert from 'node:assert/strict'
import { answered, type Cases, LEASE_MS, leasesOf } from './fixture.ts'

/** Thrown to roll a transaction back. */
class Rollback extends Error {}

export const settleCases: Cases = {
  'a settled row has no lease, keeps its token and is not claimable': async (fixture) => {
    const [id = ''] = await fixture.subject.insert(1)
    const store = await fixture.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.deepEqual(await fixture.settle(store, leases), answered(leases))
    const row = JSON.parse(await fixture.image(id)) as Record<string, unknown>
    const { owner, until, token } = fixture.subject.table.lease
    assert.deepEqual([row[owner], row[until]], [null, null])
    if (token !== undefined) assert.equal(String(row[token]), String(leases[0]?.token))
    assert.deepEqual((await store.claim({ limit: 1, leaseMs: LEASE_MS })).claimed, [])
  },

  'RULE-020-003, D6: a settlement with an old token is fenced off and changes nothing': async (fixture) => {
    const [id = ''] = await fixture.subject.insert(1)
    const [a, b] = [await fixture.store('worker-a'), await fixture.store('worker-b')]
    const [old] = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.ok(old)
    await fixture.expire(id)
    await b.reap()
    const [current] = leasesOf(await b.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.ok(current && current.token > old.token)
    const before = await fixture.image(id)
    assert.deepEqual(await fixture.settle(a, [old]), answered([], [old]))
    assert.deepEqual(await a.release([old]), answered([], [old]))
    assert.equal(await fixture.image(id), before, 'a zombie changed the row')
    assert.deepEqual((await fixture.settle(b, [current])).ended, [current])
  },

  'D3: a worker that claims its own reaped row again is fenced off with its first lease': async (fixture) => {
    const [id = ''] = await fixture.subject.insert(1)
    const store = await fixture.store('worker-a')
    const [first] = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    await fixture.expire(id)
    await store.reap()
    const [second] = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.ok(first && second)
    const before = await fixture.image(id)
    assert.deepEqual((await fixture.settle(store, [first])).fencedOff, [first])
    assert.equal(await fixture.image(id), before)
    assert.deepEqual((await fixture.settle(store, [first, second])).ended, [second])
  },

  'RULE-020-003: a settlement or release with the current token by another owner is fenced off': async (
    fixture,
  ) => {
    const [id = ''] = await fixture.subject.insert(1)
    const [a, b] = [await fixture.store('worker-a'), await fixture.store('worker-b')]
    const leases = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
    const before = await fixture.image(id)
    assert.deepEqual((await fixture.settle(b, leases)).fencedOff, leases)
    assert.deepEqual((await b.release(leases)).fencedOff, leases)
    assert.equal(await fixture.image(id), before)
  },

  'a row that no longer exists is fenced off, and the rest of the batch is settled': async (fixture) => {
    await fixture.subject.insert(1)
    const store = await fixture.store('worker-a')
    const [deleted] = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    await fixture.subject.empty()
    await fixture.subject.insert(1)
    const [lease] = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.ok(deleted && lease)
    assert.deepEqual(await fixture.settle(store, [deleted, lease]), answered([lease], [deleted]))
  },

  'an expired lease can be settled as long as no other worker has claimed or reaped the row': async (
    fixture,
  ) => {
    const [id = ''] = await fixture.subject.insert(1)
    const store = await fixture.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    await fixture.expire(id)
    assert.deepEqual((await fixture.settle(store, leases)).ended, leases)
  },

  'a released row is claimable at once, and its attempts are unchanged': async (fixture) => {
    const [id = ''] = await fixture.subject.insert(1)
    const [a, b] = [await fixture.store('worker-a'), await fixture.store('worker-b')]
    const attempts = await fixture.attempts(id)
    const leases = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.deepEqual(await a.release(leases), answered(leases))
    assert.equal(leasesOf(await b.claim({ limit: 1, leaseMs: LEASE_MS }))[0]?.id, id)
    assert.equal(await fixture.attempts(id), attempts)
  },

  'a settlement in the caller’s transaction takes effect only if the transaction commits': async (
    fixture,
  ) => {
    const [id = ''] = await fixture.subject.insert(1)
    const { db } = fixture.subject
    const [a, b] = [await fixture.store('worker-a'), await fixture.store('worker-b')]
    const leases = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
    const before = await fixture.image(id)
    await assert.rejects(
      db.transaction(async (tx) => {
        assert.deepEqual((await fixture.settle(a, leases, tx)).ended, leases)
        assert.deepEqual(
          (await b.claim({ limit: 1, leaseMs: LEASE_MS })).claimed,
          [],
          'claimed before the commit',
        )
        throw new Rollback()
      }),
      Rollback,
    )
    assert.equal(await fixture.image(id), before, 'a rolled-back settlement changed the row')
    await db.transaction(async (tx) => {
      assert.deepEqual((await fixture.settle(a, leases, tx)).ended, leases)
    })
    assert.deepEqual((await fixture.settle(a, leases)).fencedOff, leases, 'settled twice')
  },

  'a row that another session has locked is reported as busy, and the rest of the batch is settled or released':
    async (fixture) => {
      const [locked = ''] = await fixture.subject.insert(4)
      const store = await fixture.store('worker-a')
      const leases = leasesOf(await store.claim({ limit: 4, leaseMs: LEASE_MS }))
      const busy = leases.filter(({ id }) => id === locked)
      const [first, second, third] = leases.filter(({ id }) => id !== locked)
      assert.ok(first && second && third)
      await fixture.whileLocked(locked, async () => {
        assert.deepEqual(await fixture.settle(store, [...busy, first]), { ...answered([first]), busy })
        assert.deepEqual(await store.release([second, ...busy, third]), {
          ...answered([second, third]),
          busy,
        })
      })
      assert.deepEqual(await fixture.settle(store, busy), answered(busy), 'settled once the lock is released')
    },

  'the settlement and release of an empty batch return an empty result': async (fixture) => {
    const store = await fixture.store('worker-a')
    assert.deepEqual(await fixture.settle(store, []), answered([]))
    assert.deepEqual(await store.release([]), answered([]))
  },
}
