import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { collect, door, settled, useWorkers } from '../../test/support/running-worker.ts'
import { insertJobs, jobs, jobStates, WORK_DDL, WORK_TABLE, type Job } from '../../test/support/work-table.ts'
import { leaseTable, openLeaseStore } from '../lease/index.ts'
import { openDatabase } from '../postgres/database.ts'
import { type Queryable } from '../postgres/queryable.ts'
import { type HandlerContext } from './context.ts'
import { Events } from './events.ts'
import { dead, done, PermanentError, retry } from './outcome.ts'

useQuietProcess()
const { url } = useDatabase()
const run = useWorkers(url)
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs restart identity' })
})
afterAll(async () => db.close())

async function only(): Promise<Job | undefined> {
  return (await jobs(db))[0]
}

/** In how many seconds the only row is due again. */
async function dueIn(): Promise<number> {
  const { rows } = await db.query<{ s: number }>({
    text: 'select extract(epoch from available_at - now())::float8 as s from public.jobs',
  })
  return rows[0]?.s ?? Number.NaN
}

/** Something that must happen together with the settlement, or not at all. */
async function effect(tx: Queryable, { id, token }: HandlerContext<Job>): Promise<void> {
  await tx.query({
    text: `insert into public.runs (job, token, worker) values ($1, $2, 'effect')`,
    values: [id, String(token)],
  })
}

async function effects(): Promise<object[]> {
  return (await db.query({ text: 'select job, token from public.runs' })).rows
}

describe('what becomes of a row', () => {
  async function outcomeOf(
    handle: Parameters<typeof run>[0]['handle'],
    policy: Parameters<typeof run>[0]['retry'] = {},
  ): Promise<Job | undefined> {
    const events = new Events()
    const over = settled(events, 1)
    await insertJobs(db, 1)
    await run({ handle, retry: policy }, { events })
    await over
    return only()
  }

  it.each([undefined, done()])('LIFE-05: a handler that returns %j is done', async (outcome) => {
    expect(await outcomeOf(async () => Promise.resolve(outcome))).toMatchObject({
      status: 'DONE',
      attempts: 0,
      claimed_by: null,
    })
  })

  it('LIFE-07: a retry comes back after the delay it names, with one attempt more', async () => {
    const row = await outcomeOf(async () => Promise.resolve(retry({ delayMs: 60_000, error: 'not yet' })))
    expect(row).toMatchObject({ status: 'PENDING', attempts: 1, last_error: 'not yet', claimed_by: null })
    expect(await dueIn()).toBeGreaterThan(50)
    expect(await dueIn()).toBeLessThan(61)
  })

  it('LIFE-06: a thrown error is a retry by the policy of the table', async () => {
    const policy = { firstMs: 40_000, jitter: 0 }
    const row = await outcomeOf(async () => Promise.reject(new Error('boom')), policy)
    expect(row).toMatchObject({ status: 'PENDING', attempts: 1, last_error: 'Error: boom' })
    expect(await dueIn()).toBeGreaterThan(30)
    expect(await dueIn()).toBeLessThan(41)
  })

  it('LIFE-08: dead is dead', async () => {
    expect(await outcomeOf(async () => Promise.resolve(dead('no such customer')))).toMatchObject({
      status: 'DEAD',
      attempts: 1,
      last_error: 'no such customer',
    })
  })

  it('LIFE-08: a PermanentError is dead', async () => {
    expect(await outcomeOf(async () => Promise.reject(new PermanentError('gone')))).toMatchObject({
      status: 'DEAD',
      attempts: 1,
      last_error: 'PermanentError: gone',
    })
  })

  it('LIFE-08: a row that fails as often as it may is dead; every failure is told with its number', async () => {
    const events = new Events()
    await insertJobs(db, 1)
    const failures = collect(events, 'failed', (all) => all.length === 3)
    const end = events.next('settled', ({ outcome }) => outcome === 'dead')
    await run(
      { handle: async () => Promise.reject(new Error('again')), retry: { firstMs: 0, maxAttempts: 3 } },
      { events },
    )
    expect(await failures).toMatchObject([
      { attempt: 1, outcome: 'retry' },
      { attempt: 2, outcome: 'retry' },
      { attempt: 3, outcome: 'dead', error: new Error('again') },
    ])
    await end
    expect(await only()).toMatchObject({ status: 'DEAD', attempts: 3, lock_token: '3' })
  })
})

describe('settleIn', () => {
  it('LIFE-12: commits with the transaction of the handler', async () => {
    const events = new Events()
    const over = settled(events, 1)
    await insertJobs(db, 1)
    const handle = async (context: HandlerContext<Job>): Promise<void> =>
      db.transaction(async (tx) => {
        await effect(tx, context)
        await context.settleIn(tx)
      })
    await run({ handle }, { events })
    await over
    expect(await only()).toMatchObject({ status: 'DONE', attempts: 0, claimed_by: null })
    expect(await effects()).toEqual([{ job: '1', token: '1' }])
  })

  it('rolls back with it, and the error counts', async () => {
    const events = new Events()
    const over = settled(events, 1)
    await insertJobs(db, 1)
    const handle = async (context: HandlerContext<Job>): Promise<void> =>
      db.transaction(async (tx) => {
        await effect(tx, context)
        await context.settleIn(tx)
        throw new Error('after all not')
      })
    await run({ handle, retry: { firstMs: 60_000 } }, { events })
    await over
    expect(await only()).toMatchObject({ status: 'PENDING', attempts: 1, last_error: 'Error: after all not' })
    expect(await effects()).toEqual([])
  })

  it('settles as any outcome, and a retry without a delay gets the policy’s', async () => {
    const events = new Events()
    const over = settled(events, 1)
    await insertJobs(db, 1)
    const handle = async (context: HandlerContext<Job>): Promise<void> =>
      db.transaction(async (tx) => context.settleIn(tx, retry({ error: 'later' })))
    await run({ handle, retry: { firstMs: 40_000, jitter: 0 } }, { events })
    await over
    expect(await only()).toMatchObject({ status: 'PENDING', attempts: 1, last_error: 'later' })
    expect(await dueIn()).toBeGreaterThan(30)
  })

  it('RULE-020-003: throws FENCED_OFF when the lease was taken, so that the effects of that run never happened', async () => {
    const events = new Events()
    const over = settled(events, 1)
    const fencedOff = events.next('fencedOff')
    const reaper = await openLeaseStore(db, leaseTable(WORK_TABLE), { owner: 'reaper' })
    const errors: unknown[] = []
    await insertJobs(db, 1)
    const handle = async (context: HandlerContext<Job>): Promise<void> => {
      if (context.attempt === 1) await reaper.reap({ ownedBy: 'slow' })
      try {
        await db.transaction(async (tx) => {
          await effect(tx, context)
          await context.settleIn(tx)
        })
      } catch (error) {
        errors.push(error)
        throw error
      }
    }
    await run({ handle }, { events, id: 'slow' })
    await over
    expect(errors).toMatchObject([{ code: 'FENCED_OFF', message: expect.stringContaining('token 1') }])
    expect(await fencedOff).toMatchObject({ id: '1', token: 1n, worker: 'slow' })
    expect(await only()).toMatchObject({ status: 'DONE', attempts: 1, lock_token: '2' })
    expect(await effects()).toEqual([{ job: '1', token: '2' }])
  })

  it('WH-FR-001-AC3: a handler that goes on after it has settled has not lost its row', async () => {
    const events = new Events()
    const over = Promise.race([settled(events, 1), events.next('fencedOff')])
    const losses: string[] = []
    for (const type of ['lost', 'aborted', 'fencedOff'] as const) events.on(type, () => losses.push(type))
    await insertJobs(db, 1)
    const handle = async (context: HandlerContext<Job>): Promise<void> => {
      const { signal } = context
      await db.transaction(async (tx) => context.settleIn(tx))
      const renewalHasLooked = events.next('renewed', ({ count }) => count === 0)
      await renewalHasLooked
      // What the renewal found travels after its own event.
      await new Promise((resolve) => setImmediate(resolve))
      signal.throwIfAborted()
    }
    await run({ handle, settings: { leaseMs: 1_000 } }, { events })
    await over
    expect(losses).toEqual([])
    expect(await only()).toMatchObject({ status: 'DONE', attempts: 0 })
  })
})

describe('settlements', () => {
  it('one slow row does not hold back those of the others', async () => {
    const events = new Events()
    const slow = door()
    const [first, ...others] = await insertJobs(db, 200)
    const othersSettled = settled(events, others)
    await run(
      {
        handle: async ({ id }) => (id === first ? slow.opened : undefined),
        settings: { concurrency: 3, pollMs: 60_000 },
      },
      { events },
    )
    await othersSettled
    expect(await jobStates(db)).toEqual({ CLAIMED: 1, DONE: 199 })
    const last = settled(events, 1)
    slow.open()
    await last
    expect(await jobStates(db)).toEqual({ DONE: 200 })
  })

  it('a row that the database refuses to settle keeps none of its batch from it; it is left to the reaper', async () => {
    await db.query({
      text: `alter table public.jobs add constraint cursed check (kind <> 'cursed' or status <> 'DONE')`,
    })
    const events = new Events()
    const plain = [...(await insertJobs(db, 40))]
    const [cursed] = await insertJobs(db, 1, 'cursed')
    plain.push(...(await insertJobs(db, 40)))
    await db.query({ text: `update public.jobs set max_attempts = 1 where kind = 'cursed'` })
    const all = settled(events, plain)
    const trouble = events.next('trouble')
    const reaped = events.next('reaped')
    await run(
      {
        handle: async () => undefined,
        settings: { concurrency: 20, leaseMs: 1_500, reaperIntervalMs: 100 },
      },
      { events },
    )
    await all
    expect(await trouble).toMatchObject({
      what: expect.stringContaining(`settling row ${cursed} of public.jobs`),
      error: { code: '23514' },
    })
    expect(await reaped).toMatchObject({ id: cursed })
    expect(await jobStates(db)).toEqual({ DONE: 80, DEAD: 1 })
    await db.query({ text: 'alter table public.jobs drop constraint cursed' })
  })

  it('several outcomes at once all arrive', async () => {
    const events = new Events()
    await insertJobs(db, 300)
    const over = settled(events, 300)
    const outcomes = [done(), dead('no'), retry({ delayMs: 600_000 })]
    await run({ handle: async ({ id }) => Promise.resolve(outcomes[Number(id) % 3]) }, { events })
    await over
    expect(await jobStates(db)).toEqual({ DONE: 100, DEAD: 100, PENDING: 100 })
  })
})

describe('a handler', () => {
  it('gets row, token, attempt, and a log with the ids of worker, table, row and token', async () => {
    const events = new Events()
    const over = settled(events, 1)
    const [id] = await insertJobs(db, 1, 'special')
    await db.query({ text: 'update public.jobs set attempts = 2, lock_token = 6' })
    const bound: object[] = []
    const silent = { debug() {}, info() {}, warn() {}, error() {} }
    const log = {
      ...silent,
      child: (fields: object) => {
        bound.push(fields)
        return silent
      },
    }
    const seen: unknown[] = []
    await run(
      {
        handle: async (context) => {
          context.log.info({}, 'hello')
          seen.push(context.row.kind, context.id, context.token, context.attempt, context.signal.aborted)
          return Promise.resolve()
        },
      },
      { events, log, id: 'worker 1' },
    )
    await over
    expect(seen).toEqual(['special', id, 7n, 3, false])
    expect(bound).toEqual([{ worker: 'worker 1', table: 'public.jobs', id, token: '7' }])
  })

  it('RULE-020-003: hears when its row was taken, with the reason; the others go on', async () => {
    const events = new Events()
    const [first, second] = await insertJobs(db, 2)
    const hold = door()
    const reasons: unknown[] = []
    const fencedOff = events.next('fencedOff')
    const started = collect(events, 'started', (all) => all.length === 2)
    await run(
      {
        handle: async ({ id, signal }) => {
          if (id === second) return hold.opened
          return new Promise((_, reject) => {
            signal.addEventListener('abort', () => {
              reasons.push(signal.reason)
              reject(signal.reason as Error)
            })
          })
        },
        settings: { leaseMs: 1_500 },
      },
      { events },
    )
    await started
    const text = `update public.jobs set claimed_by = 'thief', lock_token = lock_token + 1 where id = $1`
    await db.query({ text, values: [first] })
    expect(await fencedOff).toMatchObject({ id: first, token: 1n })
    expect(reasons).toMatchObject([{ code: 'LEASE_LOST', cause: 'taken' }])
    const over = settled(events, 1)
    hold.open()
    await over
    expect(await jobs(db)).toMatchObject([
      { status: 'CLAIMED', claimed_by: 'thief', lock_token: '2', attempts: 0 },
      { status: 'DONE', lock_token: '1' },
    ])
  })
})
