import assert from 'node:assert/strict'
import type { Reaped } from '../lease/store.ts'
import { type Cases, LEASE_MS, leasesOf } from './fixture.ts'

function ownersOf(reaped: readonly Reaped[] = []): string[] {
  return reaped.map(({ owner }) => owner)
}

export const reapCases: Cases = {
  'RULE-020-021: the reaper takes back what has expired, says whose it was, and nothing else': async (
    fixture,
  ) => {
    const [expired = '', alive = ''] = await fixture.subject.insert(2)
    const [a, b] = [await fixture.store('worker-a'), await fixture.store('worker-b')]
    const leases = leasesOf(await a.claim({ limit: 2, leaseMs: LEASE_MS }))
    await fixture.expire(expired)
    const before = await fixture.image(alive)
    const reaped = await b.reap()
    const token = leases.find(({ id }) => id === expired)?.token
    assert.deepEqual(
      reaped.map((r) => ({ id: r.id, owner: r.owner, token: r.token, stale: r.staleMs >= 1_000 })),
      [{ id: expired, owner: 'worker-a', token, stale: true }],
    )
    assert.equal(await fixture.image(alive), before, 'a live lease was touched')
    const row = JSON.parse(await fixture.image(expired)) as Record<string, unknown>
    const { owner, until } = fixture.subject.table.lease
    assert.deepEqual([row[owner], row[until]], [null, null])
    assert.deepEqual(
      leasesOf(await b.claim({ limit: 2, leaseMs: LEASE_MS })).map(({ id }) => id),
      [expired],
    )
  },

  'D5: an expired lease is claimable at once, or only after it was reaped, as the table declares': async (
    fixture,
  ) => {
    const [id = ''] = await fixture.subject.insert(1)
    const [a, b] = [await fixture.store('worker-a'), await fixture.store('worker-b')]
    await a.claim({ limit: 1, leaseMs: LEASE_MS })
    await fixture.expire(id)
    const taken = leasesOf(await b.claim({ limit: 1, leaseMs: LEASE_MS })).map((lease) => lease.id)
    if (fixture.subject.table.onExpiry === 'claimable') {
      assert.deepEqual(taken, [id], 'the claim does not take the expired lease')
    } else {
      assert.deepEqual(taken, [])
      await b.reap()
      assert.deepEqual(
        leasesOf(await b.claim({ limit: 1, leaseMs: LEASE_MS })).map((lease) => lease.id),
        [id],
      )
    }
  },

  'D4: an expiry counts as one attempt, whether the reaper or the next claim finds it': async (fixture) => {
    const [first = '', second = ''] = await fixture.subject.insert(2)
    if (fixture.subject.table.attempts?.column === undefined) return
    const [a, b] = [await fixture.store('worker-a'), await fixture.store('worker-b')]
    await a.claim({ limit: 2, leaseMs: LEASE_MS })
    await fixture.expire(first)
    await b.reap()
    await fixture.expire(second)
    await b.claim({ limit: 2, leaseMs: LEASE_MS })
    await b.reap()
    assert.deepEqual([await fixture.attempts(first), await fixture.attempts(second)], [1, 1])
  },

  'D5 D10: after its first expiry a row is claimable at once; from the second on it is a suspect, of which a claim takes one':
    async (fixture) => {
      if (fixture.subject.table.attempts?.expiries === undefined) return
      const [first = '', second = '', third = ''] = await fixture.subject.insert(3)
      const store = await fixture.store('worker-a')
      const claim = async (suspects: number): ReturnType<typeof store.claim> =>
        store.claim({ limit: 3, leaseMs: LEASE_MS, suspects })
      await claim(1)
      await fixture.expire(first, second)
      await store.reap()
      assert.equal((await claim(0)).claimed.length, 2, 'the first expiry makes no suspect')
      await fixture.expire(first, second)
      // Where a claim takes expired leases, it takes later ones too, without any reaper.
      if (fixture.subject.table.onExpiry === 'reap') await store.reap()
      else assert.deepEqual(ownersOf((await claim(0)).reaped), ['worker-a', 'worker-a'])
      assert.deepEqual([await fixture.expiries(first), await fixture.expiries(second)], [2, 2])
      assert.deepEqual((await claim(0)).claimed, [])
      const one = await claim(1)
      assert.deepEqual([one.claimed.length, [one.claimed[0]?.lease.id]], [1, one.suspects])
      const [other] = leasesOf(await claim(1))
      assert.deepEqual(new Set([...(one.suspects ?? []), other?.id]), new Set([first, second]))
      assert.equal(await fixture.expiries(third), 0)
    },

  'D10: the expired lease of an owner that lives is left to it for a while, and is then no expiry that makes a suspect':
    async (fixture) => {
      await fixture.subject.insert(2)
      const [living, dead] = [await fixture.store("it's alive"), await fixture.store('dead')]
      const one = { limit: 1, leaseMs: LEASE_MS }
      const [its = '', another = ''] = [await living.claim(one), await dead.claim(one)].flatMap((claim) =>
        leasesOf(claim).map(({ id }) => id),
      )
      await fixture.expire(its, another)
      const owners = [living.owner]
      assert.deepEqual(ownersOf(await dead.reap({ living: { owners, graceMs: Infinity } })), ['dead'])
      assert.deepEqual(ownersOf(await dead.reap({ living: { owners, graceMs: 0 } })), [living.owner])
      if (fixture.subject.table.attempts?.column !== undefined)
        assert.deepEqual([await fixture.attempts(its), await fixture.attempts(another)], [1, 1])
      if (fixture.subject.table.attempts?.expiries !== undefined)
        assert.deepEqual([await fixture.expiries(its), await fixture.expiries(another)], [0, 1])
    },

  'a reap takes at most as many rows as requested, and concurrent reaps take each row once': async (
    fixture,
  ) => {
    const ids = await fixture.subject.insert(30)
    const stores = await Promise.all(['a', 'b', 'c'].map(async (name) => fixture.store(name)))
    const [a] = stores
    assert.ok(a)
    await a.claim({ limit: 30, leaseMs: LEASE_MS })
    await fixture.expire(...ids)
    assert.equal((await a.reap({ limit: 4 })).length, 4)
    const reaped = (await Promise.all(stores.map(async (store) => store.reap({ limit: 30 })))).flat()
    const last = await a.reap({ limit: 30 })
    assert.equal(new Set([...reaped, ...last].map(({ id }) => id)).size, 26)
    assert.equal(reaped.length + last.length, 26)
  },

  'the reaper skips a row that another session has locked': async (fixture) => {
    const [locked = '', free = ''] = await fixture.subject.insert(2)
    const store = await fixture.store('worker-a')
    await store.claim({ limit: 2, leaseMs: LEASE_MS })
    await fixture.expire(locked, free)
    const reaped = await fixture.whileLocked(locked, async () => store.reap())
    assert.deepEqual(
      reaped.map(({ id }) => id),
      [free],
    )
  },
}
