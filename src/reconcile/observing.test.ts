/** Observers that are slow, fail or ignore their signal; and the bounds of batch and concurrency. */
import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { leaseTable } from '../lease/declaration.ts'
import { openDatabase } from '../postgres/database.ts'
import { SILENT_LOG } from '../worker/context.ts'
import { Events, SaturatedError } from '../worker/index.ts'
import { reconciler, type ReconcilerOptions } from './reconciler.ts'
import { Summary } from './summary.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
const POLL = { timeout: 120_000, interval: 20 }

const TRANSITIONS = { pending: ['paid'], paid: [] } as const
type Status = keyof typeof TRANSITIONS

interface Payment {
  readonly id: string
  readonly status: string
}

const payments = leaseTable({
  table: 'public.payments',
  id: 'id',
  lease: { owner: 'owner', until: 'until', token: 'token' },
  claimable: "status = 'pending'",
  order: ['id'],
  onExpiry: 'claimable',
})

function declare(
  options: Pick<ReconcilerOptions<Payment, Status>, 'observe'> & Partial<ReconcilerOptions<Payment, Status>>,
) {
  return reconciler<Payment, Status>({ table: payments, transitions: TRANSITIONS, everyMs: 20, ...options })
}

beforeAll(async () =>
  db.query({
    text: `create table public.payments (id bigint primary key, status text not null default 'pending',
        owner text, until timestamptz, token bigint);
      create index on public.payments (status, until, id)`,
  }),
)
beforeEach(async () => db.query({ text: 'truncate public.payments' }))
afterAll(async () => db.close())

async function insert(count: number): Promise<void> {
  const text = 'insert into public.payments (id) select generate_series(1, $1::int)'
  await db.query({ text, values: [count] })
}

async function payment(): Promise<Record<string, unknown> | undefined> {
  const text = 'select status, owner, until > now() as rests, token from public.payments order by id limit 1'
  return (await db.query({ text })).rows[0]
}

/** Resolves when it is let go. */
function gate(): { readonly passed: Promise<void>; readonly open: () => void } {
  let open: () => void = () => undefined
  const passed = new Promise<void>((resolve) => {
    open = resolve
  })
  return { passed, open }
}

describe('REC-09: batch and concurrency bound the work of a reconciler', () => {
  it('no claim takes more than the batch, and no more rows are leased than can be observed', async () => {
    await insert(100)
    const events = new Events()
    const claims: number[] = []
    events.on('claimed', ({ count }) => void claims.push(count))
    const held = gate()
    let [observing, most] = [0, 0]
    const declared = declare({
      settings: { pollMs: 50, batch: 3, concurrency: 8 },
      observe: async () => {
        observing += 1
        most = Math.max(most, observing)
        await held.passed
        observing -= 1
        return 'paid'
      },
    })
    await start([declared], { events })
    await vi.waitFor(() => expect(observing).toBe(8), POLL)
    const leased = 'select count(owner)::int as count from public.payments'
    expect((await db.query<{ count: number }>({ text: leased })).rows[0]?.count).toBe(8)
    held.open()
    let paid = 0
    await events.next('settled', ({ ids }) => (paid += ids.length) === 100)
    expect(most).toBe(8)
    expect(Math.max(...claims)).toBeLessThanOrEqual(3)
  })

  it('a lease ends after three times its length, and the row is observed by another claim', async () => {
    await insert(1)
    const events = new Events()
    let tookTooLong = false
    // On a slow machine a lease can also be lost because it was renewed late. Then the row is observed anew.
    events.on('lost', ({ reason }) => {
      tookTooLong ||= reason === 'tooLong'
    })
    const declared = declare({
      settings: {
        pollMs: 50,
        leaseMs: 2_500,
        heartbeatMs: 100,
        reaperIntervalMs: 100,
        shutdownTimeoutMs: 100,
      },
      observe: async (_, { signal }) => {
        if (tookTooLong) return 'paid'
        return new Promise((_resolve, reject) => {
          signal.addEventListener('abort', () => reject(signal.reason as Error))
        })
      },
    })
    const paid = events.next('settled', ({ outcome }) => outcome === 'pending->paid')
    await start([declared], { events })
    await paid
    expect(tookTooLong).toBe(true)
  })
})

describe('REC-08: an observer', () => {
  it('an observer that throws leaves the row open and without a lease, and the row waits for its next observation', async () => {
    await insert(1)
    const { events } = await start([
      declare({
        everyMs: 600_000,
        observe: async () => {
          throw new Error('no chain')
        },
      }),
    ])
    await events.next('settled', ({ outcome }) => outcome === 'open')
    expect(await payment()).toEqual({ status: 'pending', owner: null, rests: true, token: A_TOKEN })
  })

  it('an observer that does not answer within timeoutMs has failed, and its signal fires', async () => {
    await insert(1)
    const heard: unknown[] = []
    let observations = 0
    const { events } = await start([
      declare({
        timeoutMs: 50,
        settings: { pollMs: 50 },
        observe: async (_, { signal }) => {
          observations += 1
          if (observations > 1) return 'paid'
          signal.addEventListener('abort', () => heard.push(signal.reason))
          return new Promise(() => undefined)
        },
      }),
    ])
    const failed = events.next('failed')
    await events.next('settled', ({ outcome }) => outcome === 'pending->paid')
    expect((await failed).error).toBe('Error: nothing was observed within 50 ms')
    expect(heard).toHaveLength(1)
  })

  it('an observer that throws a SaturatedError releases its row, and claiming pauses', async () => {
    await insert(1)
    let observations = 0
    const { events } = await start([
      declare({
        settings: { pollMs: 50 },
        observe: async () => {
          observations += 1
          if (observations === 1) throw new SaturatedError(100)
          return 'paid'
        },
      }),
    ])
    const failures: unknown[] = []
    events.on('failed', (event) => void failures.push(event))
    const paused = events.next('paused', ({ reason }) => reason === 'saturated')
    const released = events.next('released')
    await events.next('settled', ({ outcome }) => outcome === 'pending->paid')
    expect(await paused).toMatchObject({ reason: 'saturated', forMs: 100 })
    expect((await released).ids).toEqual(['1'])
    expect(failures).toEqual([])
  })

  it('the lease of a slow observer is renewed, and no other observes the row', async () => {
    await insert(1)
    let observations = 0
    // Long enough for a slow machine: a heartbeat that is late costs nothing.
    const timing = { leaseMs: 120_000, heartbeatMs: 100, reaperIntervalMs: 300, shutdownTimeoutMs: 500 }
    const renewed = gate()
    const observe = async (): Promise<'paid'> => {
      observations += 1
      await renewed.passed
      return 'paid'
    }
    const events = new Events()
    const declared = (): ReturnType<typeof declare> =>
      declare({ observe, settings: { ...timing, pollMs: 50 } })
    const claim = events.next('claimed', ({ count }) => count === 1)
    await start([declared()], { events })
    await start([declared()], { events })
    await claim
    // Each renewal moves the end of the lease.
    const ends = new Set<number>()
    await vi.waitFor(async () => expect(ends.add(await until()).size).toBeGreaterThan(5), POLL)
    expect([...ends].toSorted((a, b) => a - b)).toEqual([...ends])
    expect(observations).toBe(1)
    renewed.open()
    await events.next('settled', ({ outcome }) => outcome === 'pending->paid')
    expect(observations).toBe(1)
  })
})

async function until(): Promise<number> {
  const text = 'select extract(epoch from until)::float8 * 1000 as until from public.payments'
  return (await db.query<{ until: number }>({ text })).rows[0]?.until ?? 0
}

describe('REC-04: a status that changes during an observation that outlasts a heartbeat', () => {
  it('a status that changes during an observation ends it, is not overwritten, and counts as skipped', async () => {
    await insert(1)
    const lines: Record<string, unknown>[] = []
    const note = (fields: object, msg: string): void => void lines.push({ ...fields, msg })
    const log = { debug: note, info: note, warn: note, error: note, child: () => log }
    const observing = gate()
    const ended: unknown[] = []
    const { runtime } = await start(
      [
        declare({
          settings: {
            pollMs: 50,
            // Only a renewal can end the observation, however slow the machine is: no lease expires meanwhile.
            leaseMs: 600_000,
            heartbeatMs: 50,
            reaperIntervalMs: 300,
            shutdownTimeoutMs: 500,
          },
          observe: async (_, { signal }) =>
            new Promise((_resolve, reject) => {
              signal.addEventListener('abort', () => {
                ended.push(signal.reason)
                reject(signal.reason as Error)
              })
              observing.open()
            }),
        }),
      ],
      { log },
    )
    await observing.passed
    await db.query({ text: "update public.payments set status = 'paid'" })
    await vi.waitFor(() => expect(ended).toHaveLength(1), POLL)
    await runtime.stop()
    expect(await payment()).toMatchObject({ status: 'paid' })
    const skipped = lines.filter(({ msg }) => msg === 'reconcile summary').map((line) => line['skipped'])
    expect(skipped.reduce<number>((sum, count) => sum + Number(count), 0)).toBe(1)
  })
})

it('an outcome that was fenced off is counted in the summary, and still reported if nobody else listens', () => {
  const events = new Events()
  const unheard: string[] = []
  const summaries: object[] = []
  events.onUnheard(({ type }) => void unheard.push(type))
  const log = { ...SILENT_LOG, info: (fields: object) => void summaries.push(fields) }
  const summary = new Summary({ table: payments, transitions: [], events, worker: 'w1', log })
  const row = { worker: 'w1', table: 'public.payments', id: '7', token: 1n }
  events.emit('fencedOff', { ...row, outcome: 'open', isUncertain: false })
  summary.close()
  expect(unheard).toEqual(['fencedOff'])
  expect(summaries).toMatchObject([{ skipped: 1 }])
})

it('the interval of the summary follows the settings in force, also while the reconciler runs', async () => {
  await insert(1)
  const summaries = vi.fn<() => void>()
  const info = (_: object, message: string): void => {
    if (message === 'reconcile summary') summaries()
  }
  const log = { ...SILENT_LOG, info, child: () => SILENT_LOG }
  const observe = async (): Promise<undefined> => Promise.resolve(undefined)
  const hour = 3_600_000
  const { runtime } = await start([declare({ observe, everyMs: 10, settings: { pollMs: hour } })], { log })
  expect(summaries).not.toHaveBeenCalled()
  runtime.change('reconcile', { pollMs: 20 })
  await vi.waitFor(() => expect(summaries.mock.calls.length).toBeGreaterThanOrEqual(3), POLL)
})

it('REC-06: rows of a reconciler that died can be claimed when their leases have expired, and not before', async () => {
  await insert(2)
  await db.query({
    text: `update public.payments set owner = 'gone', token = 7,
      until = now() + case when id = 1 then interval '-1 second' else interval '1 hour' end`,
  })
  const { events } = await start([declare({ observe: async () => 'paid', settings: { pollMs: 50 } })], {
    reaper: false,
  })
  expect((await events.next('settled')).ids).toEqual(['1'])
  await db.query({ text: "update public.payments set until = now() - interval '1 second' where id = 2" })
  expect((await events.next('settled')).ids).toEqual(['2'])
  expect(await payment()).toEqual({ status: 'paid', owner: null, rests: null, token: '8' })
})
