import { Client } from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { ordered, subjectOf } from '../../test/support/lease-tables.ts'
import { openDatabase, type Database } from '../postgres/database.ts'
import type { Lease } from './lease.ts'
import { type Claim, type ClaimRoom, type CycleClaim, type LeaseStore, openLeaseStore } from './store.ts'

const { url } = useDatabase()
const db = openDatabase({ url })
const LEASE = { leaseMs: 60_000 }

interface Job {
  readonly id: string
  readonly customer: string | null
}

type Store = LeaseStore<Job>

async function openStore(owner = 'worker', on: Database = db): Promise<Store> {
  return openLeaseStore<Job>(on, ordered.table, { owner })
}

/** One row for each customer named, in this order. */
async function insert(...customers: readonly (string | null)[]): Promise<void> {
  await db.query({
    text: 'insert into public.ordered_jobs (customer) select customer from unnest($1::text[]) with ordinality as c (customer, n) order by n',
    values: [customers],
  })
}

/** Inserts a row whose transaction commits when the work is done. */
async function whileUncommitted<T>(customer: string, work: () => Promise<T>): Promise<T> {
  return db.transaction(async (tx) => {
    await tx.query({ text: 'insert into public.ordered_jobs (customer) values ($1)', values: [customer] })
    return work()
  })
}

async function change(set: string, where = 'true'): Promise<void> {
  await db.query({ text: `update public.ordered_jobs set ${set} where ${where}` })
}

async function claim(store: Store, limit = 100): Promise<Claim<Job>> {
  return store.claim({ limit, ...LEASE })
}

function shown(claim: Claim<Job>): string[] {
  return claim.claimed.map(({ row }) => `${row.customer} ${row.id}`)
}

function leasesOf(claim: Claim<Job>): Lease[] {
  return claim.claimed.map(({ lease }) => lease)
}

function room(rows: number): ClaimRoom {
  return { rows, bytes: Number.POSITIVE_INFINITY, ...LEASE }
}

interface Worker {
  readonly store: Store
  /** The next pipeline of a worker: it settles these rows as done, and claims others. */
  readonly send: (rows: number, finished?: readonly Lease[]) => Promise<CycleClaim<Job>>
  readonly keysFreed: (leases: readonly Lease[]) => void
  readonly wake: () => void
  readonly passTime: (ms: number) => void
}

/** A pipeline seems to take `pipelineMs`: if that is much, scans from the start are made rarely. */
async function workerOf({
  pipelineMs = 0,
  store,
}: { pipelineMs?: number; store?: Store } = {}): Promise<Worker> {
  let now = 0
  const timed: Database = {
    ...db,
    pipeline: async (statements) => {
      now += pipelineMs
      return db.pipeline(statements)
    },
  }
  const opened = store ?? (await openStore('worker', timed))
  const cycle = opened.cycle({ clock: { monotonicNow: () => now } })
  return {
    send: async (rows, finished = []) => {
      const settlements = finished.length === 0 ? [] : [{ outcome: 'done', leases: finished }]
      const { ended, claim } = await cycle.send({ settlements, room: room(rows) })
      expect(ended).toEqual(settlements.map(() => answered(finished)))
      if (claim === undefined) throw new Error('nothing was claimed')
      return claim
    },
    store: opened,
    keysFreed: (leases) => cycle.keysFreed(leases),
    wake: () => cycle.wake(),
    passTime: (ms) => {
      now += ms
    },
  }
}

const answered = (ended: readonly Lease[]): object => ({ ended, fencedOff: [], busy: [], refused: [] })

beforeAll(async () => subjectOf(db, ordered).create())
beforeEach(async () => db.query({ text: 'truncate public.ordered_jobs restart identity' }))
afterAll(async () => db.close())

describe('LIFE-13: rows of an ordering key', () => {
  it('the heads of keys are claimed, and rows without a key as well', async () => {
    await insert('a', 'a', 'b', null, 'a', 'b', null)
    const store = await openStore()
    expect(shown(await claim(store))).toEqual(['a 1', 'b 3', 'null 4', 'null 7'])
    expect(shown(await claim(store))).toEqual([])
  })

  it('the next row of a key is claimable when its head is settled', async () => {
    await insert('a', 'a', 'a')
    const store = await openStore()
    await store.settle('done', leasesOf(await claim(store)))
    expect(shown(await claim(store))).toEqual(['a 2'])
  })

  it('the pipeline that settles the head claims the next row of its key', async () => {
    await insert('a', 'a', 'a', 'b')
    const { send } = await workerOf()
    const first = await send(10)
    expect(shown(first)).toEqual(['a 1', 'b 4'])
    const next = await send(10, leasesOf(first))
    expect(shown(next)).toEqual(['a 2'])
    expect(shown(await send(10, leasesOf(next)))).toEqual(['a 3'])
  })

  it('a claim that is told which keys became free finds their next rows before its cursor', async () => {
    await insert('a', 'b', 'c', 'a', 'b', 'c')
    const { send, store, keysFreed, passTime } = await workerOf({ pipelineMs: 30 })
    const first = await send(10)
    expect(shown(first)).toEqual(['a 1', 'b 2', 'c 3'])
    passTime(300)
    await store.settle('done', leasesOf(first).slice(0, 2))
    // Without that, a scan from the start finds them later.
    expect(shown(await send(10))).toEqual([])
    keysFreed(leasesOf(first).slice(0, 2))
    expect(shown(await send(10))).toEqual(['a 4', 'b 5'])
  })

  it('next rows for which a settlement had no room are claimed as soon as there is some', async () => {
    await insert('a', 'b', 'c', 'z', 'a', 'b', 'c', 'z')
    const { send, passTime } = await workerOf({ pipelineMs: 30 })
    const first = await send(10)
    expect(shown(first)).toEqual(['a 1', 'b 2', 'c 3', 'z 4'])
    passTime(300)
    const next = await send(1, leasesOf(first).slice(0, 3))
    const rest = await send(10)
    expect([shown(next).length, next.more, shown(rest).length, rest.more]).toEqual([1, true, 2, false])
    expect([...shown(next), ...shown(rest)].toSorted()).toEqual(['a 5', 'b 6', 'c 7'])
  })

  it.each([1, 3, 8, 40])('busy keys do not keep out the others, with room for %i rows', async (limit) => {
    const busy = Array.from({ length: limit }, (_, i) => `a${i}`)
    await insert(...busy, 'z')
    const { send, passTime } = await workerOf({ pipelineMs: 1 })
    let held = await send(limit)
    const seen = new Set<string>()
    // Each busy key has another row whenever one of its rows is settled.
    for (let i = 0; !seen.has('z') && i < 100; i += 1) {
      await insert(...busy)
      held = await send(limit, leasesOf(held))
      for (const text of shown(held)) seen.add(text.split(' ')[0] ?? '')
      passTime(20)
    }
    expect([...seen]).toContain('z')
  })

  it('a pipeline with a settlement takes no more rows than asked for', async () => {
    await insert('a', 'b', 'c', 'd', 'a', 'b', 'c', 'd', null, null)
    const { send } = await workerOf()
    const first = await send(8)
    const next = await send(3, leasesOf(first))
    expect([first.claimed.length, next.claimed.length, next.more]).toEqual([6, 3, true])
    expect(shown(await send(100))).toHaveLength(1)
  })

  it.each(['retry', 'release', 'park'] as const)(
    'after %s of the head, the other rows of its key wait for it',
    async (how) => {
      await insert('a', 'a', 'b', 'b')
      const store = await openStore()
      const first = leasesOf(await claim(store)).slice(0, 1)
      if (how === 'release') await store.release(first)
      else if (how === 'retry')
        await store.settle('retry', first, { args: [{ delay_ms: 3_600_000, error: 'no' }] })
      else await store.settle('park', first)
      expect(shown(await claim(store))).toEqual(how === 'release' ? ['a 1'] : [])
      // A key that is held up does not delay other keys.
      await insert('c')
      expect(shown(await claim(store))).toEqual(['c 5'])
    },
  )

  it('a key continues once an operator unblocks its head, or the retry of its head is due', async () => {
    await insert('a', 'a', 'b')
    const store = await openStore()
    const [parked, waiting] = leasesOf(await claim(store))
    if (parked === undefined || waiting === undefined) throw new Error('nothing was claimed')
    await store.settle('park', [parked])
    await store.settle('retry', [waiting], { args: [{ delay_ms: 3_600_000, error: 'no' }] })
    const empty = await claim(store)
    expect(shown(empty)).toEqual([])
    expect(empty.dueInMs).toBeGreaterThan(3_500_000)
    await change('parked = false', 'parked')
    await change('available_at = now()')
    expect(shown(await claim(store))).toEqual(['a 2', 'b 3'])
  })

  it('a key continues when the reaper gives up its head, and waits while it does not', async () => {
    await insert('a', 'a')
    await change('attempts = 8', 'id = 1')
    const store = await openStore()
    for (const expected of [['a 1'], ['a 1'], ['a 2']]) {
      expect(shown(await claim(store))).toEqual(expected)
      await change("until = now() - interval '1 second'", 'owner is not null')
      expect(await store.reap()).toHaveLength(1)
      await change('available_at = now()')
    }
  })

  it('a key waits for the transaction in which its head was settled', async () => {
    await insert('a', 'a')
    const store = await openStore()
    const first = leasesOf(await claim(store))
    await db.transaction(async (tx) => {
      await store.settle('done', first, { tx })
      expect(shown(await claim(store))).toEqual([])
    })
    expect(shown(await claim(store))).toEqual(['a 2'])
  })

  it('one row of a key is in flight, also when an earlier one commits late', async () => {
    const store = await openStore()
    const second = await whileUncommitted('a', async () => {
      await insert('a', 'a')
      return claim(store)
    })
    expect(shown(second)).toEqual(['a 2'])
    expect(shown(await claim(store))).toEqual([])
    // Not 'a 3': the head is the first unfinished row, wherever its id is.
    const next = await (await workerOf({ store })).send(5, leasesOf(second))
    expect(shown(next)).toEqual(['a 1'])
    await store.settle('done', leasesOf(next))
    expect(shown(await claim(store))).toEqual(['a 3'])
  })

  it('one row of a key is in flight, also when a finished one is replayed', async () => {
    await insert('a', 'a', 'a')
    const store = await openStore()
    await store.settle('done', leasesOf(await claim(store)))
    const second = await claim(store)
    await change("status = 'PENDING'", 'id = 1')
    expect(shown(await claim(store))).toEqual([])
    expect(await store.claim({ limit: 1, ...LEASE, ids: ['1'] })).toMatchObject({ claimed: [] })
    const next = await (await workerOf({ store })).send(5, leasesOf(second))
    expect(shown(next)).toEqual(['a 1'])
  })

  it('a claim by id takes only the head of a key', async () => {
    await insert('a', 'a', null)
    const store = await openStore()
    expect(shown(await store.claim({ limit: 3, ...LEASE, ids: ['2'] }))).toEqual([])
    const first = await store.claim({ limit: 3, ...LEASE, ids: ['1', '2', '3'] })
    expect(shown(first)).toEqual(['a 1', 'null 3'])
    expect(shown(await store.claim({ limit: 3, ...LEASE, ids: ['2'] }))).toEqual([])
    await store.settle('done', leasesOf(first))
    expect(shown(await store.claim({ limit: 3, ...LEASE, ids: ['2'] }))).toEqual(['a 2'])
  })

  it('a row whose conditions come out as null does not end the scan', async () => {
    await insert('a', 'b')
    const table = { ...ordered.table, claimable: "status = 'PENDING' and nullif(customer, 'a') <> ''" }
    const store = await openLeaseStore<Job>(db, table, { owner: 'worker' })
    expect(shown(await claim(store))).toEqual(['b 2'])
  })
})

describe('finding the heads of keys', () => {
  it('a claim continues at the first row for which the last one had no room', async () => {
    await insert('a', 'b', 'c', 'd', 'a', 'b')
    const { send, store } = await workerOf({ pipelineMs: 30 })
    // Half of the room is for rows without a key, as long as it is not known that there are none.
    const first = await send(4)
    expect([shown(first), first.more]).toEqual([['a 1', 'b 2'], true])
    await store.settle('done', leasesOf(first))
    const second = await send(3)
    expect([shown(second), second.more]).toEqual([['c 3', 'd 4', 'a 5'], true])
    const third = await send(2)
    expect([shown(third), third.more]).toEqual([['b 6'], false])
  })

  it('the next claim continues after a head that another session has locked, with room for one row', async () => {
    await insert('a', 'b', 'c')
    const { send } = await workerOf()
    await db.transaction(async (tx) => {
      await tx.query({ text: 'select from public.ordered_jobs where id = 1 for update' })
      const claims = [await send(1), await send(1), await send(1)]
      expect(claims.flatMap(shown)).toContain('b 2')
    })
  })

  it('a key with a row in flight does not count as found', async () => {
    await insert('a', 'b')
    const other = await openStore('other')
    await whileUncommitted('c', async () => {
      await insert('c')
      await other.claim({ limit: 10, ...LEASE, ids: ['4'] })
    })
    // The head of c, 3, committed late: 4 is in flight, and d must be found with room for three rows.
    await insert('d')
    const store = await openStore()
    expect(shown(await claim(store, 3))).toEqual(['a 1', 'b 2', 'd 5'])
  })

  it('keys whose heads wait for another attempt are not read', async () => {
    const keys = Array.from({ length: 2_500 }, (_, n) => `key ${n}`)
    await insert(...keys)
    await change("available_at = now() + interval '1 hour'", 'id <= 2490')
    const store = await openStore()
    const found = await claim(store, 20)
    expect([found.claimed.length, found.more]).toEqual([10, false])
  })

  it('a row that is due is found, however many rows before it wait for the head of their key', async () => {
    await insert('a')
    await db.query({
      text: "insert into public.ordered_jobs (customer) select 'a' from generate_series(1, 5000)",
    })
    await insert('z')
    await change("available_at = now() + interval '1 hour'", 'id = 1')
    const { send, wake, passTime } = await workerOf({ pipelineMs: 1 })
    let sent = 0
    const claimUntilDrained = async (): Promise<string[]> => {
      const found: string[] = []
      for (let drained = false; !drained; sent += 1) {
        const scan = await send(5)
        found.push(...shown(scan))
        drained = scan.drained
      }
      return found
    }
    expect(await claimUntilDrained()).toEqual(['z 5002'])
    // What has been read is not read again for each row that arrives.
    await insert('y')
    wake()
    const before = sent
    expect(await claimUntilDrained()).toEqual(['y 5003'])
    expect(sent - before).toBeLessThanOrEqual(5)
    // This one is found by the scan from the start, which reads what waits a thousand rows at a time.
    await change("available_at = now() - interval '1 day'", 'id = 1')
    for (let found: string[] = []; !found.includes('a 1'); passTime(1_000)) {
      wake()
      found = await claimUntilDrained()
    }
  })

  it('an event of a transaction that began before the last claim and committed after it is found', async () => {
    const { send } = await workerOf()
    await whileUncommitted('late', async () => {
      await insert('early')
      expect(shown(await send(5))).toEqual(['early 2'])
    })
    expect(shown(await send(5))).toEqual(['late 1'])
  })
})

it('LIFE-13 LIFE-16: a claim that lost a race for a key takes no second row of it, and is repeated', async () => {
  const first = await openStore('first')
  const { send } = await workerOf({ pipelineMs: 30 })
  await insert('a')
  // Seen as the head by the second claim, which waits for the first's transaction at the unique index.
  const holder = new Client({ connectionString: url })
  await holder.connect()
  try {
    await holder.query('begin')
    await holder.query(
      "insert into public.ordered_jobs (customer, status, owner, until) values ('b', 'CLAIMED', 'x', now() + interval '1 hour')",
    )
    await insert('b')
    const waiting = send(5)
    for (let isWaiting = false; !isWaiting;) {
      const { rows } = await db.query({
        text: "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()",
      })
      isWaiting = rows.length > 0
    }
    await holder.query('commit')
    expect(await waiting).toMatchObject({ claimed: [], more: true, drained: false })
    expect(shown(await send(5))).toEqual(['a 1'])
    expect(shown(await claim(first))).toEqual([])
  } finally {
    await holder.end()
  }
})

/**
 * Workers that claim, settle, retry and release as fast as they can, on connections of their own, while others write,
 * commit late and replay. Whatever they do to each other: one row of a key is in flight, and rows whose transactions did
 * not overlap are processed in the order of their ids.
 */
it('LIFE-13 LIFE-16: many workers at once keep every key in order and leave no row', async () => {
  const [KEYS, ROWS, WORKERS, PRODUCERS] = [60, 40, 5, 3]
  const inFlight = new Map<string, string>()
  const finished = new Map<string, bigint>()
  const wrong: string[] = []
  let done = 0
  let random = 7
  const draw = (): number => (random = (random * 1_103_515_245 + 12_345) % 2_147_483_648) / 2_147_483_648

  function took({ row }: Claim<Job>['claimed'][number]): void {
    const key = row.customer ?? ''
    if (inFlight.has(key)) wrong.push(`${key}: ${row.id} while ${inFlight.get(key)} was in flight`)
    if (BigInt(row.id) < (finished.get(key) ?? 0n)) wrong.push(`${key}: ${row.id} after ${finished.get(key)}`)
    inFlight.set(key, row.id)
  }

  async function work(owner: string): Promise<void> {
    const own = openDatabase({ url, maxConnections: 1 })
    const store = await openStore(owner, own)
    const cycle = store.cycle()
    try {
      const held = [...(await claim(store, 5)).claimed]
      held.forEach(took)
      while (done < KEYS * ROWS && wrong.length === 0) {
        const [outcome, count] = [draw(), 1 + Math.floor(draw() * 5)]
        const ending = held.splice(0, count)
        for (const { row } of ending) {
          inFlight.delete(row.customer ?? '')
          if (outcome < 0.8) finished.set(row.customer ?? '', BigInt(row.id))
        }
        let busy: readonly Lease[] = ending.map(({ lease }) => lease)
        if (outcome >= 0.4 && outcome < 0.8) {
          const settlements = [{ outcome: 'done', leases: busy }]
          const { ended, claim: next } = await cycle.send({ settlements, room: room(6) })
          done += ended[0]?.ended.length ?? 0
          next?.claimed.forEach(took)
          held.push(...(next?.claimed ?? []))
          busy = ended[0]?.busy ?? []
        }
        // A claim that came too late for a row has it locked until the claim is over.
        while (busy.length > 0) {
          const args = busy.map(() => ({ delay_ms: 0, error: 'no' }))
          const answer =
            outcome < 0.8
              ? await store.settle('done', busy)
              : await (outcome < 0.9 ? store.settle('retry', busy, { args }) : store.release(busy))
          if (outcome < 0.8) done += answer.ended.length
          busy = answer.busy
        }
        const more = await claim(store, 1 + Math.floor(draw() * 20))
        more.claimed.forEach(took)
        held.push(...more.claimed)
      }
    } finally {
      await own.close()
    }
  }

  /** Each has keys of its own, so that ids are in the order of commit, and writes one row at a time. */
  async function produce(producer: number): Promise<void> {
    const own = openDatabase({ url, maxConnections: 1 })
    const keys = Array.from({ length: KEYS }, (_, key) => key).filter((key) => key % PRODUCERS === producer)
    for (let n = 0; n < ROWS; n += 1) {
      for (const key of keys)
        await own.query({
          text: 'insert into public.ordered_jobs (customer) values ($1)',
          values: [String(key)],
        })
    }
    await own.close()
  }

  await Promise.all([
    ...Array.from({ length: WORKERS }, async (_, n) => work(`worker ${n}`)),
    ...Array.from({ length: PRODUCERS }, async (_, n) => produce(n)),
  ])
  expect(wrong).toEqual([])
  expect(done).toBe(KEYS * ROWS)
})
