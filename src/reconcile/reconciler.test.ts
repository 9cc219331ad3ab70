import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { leaseTable } from '../lease/declaration.ts'
import { openDatabase } from '../postgres/database.ts'
import { reconciler, type ReconcilerOptions } from './reconciler.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)

interface Payment {
  readonly id: string
  readonly status: string
}

const TRANSITIONS = {
  pending: ['detected', 'expired'],
  detected: ['confirmed', 'expired'],
  confirmed: [],
  expired: [],
} as const

const payments = leaseTable({
  table: 'public.payment_requests',
  id: 'id',
  lease: { owner: 'reconcile_lease_owner', until: 'reconcile_lease_until', token: 'reconcile_lease_token' },
  claimable: "status in ('pending', 'detected')",
  order: ['created_at', 'id'],
  onExpiry: 'claimable',
})

type Status = keyof typeof TRANSITIONS

function declare(
  options: Pick<ReconcilerOptions<Payment, Status>, 'observe'> & Partial<ReconcilerOptions<Payment, Status>>,
) {
  return reconciler<Payment, Status>({
    table: payments,
    transitions: TRANSITIONS,
    everyMs: 20,
    settings: { pollMs: 50 },
    ...options,
  })
}

async function rows(): Promise<Record<string, unknown>[]> {
  const { rows: found } = await db.query<Record<string, unknown>>({
    text: 'select id, status, reconcile_lease_owner as owner, tx_hash from public.payment_requests order by id',
  })
  return found
}

beforeAll(async () =>
  db.query({
    text: `create table public.payment_requests (
        id bigint generated always as identity primary key, status text not null default 'pending',
        created_at timestamptz not null default now(), tx_hash text,
        reconcile_lease_owner text, reconcile_lease_until timestamptz, reconcile_lease_token bigint);
      create index on public.payment_requests (status, reconcile_lease_until, created_at, id);`,
  }),
)
beforeEach(async () => db.query({ text: 'truncate public.payment_requests restart identity' }))
afterAll(async () => db.close())

async function insert(count: number): Promise<void> {
  await db.query({
    text: 'insert into public.payment_requests (status) select $2 from generate_series(1, $1::int)',
    values: [count, 'pending'],
  })
}

describe('a reconciler', () => {
  it('REC-03 REC-04 REC-05: observes open rows until they settle, and clears their leases', async () => {
    await insert(3)
    const seen: string[] = []
    const declared = declare({
      values: { tx_hash: 'text' },
      observe: async ({ id, status }) => {
        seen.push(`${id} ${status}`)
        return status === 'pending' ? 'detected' : { status: 'confirmed', values: { tx_hash: `0x${id}` } }
      },
    })
    const { events } = await start([declared])
    let left = 3
    await events.next(
      'settled',
      ({ outcome, ids }) => outcome === 'detected->confirmed' && (left -= ids.length) === 0,
    )
    expect(await rows()).toEqual(
      ['1', '2', '3'].map((id) => ({ id, status: 'confirmed', owner: null, tx_hash: `0x${id}` })),
    )
    expect(seen.toSorted()).toEqual(['1', '2', '3'].flatMap((id) => [`${id} detected`, `${id} pending`]))
  })

  it('leaves a row open if there is nothing new, and observes it later', async () => {
    await insert(1)
    let observations = 0
    const { events } = await start([
      declare({ observe: async () => ((observations += 1) < 3 ? undefined : 'expired') }),
    ])
    await events.next('settled', ({ outcome }) => outcome === 'pending->expired')
    expect(observations).toBe(3)
    expect(await rows()).toMatchObject([{ status: 'expired', owner: null }])
  })

  it('REC-04: never overwrites a status that was changed meanwhile, which counts as skipped', async () => {
    await insert(1)
    const { events } = await start([
      declare({
        observe: async () => {
          await db.query({ text: "update public.payment_requests set status = 'confirmed'" })
          return 'expired'
        },
      }),
    ])
    await events.next('settled', ({ outcome }) => outcome === 'skipped')
    expect(await rows()).toMatchObject([{ status: 'confirmed', owner: null }])
  })

  it('REC-08: a failure of the observer leaves the row open', async () => {
    await insert(1)
    let observations = 0
    const { events } = await start([
      declare({
        observe: async () => {
          observations += 1
          if (observations === 1) throw new Error('no chain')
          return 'detected'
        },
      }),
    ])
    const failed = events.next('failed')
    await events.next('settled', ({ outcome }) => outcome === 'pending->detected')
    expect((await failed).error).toBe('Error: no chain')
  })

  it.each([
    ['confirmed', 'observe answered "confirmed", but from pending only detected, expired are allowed'],
    [{ status: 7 }, 'observe answered { status: 7 }, but must answer with a status'],
    [{ status: 'detected', values: { id: 1 } }, 'a value for id, which `values` does not name'],
  ])('refuses the answer %j before it reaches the database', async (answer, message) => {
    await insert(1)
    const { events } = await start([declare({ observe: async () => answer as never })])
    const { error } = await events.next('failed')
    expect(error).toContain(message)
    expect(await rows()).toMatchObject([{ status: 'pending' }])
  })

  it('runs onApplied in the transaction of the transition, and only if it applied', async () => {
    await insert(2)
    await db.query({ text: 'create table if not exists public.told (id bigint, status text)' })
    const { events } = await start([
      declare({
        observe: async ({ id }) => {
          if (id === '2')
            await db.query({ text: "update public.payment_requests set status = 'confirmed' where id = 2" })
          return 'expired'
        },
        onApplied: async (tx, { row, to }) => {
          await tx.query({ text: 'insert into public.told values ($1, $2)', values: [row.id, to] })
        },
      }),
    ])
    const seen = new Set<string>()
    await events.next('settled', ({ outcome }) => seen.add(outcome) && seen.size === 2)
    expect([...seen].toSorted()).toEqual(['pending->expired', 'skipped'])
    expect((await db.query({ text: 'select * from public.told' })).rows).toEqual([
      { id: '1', status: 'expired' },
    ])
    expect(await rows()).toMatchObject([{ status: 'expired' }, { status: 'confirmed' }])
  })

  it('rolls the transition back when onApplied throws', async () => {
    await insert(1)
    let tries = 0
    const { events } = await start([
      declare({
        observe: async () => 'expired',
        onApplied: async () => {
          tries += 1
          if (tries === 1) throw new Error('no outbox')
          return Promise.resolve()
        },
      }),
    ])
    await events.next('failed')
    expect(await rows()).toMatchObject([{ status: 'pending' }])
    await events.next('settled', ({ outcome }) => outcome === 'pending->expired')
    expect(tries).toBe(2)
  })
})

describe('REC-13: a declaration that cannot work', () => {
  it.each([
    [{ transitions: { pending: ['paid'] } }, 'leads to paid, which has no entry'],
    [{ transitions: { pending: [] } }, 'transitions leads nowhere'],
    [{ transitions: { pending: ['pending'] } }, 'leads to itself'],
    [{ observe: 7 }, 'observe must be a function'],
    [{ everyMs: 0 }, 'everyMs is 0'],
    [{ table: {} }, 'made with leaseTable()'],
  ])('%j is refused', (broken, message) => {
    const options = { table: payments, transitions: TRANSITIONS, observe: async () => undefined, ...broken }
    expect(() => reconciler(options as never)).toThrow(message)
  })
})

describe('an observer', () => {
  it.each([
    [
      'throws before it is asynchronous',
      () => {
        throw new Error('no chain')
      },
    ],
    ['never comes back', async () => new Promise<never>(() => undefined)],
  ])('an observer that %s costs its row one observation, and no slot', async (_, misbehave) => {
    await insert(6)
    let bad = 3
    const declared = declare({
      observe: (async () => {
        if ((bad -= 1) >= 0) return misbehave()
        return 'expired'
      }) as never,
      timeoutMs: 100,
      settings: { pollMs: 50, concurrency: 1 },
    })
    const { events } = await start([declared])
    const failed = events.next('failed')
    let left = 6
    await events.next(
      'settled',
      ({ outcome, ids }) => outcome === 'pending->expired' && (left -= ids.length) === 0,
    )
    expect(String((await failed).error)).toMatch(/no chain|nothing was observed within 100 ms/)
  })

  it('an observer that throws after its timeout, outside a promise, does not end the process', async () => {
    await insert(1)
    let observations = 0
    const observe = (() => {
      observations += 1
      if (observations < 3) throw new Error('no chain')
      return Promise.resolve('expired')
    }) as never
    const { events } = await start([declare({ observe, timeoutMs: 10, everyMs: 50 })])
    await events.next('settled', ({ outcome }) => outcome === 'pending->expired')
    expect(observations).toBe(3)
  })
})
