import assert from 'node:assert/strict'
import type { Lease } from '../lease/lease.ts'
import { type Cases, LEASE_MS, leasesOf } from './subject.ts'

export const renewCases: Cases = {
  'RULE-020-010: a renewal moves the end of the lease forward, never back': async (bench) => {
    const [id = ''] = await bench.subject.insert(1)
    const store = await bench.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    const renewal = await store.renew(leases, 5 * LEASE_MS)
    assert.deepEqual(renewal.renewed, leases)
    assert.ok(await bench.endsIn(id, 5 * LEASE_MS), 'the lease was not extended')
    await store.renew(leases, LEASE_MS)
    assert.ok(await bench.endsIn(id, 5 * LEASE_MS), 'the lease was shortened')
  },

  'RULE-020-003: a renewal by another owner, with an old token or of no row, is lost and changes nothing':
    async (bench) => {
      const [id = ''] = await bench.subject.insert(1)
      const [a, b] = [await bench.store('worker-a'), await bench.store('worker-b')]
      const [old] = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
      assert.ok(old)
      await a.release([old])
      const [current] = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
      assert.ok(current)
      const before = await bench.image(id)
      assert.deepEqual((await a.renew([old], LEASE_MS)).lost, [old], 'an old token renewed')
      assert.deepEqual((await b.renew([current], LEASE_MS)).lost, [current], 'another owner renewed')
      assert.equal(await bench.image(id), before)
    },

  'only what is lost is lost: the other leases of the batch are renewed': async (bench) => {
    await bench.subject.insert(3)
    const store = await bench.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 3, leaseMs: LEASE_MS }))
    const [first, second, third] = leases
    assert.ok(first && second && third)
    await bench.settle(store, [second])
    const renewal = await store.renew(leases, LEASE_MS)
    assert.deepEqual(renewal.renewed, [first, third])
    assert.deepEqual(renewal.lost, [second])
  },

  'SYNC-05: a lease that is over cannot be renewed, even if nobody has taken it': async (bench) => {
    const [id = ''] = await bench.subject.insert(1)
    const store = await bench.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    await bench.expire(id)
    const before = await bench.image(id)
    assert.deepEqual((await store.renew(leases, LEASE_MS)).lost, leases)
    assert.equal(await bench.image(id), before)
  },

  'WH-FR-001-N: a row that another session has locked does not delay the renewal of the others': async (
    bench,
  ) => {
    const [locked = ''] = await bench.subject.insert(3)
    const store = await bench.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 3, leaseMs: LEASE_MS }))
    const isLocked = (lease: Lease): boolean => lease.id === locked
    const renewal = await bench.whileLocked(locked, async () => store.renew(leases, LEASE_MS))
    assert.deepEqual(renewal.busy, leases.filter(isLocked))
    assert.deepEqual(renewal.lost, [])
    assert.equal(renewal.renewed.length, 2)
  },

  'a settlement that meets a renewal of the same rows is not fenced off by it': async (bench) => {
    const store = await bench.store('worker-a')
    for (let round = 0; round < 20; round += 1) {
      await bench.subject.insert(20)
      const leases = leasesOf(await store.claim({ limit: 20, leaseMs: LEASE_MS }))
      const [renewal, settled] = await Promise.all([
        store.renew(leases, LEASE_MS),
        bench.settle(store, leases),
      ])
      assert.deepEqual(settled.fencedOff, [])
      // What the renewal had locked at that moment is free by now.
      assert.deepEqual((await bench.settle(store, settled.busy)).ended, settled.busy)
      assert.equal(renewal.renewed.length + renewal.busy.length + renewal.lost.length, 20)
    }
  },

  'an empty batch is renewed to an empty answer': async (bench) => {
    const store = await bench.store('worker-a')
    const { renewed, busy, lost } = await store.renew([], LEASE_MS)
    assert.deepEqual({ renewed, busy, lost }, { renewed: [], busy: [], lost: [] })
  },
}
