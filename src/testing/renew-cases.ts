import assert from 'node:assert/strict'
import type { Lease } from '../lease/lease.ts'
import { type Cases, LEASE_MS, leasesOf } from './fixture.ts'

export const renewCases: Cases = {
  'RULE-020-010: a renewal moves the end of the lease forward, never back': async (fixture) => {
    const [id = ''] = await fixture.subject.insert(1)
    const store = await fixture.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    const renewal = await store.renew(leases, 5 * LEASE_MS)
    assert.deepEqual(renewal.renewed, leases)
    assert.ok(await fixture.endsIn(id, 5 * LEASE_MS), 'the lease was not extended')
    await store.renew(leases, LEASE_MS)
    assert.ok(await fixture.endsIn(id, 5 * LEASE_MS), 'the lease was shortened')
  },

  'RULE-020-003: a renewal by another owner or with an old token is lost and changes nothing': async (
    fixture,
  ) => {
    const [id = ''] = await fixture.subject.insert(1)
    const [a, b] = [await fixture.store('worker-a'), await fixture.store('worker-b')]
    const [old] = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.ok(old)
    await a.release([old])
    const [current] = leasesOf(await a.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.ok(current)
    const before = await fixture.image(id)
    assert.deepEqual((await a.renew([old], LEASE_MS)).lost, [old], 'an old token renewed')
    assert.deepEqual((await b.renew([current], LEASE_MS)).lost, [current], 'another owner renewed')
    assert.equal(await fixture.image(id), before)
  },

  'a lost lease does not prevent the renewal of the other leases of the batch': async (fixture) => {
    await fixture.subject.insert(3)
    const store = await fixture.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 3, leaseMs: LEASE_MS }))
    const [first, second, third] = leases
    assert.ok(first && second && third)
    await fixture.settle(store, [second])
    const renewal = await store.renew(leases, LEASE_MS)
    assert.deepEqual(renewal.renewed, [first, third])
    assert.deepEqual(renewal.lost, [second])
  },

  'SYNC-05: an expired lease cannot be renewed, even if no other worker has claimed the row': async (
    fixture,
  ) => {
    const [id = ''] = await fixture.subject.insert(1)
    const store = await fixture.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    await fixture.expire(id)
    const before = await fixture.image(id)
    assert.deepEqual((await store.renew(leases, LEASE_MS)).lost, leases)
    assert.equal(await fixture.image(id), before)
  },

  'WH-FR-001-N: a row that another session has locked does not delay the renewal of the others': async (
    fixture,
  ) => {
    const [locked = ''] = await fixture.subject.insert(3)
    const store = await fixture.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 3, leaseMs: LEASE_MS }))
    const isLocked = (lease: Lease): boolean => lease.id === locked
    const renewal = await fixture.whileLocked(locked, async () => store.renew(leases, LEASE_MS))
    assert.deepEqual(renewal.busy, leases.filter(isLocked))
    assert.deepEqual(renewal.lost, [])
    assert.equal(renewal.renewed.length, 2)
  },

  'a settlement is not fenced off by a concurrent renewal of the same rows': async (fixture) => {
    const store = await fixture.store('worker-a')
    for (let round = 0; round < 20; round += 1) {
      await fixture.subject.insert(20)
      const leases = leasesOf(await store.claim({ limit: 20, leaseMs: LEASE_MS }))
      const [renewal, settled] = await Promise.all([
        store.renew(leases, LEASE_MS),
        fixture.settle(store, leases),
      ])
      assert.deepEqual(settled.fencedOff, [])
      // The rows that the renewal had locked are free now.
      assert.deepEqual((await fixture.settle(store, settled.busy)).ended, settled.busy)
      assert.equal(renewal.renewed.length + renewal.busy.length + renewal.lost.length, 20)
    }
  },

  'the renewal of an empty batch returns an empty result': async (fixture) => {
    const store = await fixture.store('worker-a')
    const { renewed, busy, lost } = await store.renew([], LEASE_MS)
    assert.deepEqual({ renewed, busy, lost }, { renewed: [], busy: [], lost: [] })
  },
}
