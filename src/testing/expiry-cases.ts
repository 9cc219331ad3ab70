import assert from 'node:assert/strict'
import { type Cases, LEASE_MS, leasesOf } from './subject.ts'

export const expiryCases: Cases = {
  'RULE-020-021: the reaper takes back what has expired, says whose it was, and nothing else': async (
    bench,
  ) => {
    const [expired = '', alive = ''] = await bench.subject.insert(2)
    const [a, b] = [await bench.store('worker-a'), await bench.store('worker-b')]
    const leases = leasesOf(await a.claim({ limit: 2, leaseMs: LEASE_MS }))
    await bench.expire(expired)
    const before = await bench.image(alive)
    const reaped = await b.reap()
    const token = leases.find(({ id }) => id === expired)?.token
    assert.deepEqual(
      reaped.map((r) => ({ id: r.id, owner: r.owner, token: r.token, stale: r.staleMs >= 1_000 })),
      [{ id: expired, owner: 'worker-a', token, stale: true }],
    )
    assert.equal(await bench.image(alive), before, 'a live lease was touched')
    const row = JSON.parse(await bench.image(expired)) as Record<string, unknown>
    const { owner, until } = bench.subject.table.lease
    assert.deepEqual([row[owner], row[until]], [null, null])
    assert.deepEqual(
      leasesOf(await b.claim({ limit: 2, leaseMs: LEASE_MS })).map(({ id }) => id),
      [expired],
    )
  },

  'D5: an expired lease is claimable at once, or only once it is reaped, as the table declares': async (
    bench,
  ) => {
    const [id = ''] = await bench.subject.insert(1)
    const [a, b] = [await bench.store('worker-a'), await bench.store('worker-b')]
    await a.claim({ limit: 1, leaseMs: LEASE_MS })
    await bench.expire(id)
    const taken = leasesOf(await b.claim({ limit: 1, leaseMs: LEASE_MS })).map((lease) => lease.id)
    if (bench.subject.table.onExpiry === 'claimable') {
      assert.deepEqual(taken, [id])
    } else {
      assert.deepEqual(taken, [])
      await b.reap()
      assert.deepEqual(
        leasesOf(await b.claim({ limit: 1, leaseMs: LEASE_MS })).map((lease) => lease.id),
        [id],
      )
    }
  },

  'D4: an expiry counts as one attempt, whether the reaper or the next claim finds it': async (bench) => {
    const [first = '', second = ''] = await bench.subject.insert(2)
    if (bench.subject.table.attempts?.column === undefined) return
    const [a, b] = [await bench.store('worker-a'), await bench.store('worker-b')]
    await a.claim({ limit: 2, leaseMs: LEASE_MS })
    await bench.expire(first)
    await b.reap()
    await bench.expire(second)
    await b.claim({ limit: 2, leaseMs: LEASE_MS })
    await b.reap()
    assert.deepEqual([await bench.attempts(first), await bench.attempts(second)], [1, 1])
  },

  'D10: the first expiry brings a row back at once; from the second on it is a suspect, of which a claim takes one':
    async (bench) => {
      if (bench.subject.table.attempts?.expiries === undefined) return
      const [first = '', second = '', third = ''] = await bench.subject.insert(3)
      const store = await bench.store('worker-a')
      const claim = async (suspects: 0 | 1): ReturnType<typeof store.claim> =>
        store.claim({ limit: 3, leaseMs: LEASE_MS, suspects })
      await claim(1)
      await bench.expire(first, second)
      await store.reap()
      assert.equal((await claim(0)).claimed.length, 2, 'the first expiry makes no suspect')
      await bench.expire(first, second)
      assert.deepEqual((await claim(1)).claimed, [], 'a second expiry is for the reaper')
      await store.reap()
      assert.deepEqual([await bench.expiries(first), await bench.expiries(second)], [2, 2])
      assert.deepEqual((await claim(0)).claimed, [])
      const one = await claim(1)
      assert.deepEqual([one.claimed.length, one.claimed[0]?.lease.id], [1, one.suspect])
      const [other] = leasesOf(await claim(1))
      assert.deepEqual(new Set([one.suspect, other?.id]), new Set([first, second]))
      assert.equal(await bench.expiries(third), 0)
    },

  'the reaper takes no more than asked for, and several at once take each row once': async (bench) => {
    const ids = await bench.subject.insert(30)
    const stores = await Promise.all(['a', 'b', 'c'].map(async (name) => bench.store(name)))
    const [a] = stores
    assert.ok(a)
    await a.claim({ limit: 30, leaseMs: LEASE_MS })
    await bench.expire(...ids)
    assert.equal((await a.reap({ limit: 4 })).length, 4)
    const reaped = (await Promise.all(stores.map(async (store) => store.reap({ limit: 30 })))).flat()
    const last = await a.reap({ limit: 30 })
    assert.equal(new Set([...reaped, ...last].map(({ id }) => id)).size, 26)
    assert.equal(reaped.length + last.length, 26)
  },

  'the reaper skips a row that another session has locked': async (bench) => {
    const [locked = '', free = ''] = await bench.subject.insert(2)
    const store = await bench.store('worker-a')
    await store.claim({ limit: 2, leaseMs: LEASE_MS })
    await bench.expire(locked, free)
    const reaped = await bench.whileLocked(locked, async () => store.reap())
    assert.deepEqual(
      reaped.map(({ id }) => id),
      [free],
    )
  },
}
