/** What outcomes write and ask of the row (`when`, `otherwise`), and how a row is not claimed for a while (`rest`). */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { projectFile } from '../../test/support/project-files.ts'
import { statementsOf } from '../../test/support/statement-plans.ts'
import { useRuntimes } from '../../test/support/runtimes.ts'
import { openDatabase } from '../postgres/database.ts'
import { settleAs, type WorkDeclaration } from '../worker/index.ts'
import { leaseTable, type OutcomeDeclaration } from './declaration.ts'
import type { Lease } from './lease.ts'
import { openLeaseStore, type LeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const start = useRuntimes(url)
const LEASE = { leaseMs: 60_000 }

/** Tables with a token of their own, and without one. */
function declare(token: boolean, more: Readonly<Record<string, OutcomeDeclaration>> = {}) {
  return leaseTable<string>({
    table: 'public.jobs',
    id: 'id',
    lease: { owner: 'owner', until: 'until', ...(token ? { token: 'token' } : {}) },
    claimable: "state <> 'shut'",
    order: ['id'],
    onExpiry: 'claimable',
    outcomes: {
      shut: {
        set: { state: "'shut'", note: '$note' },
        args: { note: 'text', seen: 'text' },
        when: 'state = $seen',
        otherwise: 'skipped',
      },
      skipped: { set: { skips: 'skips + 1' } },
      rested: { set: {}, args: { delay_ms: 'float8' }, rest: "$delay_ms * interval '1 millisecond'" },
      done: { set: { state: "'shut'" } },
      retry: { set: {}, args: { error: 'text', delay_ms: 'float8' } },
      dead: { set: { state: "'shut'" }, args: { error: 'text' } },
      ...more,
    },
  })
}

interface Job {
  readonly id: string
  readonly state: string
}

beforeAll(async () =>
  db.query({
    text: `create table public.jobs (id bigint primary key, state text not null default 'open', note text,
        skips int not null default 0, owner text, until timestamptz, token bigint);
      create index on public.jobs (id) where state <> 'shut';
      create index on public.jobs (id) where owner is not null`,
  }),
)
beforeEach(async () =>
  db.query({ text: 'truncate public.jobs; insert into public.jobs (id) select generate_series(1, 3)' }),
)
afterAll(async () => db.close())

async function openStore(token: boolean, owner = 'worker'): Promise<LeaseStore<Job>> {
  return openLeaseStore<Job>(db, declare(token), { owner })
}

async function claim(store: LeaseStore<Job>, limit = 3): Promise<Lease[]> {
  return (await store.claim({ limit, ...LEASE })).claimed.map(({ lease }) => lease)
}

async function jobs(): Promise<unknown[]> {
  const text = 'select id, state, note, skips, owner is not null as leased from public.jobs order by id'
  return (await db.query({ text })).rows
}

async function change(id: number, state: string): Promise<void> {
  await db.query({ text: 'update public.jobs set state = $2 where id = $1', values: [id, state] })
}

/** In which the row was seen open, with a note. */
function seenOpen(leases: readonly Lease[]): { args: { note: string; seen: string }[] } {
  return { args: leases.map(({ id }) => ({ note: `by ${id}`, seen: 'open' })) }
}

describe.each([
  ['with a token column', true],
  ['with the token inside the owner', false],
])('%s', (_, token) => {
  it('REC-04: an outcome is written only to rows of which its condition is still true; the others stay ours', async () => {
    const store = await openStore(token)
    const leases = await claim(store)
    await change(2, 'changed')
    const settled = await store.settle('shut', leases, seenOpen(leases))
    expect(settled.ended).toEqual([leases[0], leases[2]])
    expect(settled.fencedOff).toEqual([leases[1]])
    expect(await jobs()).toEqual([
      { id: '1', state: 'shut', note: 'by 1', skips: 0, leased: false },
      { id: '2', state: 'changed', note: null, skips: 0, leased: true },
      { id: '3', state: 'shut', note: 'by 3', skips: 0, leased: false },
    ])
    expect((await store.renew(leases, 60_000)).renewed).toEqual([leases[1]])
  })

  it('a condition that comes out as null is not true', async () => {
    const store = await openStore(token)
    const leases = await claim(store, 1)
    const { ended } = await store.settle('shut', leases, { args: [{ note: null, seen: null }] })
    expect(ended).toEqual([])
  })

  it('REC-04: a row that another session has locked is busy, whatever its condition comes to', async () => {
    const store = await openStore(token)
    const leases = await claim(store)
    await change(2, 'changed')
    await db.transaction(async (tx) => {
      await tx.query({ text: 'select from public.jobs where id = 1 for update' })
      const settled = await store.settle('shut', leases, seenOpen(leases))
      expect([settled.busy, settled.fencedOff, settled.ended]).toEqual([
        [leases[0]],
        [leases[1]],
        [leases[2]],
      ])
    })
  })

  it('REC-04: the condition does not replace the fence', async () => {
    const store = await openStore(token)
    const leases = await claim(store, 1)
    await db.query({ text: "update public.jobs set until = now() - interval '1 second'" })
    await claim(await openStore(token, 'another'), 1)
    const { ended } = await store.settle('shut', leases, seenOpen(leases))
    expect(ended).toEqual([])
    expect(await jobs()).toMatchObject([{ id: '1', state: 'open', leased: true }, {}, {}])
  })

  it('a row that rests has no owner, and nobody claims it until it has rested', async () => {
    const store = await openStore(token)
    const leases = await claim(store)
    const args = leases.map(({ id }) => ({ delay_ms: id === '2' ? 60_000 : 0 }))
    expect((await store.settle('rested', leases, { args })).ended).toEqual(leases)
    expect(await jobs()).toMatchObject(Array.from({ length: 3 }, () => ({ state: 'open', leased: false })))
    expect((await claim(store)).map(({ id }) => id)).toEqual(['1', '3'])
    await db.query({ text: "update public.jobs set until = now() - interval '1 second' where id = 2" })
    expect((await claim(store)).map(({ id }) => id)).toEqual(['2'])
  })

  it('a row that rests is not reaped: there is nothing to take back', async () => {
    const store = await openStore(token)
    await store.settle('rested', await claim(store, 1), { args: [{ delay_ms: -1_000 }] })
    expect(await store.reap()).toEqual([])
  })

  it('a token grows over a rest', async () => {
    const store = await openStore(token)
    const [first] = await claim(store, 1)
    if (first === undefined) throw new Error('nothing was claimed')
    await store.settle('rested', [first], { args: [{ delay_ms: 0 }] })
    const [second] = await claim(store, 1)
    expect(second?.id).toBe(first.id)
    expect((second?.token ?? 0n) > first.token).toBe(true)
    expect((await store.settle('skipped', [first])).ended).toEqual([])
  })

  it('REC-04: a worker settles as otherwise what is still its own, and only that', async () => {
    const worker: WorkDeclaration<Job> = {
      name: 'jobs',
      table: declare(token),
      handle: async ({ id }) => {
        if (id === '2') await change(2, 'changed')
        if (id === '3')
          await db.query({ text: "update public.jobs set owner = 'somebody#1', token = 99 where id = 3" })
        return settleAs('shut', { note: null, seen: 'open' })
      },
      settings: { pollMs: 3_600_000 },
    }
    const { events } = await start([worker])
    const skipped = events.next('settled', ({ outcome }) => outcome === 'skipped')
    const fencedOff = events.next('fencedOff')
    const shut = events.next('settled', ({ outcome }) => outcome === 'shut')
    expect((await skipped).ids).toEqual(['2'])
    expect((await fencedOff).id).toBe('3')
    expect((await shut).ids).toEqual(['1'])
  })
})

describe('what the kernel writes of a failed attempt', () => {
  /** As in examples/worker.ts; nothing says what a retry writes. */
  const emails = leaseTable({
    table: 'public.emails',
    claimable: 'sent_at is null and failed_at is null',
    availableAt: 'due_at',
    attempts: { max: 2 },
    outcomes: { done: { sent_at: 'now()' }, dead: { failed_at: 'now()' } },
  })

  beforeEach(async () => {
    await db.query({ text: 'drop table if exists public.emails' })
    await db.query({ text: await projectFile('examples/emails.sql') })
    await db.query({ text: "insert into public.emails (recipient, expiries) values ('a@example.com', 1)" })
  })

  const email = async (): Promise<unknown> => {
    const text = `select attempts, expiries, last_error, failed_at is not null as failed,
        round(extract(epoch from due_at - now()))::int > 0 as waits, lease_owner from public.emails`
    return (await db.query({ text })).rows[0]
  }

  it('a retry counts an attempt, has the error and the delay, and is no suspect', async () => {
    const store = await openLeaseStore<Job, 'done' | 'retry' | 'dead'>(db, emails, { owner: 'worker' })
    const leases = (await store.claim({ limit: 1, ...LEASE })).claimed.map(({ lease }) => lease)
    await store.settle('retry', leases, { args: [{ error: 'no route', delay_ms: 60_000 }] })
    expect(await email()).toEqual({
      attempts: 1,
      expiries: 0,
      last_error: 'no route',
      failed: false,
      waits: true,
      lease_owner: null,
    })
  })

  it('a dead row counts its last attempt and has the error', async () => {
    const store = await openLeaseStore<Job, 'done' | 'retry' | 'dead'>(db, emails, { owner: 'worker' })
    const leases = (await store.claim({ limit: 1, ...LEASE })).claimed.map(({ lease }) => lease)
    await store.settle('dead', leases, { args: [{ error: 'no such address' }] })
    expect(await email()).toMatchObject({ attempts: 1, last_error: 'no such address', failed: true })
  })

  it('D4: an expired lease counts an attempt and an expiry, and its row is dead when the attempts are used up', async () => {
    const store = await openLeaseStore(db, emails, { owner: 'worker' })
    const expire = async (reason?: string): Promise<void> => {
      await store.claim({ limit: 1, ...LEASE })
      await db.query({
        text: "update public.emails set lease_until = now() - interval '1 second', due_at = now()",
      })
      await store.reap(reason === undefined ? {} : { reason })
    }
    await expire('the worker process relay-7 died')
    expect(await email()).toMatchObject({
      attempts: 1,
      expiries: 2,
      failed: false,
      last_error: 'the worker process relay-7 died',
    })
    await db.query({ text: 'update public.emails set due_at = now()' })
    await expire()
    expect(await email()).toMatchObject({
      attempts: 2,
      expiries: 3,
      failed: true,
      last_error:
        'the lease expired: its worker died, lost the database connection, or took longer than maxLeases allows',
    })
  })

  it('a counter that is null counts from 0, and one that is NOT NULL is written without coalesce', async () => {
    const guarded = async (): Promise<Set<string>> => {
      const texts = (await statementsOf(db, emails)).map(({ text }) => text)
      return new Set(texts.flatMap((text) => text.match(/coalesce\((?:attempts|expiries), 0\) [+]/g) ?? []))
    }
    expect(await guarded()).toEqual(new Set())
    await db.query({
      text: `alter table public.emails alter attempts drop not null, alter expiries drop not null;
        update public.emails set attempts = null, expiries = null`,
    })
    expect(await guarded()).toEqual(new Set(['coalesce(attempts, 0) +', 'coalesce(expiries, 0) +']))
    const store = await openLeaseStore<Job, 'done' | 'retry' | 'dead'>(db, emails, { owner: 'worker' })
    const leases = (await store.claim({ limit: 1, ...LEASE })).claimed.map(({ lease }) => lease)
    await store.settle('retry', leases, { args: [{ error: 'no route', delay_ms: 0 }] })
    expect(await email()).toMatchObject({ attempts: 1, expiries: 0 })
    await db.query({ text: 'update public.emails set attempts = null, expiries = null' })
    await store.claim({ limit: 1, ...LEASE })
    await store.reap({ ownedBy: 'worker' })
    expect(await email()).toMatchObject({ attempts: 1, expiries: 1 })
  })
})

describe('a wrong outcome', () => {
  const outcome = (declared: Partial<OutcomeDeclaration>): (() => unknown) => {
    return () => declare(true, { mine: { set: {}, ...declared } })
  }

  it.each([
    ['`when` without `otherwise`', { when: 'true' }, 'needs both `when` and `otherwise`'],
    ['`otherwise` without `when`', { otherwise: 'skipped' }, 'needs both `when` and `otherwise`'],
    ['`otherwise` that is no outcome', { when: 'true', otherwise: 'nowhere' }, 'names nowhere'],
    ['`otherwise` with arguments', { when: 'true', otherwise: 'retry' }, 'no outcome without arguments'],
    ['an argument of `when` that nothing names', { when: 'id = $x', otherwise: 'skipped' }, 'uses $x'],
    ['an argument of `rest` that nothing names', { rest: '$x' }, 'uses $x'],
  ])('a declaration with %s is refused', (_, declared, message) => {
    expect(outcome(declared)).toThrow(message)
  })

  it('a `when` that is no SQL is refused when the store is opened', async () => {
    const table = declare(true, { mine: { set: {}, when: 'no such column', otherwise: 'skipped' } })
    await expect(openLeaseStore(db, table, { owner: 'worker' })).rejects.toThrow(
      'syntax error at or near "such"',
    )
  })
})
