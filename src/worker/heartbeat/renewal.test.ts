import { expect, it, vi } from 'vitest'
import type { Lease } from '../../lease/lease.ts'
import { columnsOf, HeldRows } from './held-rows.ts'
import type { FromHeartbeat } from './messages.ts'
import { createRenewal } from './renewal.ts'

it('a bucket that cannot be reached loses its own leases, and no other bucket does', async () => {
  let now = 0
  const held = new HeldRows()
  const rows = [0, 1, 2].map((bucket) => ({
    ...held.take(1_000),
    id: '5',
    token: 1n,
    bucket,
    claimedAt: 0,
  }))
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
      owner: 'worker',
      renew: async (leases: readonly Lease[]) => {
        // The bucket that fails comes before the others.
        if (leases.some(({ bucket }) => bucket === 0)) throw new Error('the shard is away')
        return Promise.resolve({ renewed: leases, busy: [], lost: [], trustedUntil: 5_000 })
      },
    },
  })
  renewal.hold(columnsOf(rows))
  renewal.loop.start()
  await isLost
  await renewal.loop.stop()
  expect(rows.map((row) => held.isHeld(row))).toEqual([false, true, true])
  expect(rows.map((row) => held.trustedUntil(row))).toEqual([1_000, 5_000, 5_000])
  expect(sent.filter(({ type }) => type === 'lost')).toHaveLength(1)
})

it('RULE-020-010, RULE-020-051: a row is renewed until it was held for `maxLeases` leases, and not after that', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date'], now: 0 })
  try {
    const held = new HeldRows()
    const [leaseMs, heartbeatMs, maxLeases] = [1_000, 100, 3]
    const renewals: { readonly at: number; readonly until: number }[] = []
    const renewal = createRenewal({
      name: 'jobs',
      held,
      timing: { leaseMs, heartbeatMs, maxLeases },
      clock: { monotonicNow: () => Date.now() },
      send: () => undefined,
      store: {
        owner: 'worker',
        renew: async (leases: readonly Lease[], ms: number) => {
          renewals.push({ at: Date.now(), until: Date.now() + ms })
          return Promise.resolve({ renewed: leases, busy: [], lost: [], trustedUntil: Date.now() + ms })
        },
      },
    })
    renewal.hold(columnsOf([{ ...held.take(leaseMs), id: '5', token: 1n, bucket: 0, claimedAt: 0 }]))
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
