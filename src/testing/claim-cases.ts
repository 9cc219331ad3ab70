import assert from 'node:assert/strict'
import { setTimeout as delay } from 'node:timers/promises'
import { createClaimer } from '../lease/claimer.ts'
import { type Cases, LEASE_MS, leasesOf } from './subject.ts'

export const claimCases: Cases = {
  'RULE-020-001, RULE-020-050, D8: a claim takes a time-bounded lease, by the database clock': async (
    bench,
  ) => {
    const [id = ''] = await bench.subject.insert(1)
    const store = await bench.store('worker-a')
    const { claimed } = await store.claim({ limit: 10, leaseMs: LEASE_MS })
    assert.deepEqual(
      claimed.map(({ lease }) => [lease.id, lease.owner]),
      [[id, 'worker-a']],
    )
    assert.ok(await bench.endsIn(id, LEASE_MS), 'the lease does not end one lease from now')
  },

  'a claim returns the row as it is after the claim': async (bench) => {
    await bench.subject.insert(1)
    const store = await bench.store('worker-a')
    const { claimed } = await store.claim({ limit: 1, leaseMs: LEASE_MS })
    const row: Readonly<Record<string, unknown>> = claimed[0]?.row ?? {}
    const { table } = bench.subject
    for (const column of table.columns ?? table.key) assert.ok(column in row, `the row lacks ${column}`)
    assert.deepEqual(
      Object.keys(row).filter((column) => /^@[a-z]+$/.test(column)),
      [],
      'the row carries what only the kernel needs',
    )
  },

  'a claim takes no more than asked for, in the order of the table': async (bench) => {
    const ids = await bench.subject.insert(7)
    const store = await bench.store('worker-a')
    const first = await store.claim({ limit: 3, leaseMs: LEASE_MS })
    const rest = await store.claim({ limit: 10, leaseMs: LEASE_MS })
    assert.deepEqual(
      leasesOf(first).map(({ id }) => id),
      ids.slice(0, 3),
    )
    assert.deepEqual(
      leasesOf(rest).map(({ id }) => id),
      ids.slice(3),
    )
  },

  'a claimer that keeps its place takes every row, and sees what became due behind it': async (bench) => {
    const before = await bench.subject.insert(25)
    const store = await bench.store('worker-a')
    const claimer = createClaimer(store)
    const seen: string[] = []
    let givenBack = false
    for (;;) {
      const look = await claimer.claim({ limit: 4, leaseMs: LEASE_MS })
      const leases = leasesOf(look)
      if (!givenBack && seen.length > 12) {
        givenBack = true
        await store.release(leases)
      } else {
        seen.push(...leases.map(({ id }) => id))
      }
      if (look.drained) break
    }
    assert.deepEqual(seen.toSorted(), before.toSorted())
  },

  'a leased row is not claimed again': async (bench) => {
    await bench.subject.insert(3)
    const [a, b] = [await bench.store('worker-a'), await bench.store('worker-b')]
    await a.claim({ limit: 10, leaseMs: LEASE_MS })
    assert.deepEqual((await b.claim({ limit: 10, leaseMs: LEASE_MS })).claimed, [])
    assert.deepEqual((await a.claim({ limit: 10, leaseMs: LEASE_MS })).claimed, [])
  },

  'RULE-020-040: many claims at once share no row and leave none out': async (bench) => {
    const ids = await bench.subject.insert(300)
    const stores = await Promise.all(Array.from({ length: 6 }, async (_, i) => bench.store(`worker-${i}`)))
    const taken = await Promise.all(
      stores.map(async (store) => {
        const mine: string[] = []
        for (;;) {
          const claim = await store.claim({ limit: 7, leaseMs: LEASE_MS })
          mine.push(...leasesOf(claim).map(({ id }) => id))
          if (claim.claimed.length === 0) return mine
        }
      }),
    )
    // A look that only met rows which others had locked comes back empty too early: one more finds what they left.
    const left = await stores[0]?.claim({ limit: 300, leaseMs: LEASE_MS })
    const all = [...taken.flat(), ...(left === undefined ? [] : leasesOf(left).map(({ id }) => id))]
    assert.deepEqual(all.toSorted(), ids.toSorted())
  },

  'RULE-020-040: a claim skips a row that somebody has locked, and waits for nobody': async (bench) => {
    const [first = '', second = ''] = await bench.subject.insert(2)
    const store = await bench.store('worker-a')
    const claim = await bench.whileLocked(first, async () => store.claim({ limit: 2, leaseMs: LEASE_MS }))
    assert.deepEqual(
      leasesOf(claim).map(({ id }) => id),
      [second],
    )
    let later = await store.claim({ limit: 2, leaseMs: LEASE_MS })
    // A row that was found locked may rest a little; then the claim says how long.
    while (later.claimed.length === 0 && later.nextDueMs !== undefined) {
      await delay(later.nextDueMs)
      later = await store.claim({ limit: 2, leaseMs: LEASE_MS })
    }
    assert.deepEqual(
      leasesOf(later).map(({ id }) => id),
      [first],
    )
  },

  'D3: the token grows with every claim of a row, whoever claims and however the last lease ended': async (
    bench,
  ) => {
    const [id = ''] = await bench.subject.insert(1)
    const [a, b] = [await bench.store('worker-a'), await bench.store('worker-b')]
    const tokens: bigint[] = []
    for (let round = 0; round < 6; round += 1) {
      const store = round % 3 === 0 ? b : a
      const [lease] = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
      assert.ok(lease, `round ${round} claimed nothing`)
      tokens.push(lease.token)
      if (round % 2 === 0) {
        await store.release([lease])
      } else {
        await bench.expire(id)
        await a.reap()
      }
    }
    assert.deepEqual(
      tokens,
      [...new Set(tokens)].toSorted((x, y) => (x < y ? -1 : 1)),
      'tokens do not strictly grow',
    )
  },

  'an owner with quotes, a mark and a line break in its name is only a name': async (bench) => {
    const [id = ''] = await bench.subject.insert(1)
    const owner = `o'neil "the#1"; drop\n`
    const store = await bench.store(owner)
    const leases = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.deepEqual(
      leases.map((lease) => [lease.id, lease.owner]),
      [[id, owner]],
    )
    assert.equal((await store.renew(leases, LEASE_MS)).renewed.length, 1)
    await bench.expire(id)
    assert.deepEqual(
      (await store.reap()).map((reaped) => [reaped.id, reaped.owner]),
      [[id, owner]],
    )
  },

  'a batch of 10,000 is claimed, renewed and settled, one statement each': async (bench) => {
    await bench.subject.insert(10_000)
    const store = await bench.store('worker-a')
    const leases = leasesOf(await store.claim({ limit: 10_000, leaseMs: LEASE_MS }))
    assert.equal(new Set(leases.map(({ id }) => id)).size, 10_000)
    assert.equal((await store.renew(leases, LEASE_MS)).renewed.length, 10_000)
    assert.equal((await bench.settle(store, leases)).ended.length, 10_000)
    assert.equal((await bench.settle(store, leases)).fencedOff.length, 10_000)
  },
}
