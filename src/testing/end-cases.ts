import assert from 'node:assert/strict'
import { answered, type Cases, LEASE_MS, leasesOf } from './subject.ts'

/** Thrown to roll a transaction back. */
class Rollback extends Error {}

export const endCases: Cases = {
  'a settled row has no lease, keeps its token and is not claimed again': async (bench) => {
    const [id = ''] = await bench.subject.insert(1)
    const store = await bench.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.deepEqual(await bench.settle(store, leases), answered(leases))
    const row = JSON.parse(await bench.image(id)) as Record<string, unknown>
    const { owner, until, token } = bench.subject.table.lease
    assert.deepEqual([row[owner], row[until]], [null, null])
    if (token !== undefined) assert.equal(String(row[token]), String(leases[0]?.token))
    assert.deepEqual((await store.claim({ limit: 1, leaseMs: LEASE_MS })).claimed, [])
  },

  'RULE-020-003, D6: a settlement with an old token is fenced off and changes nothing': async (bench) => {
    const [id = ''] = await bench.subject.insert(1)
    const [a, b] = [await bench.store('worker-a'), await bench.store('worker-b')]
    const [old] = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.ok(old)
    await bench.expire(id)
    await b.reap()
    const [current] = leasesOf(await b.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.ok(current && current.token > old.token)
    const before = await bench.image(id)
    assert.deepEqual(await bench.settle(a, [old]), answered([], [old]))
    assert.deepEqual(await a.release([old]), answered([], [old]))
    assert.equal(await bench.image(id), before, 'a zombie changed the row')
    assert.deepEqual((await bench.settle(b, [current])).ended, [current])
  },

  'D3: a worker that claims its own reaped row again is fenced off with its first lease': async (bench) => {
    const [id = ''] = await bench.subject.insert(1)
    const store = await bench.store('worker-a')
    const [first] = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    await bench.expire(id)
    await store.reap()
    const [second] = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.ok(first && second)
    const before = await bench.image(id)
    assert.deepEqual((await bench.settle(store, [first])).fencedOff, [first])
    assert.equal(await bench.image(id), before)
    assert.deepEqual((await bench.settle(store, [first, second])).ended, [second])
  },

  'RULE-020-003: the current token in another owner’s hands is fenced off': async (bench) => {
    const [id = ''] = await bench.subject.insert(1)
    const [a, b] = [await bench.store('worker-a'), await bench.store('worker-b')]
    const leases = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
    const before = await bench.image(id)
    assert.deepEqual((await bench.settle(b, leases)).fencedOff, leases)
    assert.deepEqual((await b.release(leases)).fencedOff, leases)
    assert.equal(await bench.image(id), before)
  },

  'a row that no longer exists is fenced off, and the rest of the batch is settled': async (bench) => {
    await bench.subject.insert(1)
    const store = await bench.store('worker-a')
    const [ghost] = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    await bench.subject.empty()
    await bench.subject.insert(1)
    const [lease] = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.ok(ghost && lease)
    assert.deepEqual(await bench.settle(store, [ghost, lease]), answered([lease], [ghost]))
  },

  'a lease that is over but that nobody has taken can still be settled: the work was done once': async (
    bench,
  ) => {
    const [id = ''] = await bench.subject.insert(1)
    const store = await bench.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    await bench.expire(id)
    assert.deepEqual((await bench.settle(store, leases)).ended, leases)
  },

  'a released row can be claimed at once, and its attempts did not grow': async (bench) => {
    const [id = ''] = await bench.subject.insert(1)
    const [a, b] = [await bench.store('worker-a'), await bench.store('worker-b')]
    const attempts = await bench.attempts(id)
    const leases = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.deepEqual(await a.release(leases), answered(leases))
    assert.equal(leasesOf(await b.claim({ limit: 1, leaseMs: LEASE_MS }))[0]?.id, id)
    assert.equal(await bench.attempts(id), attempts)
  },

  'a settlement in the caller’s transaction happens exactly if it commits': async (bench) => {
    const [id = ''] = await bench.subject.insert(1)
    const { db } = bench.subject
    const [a, b] = [await bench.store('worker-a'), await bench.store('worker-b')]
    const leases = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
    const before = await bench.image(id)
    await assert.rejects(
      db.transaction(async (tx) => {
        assert.deepEqual((await bench.settle(a, leases, tx)).ended, leases)
        assert.deepEqual(
          (await b.claim({ limit: 1, leaseMs: LEASE_MS })).claimed,
          [],
          'claimed before the commit',
        )
        throw new Rollback()
      }),
      Rollback,
    )
    assert.equal(await bench.image(id), before, 'a rolled-back settlement changed the row')
    await db.transaction(async (tx) => {
      assert.deepEqual((await bench.settle(a, leases, tx)).ended, leases)
    })
    assert.deepEqual((await bench.settle(a, leases)).fencedOff, leases, 'settled twice')
  },

  'a row that another session has locked is reported as busy, and the rest of the batch is ended': async (
    bench,
  ) => {
    const [locked = ''] = await bench.subject.insert(4)
    const store = await bench.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 4, leaseMs: LEASE_MS }))
    const busy = leases.filter(({ id }) => id === locked)
    const [first, second, third] = leases.filter(({ id }) => id !== locked)
    assert.ok(first && second && third)
    await bench.whileLocked(locked, async () => {
      assert.deepEqual(await bench.settle(store, [...busy, first]), { ...answered([first]), busy })
      assert.deepEqual(await store.release([second, ...busy, third]), { ...answered([second, third]), busy })
    })
    assert.deepEqual(await bench.settle(store, busy), answered(busy), 'settled once the lock is released')
  },

  'an empty batch is settled and released to an empty answer': async (bench) => {
    const store = await bench.store('worker-a')
    assert.deepEqual(await bench.settle(store, []), answered([]))
    assert.deepEqual(await store.release([]), answered([]))
  },
}
