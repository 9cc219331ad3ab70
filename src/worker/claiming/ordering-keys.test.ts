import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { settled } from '../../../test/support/running-worker.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { leaseTable, type LeaseTableDeclaration } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { HandlerContext } from '../context.ts'
import { Events } from '../events.ts'
import { fixedGroups } from './groups.ts'
import { dead, type Outcome, retry } from '../completion/outcome.ts'

interface Ticket {
  readonly id: string
  readonly key: string | null
  readonly team: string
}

useQuietProcess()
const { url } = useDatabase()
const start = useRuntimes(url)
const db = openDatabase({ url })

const DDL = `
  create table public.tickets (
    id bigint generated always as identity primary key,
    key text,
    team text not null default 'a',
    status text not null default 'PENDING',
    attempts int not null default 0,
    expiries int not null default 0,
    available_at timestamptz not null default now(),
    claimed_by text,
    locked_until timestamptz,
    lock_token bigint not null default 0
  );
  create index on public.tickets (available_at, id) where key is null and status = 'PENDING' and expiries < 2;
  create index on public.tickets (available_at, id) where key is null and status = 'PENDING' and expiries >= 2;
  create index on public.tickets (key, id) where key is not null and status in ('PENDING', 'CLAIMED');
  create unique index on public.tickets (key) where status = 'CLAIMED';
  create index on public.tickets (team, available_at, id) where key is null and status = 'PENDING' and expiries < 2;
  create index on public.tickets (team, available_at, id) where key is null and status = 'PENDING' and expiries >= 2;
  create index on public.tickets (team, key, id) where key is not null and status in ('PENDING', 'CLAIMED');
  create unique index on public.tickets (team, key) where status = 'CLAIMED'`

const TICKETS = {
  table: 'public.tickets',
  id: 'id',
  lease: { owner: 'claimed_by', until: 'locked_until', token: 'lock_token' },
  claimable: "status = 'PENDING'",
  availableAt: 'available_at',
  order: ['available_at', 'id'],
  onExpiry: 'reap',
  leased: "status = 'CLAIMED'",
  attempts: { max: 3, error: false },
  retry: [10],
  ordering: { key: 'key', unfinished: "status in ('PENDING', 'CLAIMED')" },
  writes: { claim: { status: "'CLAIMED'" }, release: { status: "'PENDING'" } },
  outcomes: {
    done: { set: { status: "'DONE'" } },
    retry: {
      set: {
        status: "'PENDING'",
        attempts: 'attempts + 1',
        available_at: "now() + $delay_ms * interval '1 millisecond'",
      },
      args: { delay_ms: 'float8' },
    },
    dead: { set: { status: "'DEAD'", attempts: 'attempts + 1' } },
  },
} as const satisfies LeaseTableDeclaration

const GROUPED = { ...TICKETS, groups: 'team' } as const

/** So rare that nothing in these tests is found by a poll. */
const SETTINGS = { pollMs: 3_600_000, leaseMs: 60_000 }
const KEYS = ['a', 'b', 'c', null]

beforeAll(async () => {
  await db.query({ text: DDL })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.tickets restart identity' })
})
afterAll(async () => db.close())

/** So many rows of each key, written in turn. */
async function insert(each: number, keys: readonly (string | null)[] = KEYS): Promise<string[]> {
  const { rows } = await db.query<{ id: string }>({
    text: `insert into public.tickets (key) select key from generate_series(1, $1::int) as n, unnest($2::text[]) as key
      order by n, key returning id`,
    values: [each, keys],
  })
  return rows.map(({ id }) => id)
}

async function statuses(): Promise<object[]> {
  const text = 'select status, count(*)::int from public.tickets group by 1 order by 1'
  return (await db.query({ text })).rows
}

/** The ids that were started, by key, and whether two of a key were ever in processing at once. */
function watch() {
  const started = new Map<string, string[]>()
  const running = new Set<string>()
  let overlaps = 0
  return {
    started,
    overlaps: () => overlaps,
    around:
      (handle: (context: HandlerContext<Ticket>) => Promise<Outcome | void>) =>
      async (context: HandlerContext<Ticket>): Promise<Outcome | void> => {
        const { id, key } = context.row
        if (key === null) return handle(context)
        started.set(key, [...(started.get(key) ?? []), id])
        if (running.has(key)) overlaps += 1
        running.add(key)
        try {
          return await handle(context)
        } finally {
          running.delete(key)
        }
      },
  }
}

const ascending = (ids: readonly string[]): string[] => ids.toSorted((a, b) => Number(a) - Number(b))

describe('LIFE-13: the next row of an ordering key is claimed without waiting for a poll', () => {
  it.each([1, 2])('after a row that is done (claimLoops %i)', async (claimLoops) => {
    const ids = await insert(50)
    const events = new Events()
    const over = settled(events, ids)
    const watched = watch()
    await start(
      [
        {
          name: 'tickets',
          table: leaseTable(TICKETS),
          handle: watched.around(async () => undefined),
          settings: { ...SETTINGS, claimLoops },
        },
      ],
      { events },
    )
    await over
    for (const own of watched.started.values()) expect(own).toEqual(ascending(own))
    expect(watched.overlaps()).toBe(0)
  })

  it('after a row that is dead, and after one that was retried', async () => {
    // One key only: nothing else makes the worker claim.
    const ids = await insert(24, ['a'])
    const events = new Events()
    const over = settled(events, ids)
    const last = events.next('settled', ({ outcome, ids: some }) => outcome === 'done' && some.includes('23'))
    const watched = watch()
    await start(
      [
        {
          name: 'tickets',
          table: leaseTable(TICKETS),
          handle: watched.around(async ({ row, attempt }) => {
            if (Number(row.id) % 3 === 0) return dead('no')
            if (Number(row.id) % 3 === 1 && attempt < 3) return retry()
            return undefined
          }),
          settings: SETTINGS,
        },
      ],
      { events },
    )
    await over
    await last
    expect(await statuses()).toEqual([
      { status: 'DEAD', count: 8 },
      { status: 'DONE', count: 16 },
    ])
    for (const own of watched.started.values()) expect(own).toEqual(ascending(own))
    expect(watched.overlaps()).toBe(0)
  })

  it('after a row that its handler has settled in a transaction of its own', async () => {
    const ids = await insert(20)
    const events = new Events()
    const over = settled(events, ids)
    const watched = watch()
    await start(
      [
        {
          name: 'tickets',
          table: leaseTable(TICKETS),
          handle: watched.around(async (context) => db.transaction(async (tx) => context.settleIn(tx))),
          settings: SETTINGS,
        },
      ],
      { events },
    )
    await over
    // Its follower may start as soon as the transaction is committed, which is before the handler returns.
    for (const own of watched.started.values()) expect(own).toEqual(ascending(own))
  })

  it('the next row of a key is claimed at once where there is room for only one row at a time', async () => {
    const ids = await insert(10)
    const events = new Events()
    const over = settled(events, ids)
    await start(
      [
        {
          name: 'tickets',
          table: leaseTable(TICKETS),
          handle: async () => undefined,
          settings: { ...SETTINGS, concurrency: 1, prefetch: 0, batch: 1 },
        },
      ],
      { events },
    )
    await over
    expect(await statuses()).toEqual([{ status: 'DONE', count: 40 }])
  })

  it('in a table with groups', async () => {
    const ids = await insert(15)
    await db.query({ text: `update public.tickets set team = case when id % 2 = 0 then 'a' else 'b' end` })
    const events = new Events()
    const over = settled(events, ids)
    await start(
      [
        {
          name: 'tickets',
          table: leaseTable(GROUPED),
          handle: async () => undefined,
          groups: fixedGroups<Ticket>({
            rooms: new Map([
              ['a', 3],
              ['b', 3],
            ]),
            groupOf: ({ team }) => team,
          }),
          settings: SETTINGS,
        },
      ],
      { events },
    )
    await over
    expect(await statuses()).toEqual([{ status: 'DONE', count: 60 }])
  })
})
