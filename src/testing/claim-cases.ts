import assert from 'node:assert/strict'
import { answered, type Cases, LEASE_MS, leasesOf } from './fixture.ts'

export const claimCases: Cases = {
  'RULE-020-001, RULE-020-050, D8: a claim takes a time-bounded lease, by the database clock': async (
    fixture,
  ) => {
    const [id = ''] = await fixture.subject.insert(1)
    const store = await fixture.store('worker-a')
    const { claimed } = await store.claim({ limit: 10, leaseMs: LEASE_MS })
    assert.deepEqual(
      claimed.map(({ lease }) => [lease.id, lease.owner]),
      [[id, 'worker-a']],
    )
    assert.ok(await fixture.endsIn(id, LEASE_MS), 'the lease does not end one lease from now')
  },

  'a claim returns the row as it is after the claim': async (fixture) => {
    await fixture.subject.insert(1)
    const store = await fixture.store('worker-a')
    const { claimed } = await store.claim({ limit: 1, leaseMs: LEASE_MS })
    const row: Readonly<Record<string, unknown>> = claimed[0]?.row ?? {}
    const { table } = fixture.subject
    for (const column of table.columns ?? table.id) assert.ok(column in row, `the row lacks ${column}`)
    if (table.columns !== undefined) assert.deepEqual(Object.keys(row), table.columns)
  },

  'a claim takes at most as many rows as requested, in the order of the table': async (fixture) => {
    const ids = await fixture.subject.insert(7)
    const store = await fixture.store('worker-a')
    const first = leasesOf(await store.claim({ limit: 3, leaseMs: LEASE_MS })).map(({ id }) => id)
    const rest = leasesOf(await store.claim({ limit: 10, leaseMs: LEASE_MS })).map(({ id }) => id)
    assert.deepEqual([first.length, rest.length], [3, 4])
    // There is no order between rows of different ordering keys.
    if (fixture.subject.table.ordering === undefined) assert.deepEqual([...first, ...rest], ids)
    else assert.deepEqual([...first, ...rest].toSorted(), ids.toSorted())
  },

  'a claim of named rows takes those of them that are claimable': async (fixture) => {
    const [first = '', second = '', third = ''] = await fixture.subject.insert(4)
    const store = await fixture.store('worker-a')
    const claim = async (...ids: string[]): Promise<string[]> =>
      leasesOf(await store.claim({ limit: ids.length, leaseMs: LEASE_MS, ids })).map(({ id }) => id)
    assert.deepEqual(await claim(second), [second])
    assert.deepEqual(await claim(third, second, first), [first, third])
  },

  'a worker finds every row, including rows before its cursor that become claimable later': async (
    fixture,
  ) => {
    const ids = await fixture.subject.insert(25)
    const store = await fixture.store('worker-a')
    const cycle = fixture.cycle(store)
    const seen: string[] = []
    let released = false
    for (;;) {
      const { claim } = await cycle.send({ settlements: [], room: fixture.room(4) })
      const leases = (claim?.claimed ?? []).map(({ lease }) => lease)
      if (!released && seen.length > 12) {
        released = true
        await store.release(leases)
      } else {
        seen.push(...leases.map(({ id }) => id))
      }
      if (leases.length > 0 || claim === undefined) continue
      if (claim.drained && claim.nextScanInMs === undefined) break
      fixture.passTime(claim.nextScanInMs ?? 0)
    }
    assert.deepEqual(seen.toSorted(), ids.toSorted())
  },

  'one pipeline settles rows and claims the next ones': async (fixture) => {
    await fixture.subject.insert(6)
    const store = await fixture.store('worker-a')
    const cycle = fixture.cycle(store)
    const { outcome, args } = fixture.subject.final
    const { claim: first } = await cycle.send({ settlements: [], room: fixture.room(2) })
    const leases = (first?.claimed ?? []).map(({ lease }) => lease)
    const settlement = { outcome, leases, args: leases.map(() => args ?? {}) }
    const next = await cycle.send({ settlements: [settlement], room: fixture.room(3) })
    assert.deepEqual(next.ended, [answered(leases)])
    const count = next.claim?.claimed.length ?? 0
    assert.ok(count >= 1 && count <= 3, `${count} rows were claimed`)
    const repeated = await cycle.send({ settlements: [settlement] })
    assert.deepEqual(repeated, { ended: [answered([], leases)] })
  },

  'a leased row is not claimed': async (fixture) => {
    await fixture.subject.insert(3)
    const [a, b] = [await fixture.store('worker-a'), await fixture.store('worker-b')]
    await a.claim({ limit: 10, leaseMs: LEASE_MS })
    assert.deepEqual((await b.claim({ limit: 10, leaseMs: LEASE_MS })).claimed, [])
    assert.deepEqual((await a.claim({ limit: 10, leaseMs: LEASE_MS })).claimed, [])
  },

  'RULE-020-040: many claims at once share no row and leave none out': async (fixture) => {
    const ids = await fixture.subject.insert(300)
    const stores = await Promise.all(Array.from({ length: 6 }, async (_, i) => fixture.store(`worker-${i}`)))
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
    // A claim that only finds rows locked by others returns none of them. One more claim takes the remaining rows.
    const rest = await stores[0]?.claim({ limit: 300, leaseMs: LEASE_MS })
    const all = [...taken.flat(), ...(rest === undefined ? [] : leasesOf(rest).map(({ id }) => id))]
    assert.deepEqual(all.toSorted(), ids.toSorted())
  },

  'RULE-020-040: a claim skips a row that another session has locked': async (fixture) => {
    const [first = '', second = ''] = await fixture.subject.insert(2)
    const store = await fixture.store('worker-a')
    const claim = await fixture.whileLocked(first, async () => store.claim({ limit: 2, leaseMs: LEASE_MS }))
    assert.deepEqual(
      leasesOf(claim).map(({ id }) => id),
      [second],
    )
    assert.deepEqual(
      leasesOf(await store.claim({ limit: 2, leaseMs: LEASE_MS })).map(({ id }) => id),
      [first],
    )
  },

  'D3: the token grows with every claim of a row, whoever claims and however the last lease ended': async (
    fixture,
  ) => {
    const [id = ''] = await fixture.subject.insert(1)
    const [a, b] = [await fixture.store('worker-a'), await fixture.store('worker-b')]
    const tokens: bigint[] = []
    for (let round = 0; round < 6; round += 1) {
      const store = round % 3 === 0 ? b : a
      const [lease] = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
      assert.ok(lease, `round ${round} claimed nothing`)
      tokens.push(lease.token)
      if (round % 2 === 0) {
        await store.release([lease])
      } else {
        await fixture.expire(id)
        await a.reap()
      }
    }
    assert.deepEqual(
      tokens,
      [...new Set(tokens)].toSorted((x, y) => (x < y ? -1 : 1)),
      'tokens do not strictly grow',
    )
  },

  'the name of an owner may contain quotes, a number sign and a line break': async (fixture) => {
    const [id = ''] = await fixture.subject.insert(1)
    const owner = `o'neil "the#1"; drop\n`
    const store = await fixture.store(owner)
    const leases = leasesOf(await store.claim({ limit: 1, leaseMs: LEASE_MS }))
    assert.deepEqual(
      leases.map((lease) => [lease.id, lease.owner]),
      [[id, owner]],
    )
    assert.equal((await store.renew(leases, LEASE_MS)).renewed.length, 1)
    await fixture.expire(id)
    assert.deepEqual(
      (await store.reap()).map((reaped) => [reaped.id, reaped.owner]),
      [[id, owner]],
    )
  },

  'a batch of 10,000 is claimed, renewed and settled': async (fixture) => {
    await fixture.subject.insert(10_000)
    const store = await fixture.store('worker-a')
    const leases = await fixture.claim(store, 10_000)
    assert.equal(new Set(leases.map(({ id }) => id)).size, 10_000)
    assert.equal((await store.renew(leases, LEASE_MS)).renewed.length, 10_000)
    assert.equal((await fixture.settle(store, leases)).ended.length, 10_000)
    assert.equal((await fixture.settle(store, leases)).fencedOff.length, 10_000)
  },
}
