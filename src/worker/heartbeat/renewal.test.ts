import { expect, it, vi } from 'vitest'
import type { Lease } from '../../lease/lease.ts'
import { type HeldRow, HeldRows } from './held-rows.ts'
import type { FromHeartbeat } from './messages.ts'
import { createRenewal, type RenewalOptions } from './renewal.ts'

/** The store of a table whose rows are called after their node, and one to a node. */
const NAMED_BY_NODE: Omit<RenewalOptions['store'], 'renew'> = {
  leaseAt: (address, token) => ({ id: address, owner: 'w', token, until: new Date(0), bucket: undefined }),
  byNode: (leases) => new Map(leases.map((lease) => [lease.id, [lease]])),
}

function take(held: HeldRows, address: string, trustedUntil: number): HeldRow {
  return held.take({ address, token: 1n, claimedAt: 0, trustedUntil })
}

it('a node that cannot be reached costs the leases of its own rows, and no others', async () => {
  let now = 0
  const held = new HeldRows()
  const rows = ['away', 'b', 'c'].map((node) => take(held, node, 1_000))
  const sent: FromHeartbeat[] = []
  let stopped = (): void => undefined
  const isLost = new Promise<void>((resolve) => {
    stopped = resolve
  })
  const renewal = createRenewal({
    name: 'jobs',
    held,
    timing: { leaseMs: 1_000, heartbeatMs: 10, maxLeases: 10 },
    clock: { monotonicNow: () => (now += 10) },
    send: (message) => {
      sent.push(message)
      if (message.type === 'lost') stopped()
    },
    store: {
      ...NAMED_BY_NODE,
      renew: async (leases: readonly Lease[]) => {
        // The node that fails comes before the others.
        if (leases.some(({ id }) => id === 'away')) throw new Error('the node is away')
        return Promise.resolve({ renewed: leases, busy: [], lost: [], trustedUntil: 5_000 })
      },
    },
  })
  renewal.loop.start()
  await isLost
  await renewal.loop.stop()
  expect(rows.map((row) => held.isHeld(row))).toEqual([false, true, true])
  expect(rows.map((row) => held.trustedUntil(row))).toEqual([1_000, 5_000, 5_000])
  expect(sent.filter(({ type }) => type === 'lost')).toHaveLength(1)
})

it('RULE-020-010, RULE-020-051: rows are renewed until they were held for `maxLeases` leases, and not after that', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date'], now: 0 })
  try {
    const held = new HeldRows()
    // The second one does not fit into the shared memory.
    const addresses = ['5', '6'.repeat(200)]
    const [leaseMs, heartbeatMs, maxLeases] = [1_000, 100, 3]
    const renewals: { readonly at: number; readonly until: number }[] = []
    const renewal = createRenewal({
      name: 'jobs',
      held,
      timing: { leaseMs, heartbeatMs, maxLeases },
      clock: { monotonicNow: () => Date.now() },
      send: () => undefined,
      store: {
        ...NAMED_BY_NODE,
        byNode: (leases) => new Map([['', leases]]),
        renew: async (leases: readonly Lease[], ms: number) => {
          expect(leases.map(({ id }) => id)).toEqual(addresses)
          renewals.push({ at: Date.now(), until: Date.now() + ms })
          return Promise.resolve({ renewed: leases, busy: [], lost: [], trustedUntil: Date.now() + ms })
        },
      },
    })
    for (const address of addresses) {
      const row = take(held, address, leaseMs)
      if (held.isTooLong(row)) renewal.hold(row, address)
    }
    renewal.loop.start()
    await vi.advanceTimersByTimeAsync(10 * leaseMs)
    await renewal.loop.stop()
    // Without a gap, from the claim on.
    let coveredUntil = leaseMs
    for (const { at, until } of renewals) {
      expect(at).toBeLessThan(coveredUntil)
      coveredUntil = Math.max(coveredUntil, until)
    }
    expect(coveredUntil).toBeGreaterThan(maxLeases * leaseMs - heartbeatMs)
    expect(coveredUntil).toBeLessThanOrEqual(maxLeases * leaseMs)
  } finally {
    vi.useRealTimers()
  }
})
