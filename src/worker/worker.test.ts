import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useQuietProcess } from '../../test/support/quiet-process.ts'
import { collect, door, settled, useWorkers } from '../../test/support/running-worker.ts'
import {
  dueInSeconds,
  insertJobs,
  jobs,
  jobStates,
  onlyJob,
  WORK_DDL,
  type Job,
} from '../../test/support/work-table.ts'
import { openDatabase } from '../postgres/database.ts'
import { Events } from './events.ts'
import { dead, done, PermanentError, retry } from './completion/outcome.ts'
import { A_TOKEN } from '../../test/support/tokens.ts'

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
    return onlyJob(db)
  }

  it.each([undefined, done()])('LIFE-05: the row of a handler that returns %j is done', async (outcome) => {
    expect(await outcomeOf(async () => Promise.resolve(outcome))).toMatchObject({
      status: 'DONE',
      attempts: 0,
      claimed_by: null,
    })
  })

  it('LIFE-07: a retry is claimable after the delay it names, with one attempt more', async () => {
    const row = await outcomeOf(async () => Promise.resolve(retry({ delayMs: 3_600_000, error: 'not yet' })))
    expect(row).toMatchObject({ status: 'PENDING', attempts: 1, last_error: 'not yet', claimed_by: null })
    // However slow the machine is, it does not take an hour.
    expect(await dueInSeconds(db)).toBeGreaterThan(0)
    expect(await dueInSeconds(db)).toBeLessThanOrEqual(3_600)
  })

  it('LIFE-06: a thrown error is a retry by the policy of the table', async () => {
    const policy = { firstMs: 3_600_000, longestMs: 3_600_000, jitter: 0 }
    const row = await outcomeOf(async () => Promise.reject(new Error('boom')), policy)
    expect(row).toMatchObject({ status: 'PENDING', attempts: 1, last_error: 'Error: boom' })
    expect(await dueInSeconds(db)).toBeGreaterThan(0)
    expect(await dueInSeconds(db)).toBeLessThanOrEqual(3_600)
  })

  it('LIFE-08: the row of a handler that returns dead() is dead', async () => {
    expect(await outcomeOf(async () => Promise.resolve(dead('no such customer')))).toMatchObject({
      status: 'DEAD',
      attempts: 1,
      last_error: 'no such customer',
    })
  })

  it('LIFE-08: the row of a handler that throws a PermanentError is dead', async () => {
    expect(await outcomeOf(async () => Promise.reject(new PermanentError('gone')))).toMatchObject({
      status: 'DEAD',
      attempts: 1,
      last_error: 'PermanentError: gone',
    })
  })

  it('LIFE-08: a row that fails as often as its maximum of attempts is dead; every failure is reported with its number', async () => {
    const events = new Events()
    await insertJobs(db, 1)
    await db.query({ text: 'update public.jobs set max_attempts = 3' })
    const failures = collect(events, 'failed', (all) => all.length === 3)
    const end = events.next('settled', ({ outcome }) => outcome === 'dead')
    await run({ handle: async () => Promise.reject(new Error('again')), retry: { firstMs: 0 } }, { events })
    expect(await failures).toMatchObject([
      { attempt: 1, outcome: 'retry' },
      { attempt: 2, outcome: 'retry' },
      { attempt: 3, outcome: 'dead', error: new Error('again') },
    ])
    await end
    expect(await onlyJob(db)).toMatchObject({ status: 'DEAD', attempts: 3, lock_token: A_TOKEN })
  })
})

describe('settlements', () => {
  it('a slow row does not delay the settlements of other rows', async () => {
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

  it('a row that a data error keeps from being settled does not affect its batch, and is left to the reaper', async () => {
    await db.query({
      text: `alter table public.jobs add constraint cursed check (kind <> 'cursed' or status <> 'DONE')`,
    })
    const events = new Events()
    const plain = [...(await insertJobs(db, 40))]
    const [cursed] = await insertJobs(db, 1, 'cursed')
    plain.push(...(await insertJobs(db, 40)))
    await db.query({ text: `update public.jobs set max_attempts = 1 where kind = 'cursed'` })
    const all = settled(events, plain)
    const dataError = events.next('dataError')
    const reaped = events.next('reaped')
    await run(
      {
        handle: async () => undefined,
        settings: { concurrency: 20, leaseMs: 4_000, heartbeatMs: 500, reaperIntervalMs: 100 },
      },
      { events },
    )
    await all
    expect(await dataError).toMatchObject({
      table: 'public.jobs',
      verb: 'settle',
      id: cursed,
      error: { code: '23514' },
    })
    expect(await reaped).toMatchObject({ id: cursed })
    expect(await jobStates(db)).toEqual({ DONE: 80, DEAD: 1 })
    await db.query({ text: 'alter table public.jobs drop constraint cursed' })
  })

  it('several outcomes at once are all written', async () => {
    const events = new Events()
    await insertJobs(db, 300)
    const over = settled(events, 300)
    const outcomes = [done(), dead('no'), retry({ delayMs: 600_000 })]
    await run({ handle: async ({ id }) => Promise.resolve(outcomes[Number(id) % 3]) }, { events })
    await over
    expect(await jobStates(db)).toEqual({ DONE: 100, DEAD: 100, PENDING: 100 })
  })
})

describe('the handler', () => {
  it('a handler gets row, token, attempt, and a log with the ids of worker, table, row and token', async () => {
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

  it('RULE-020-003: a handler is told with a reason when its row was taken; other handlers continue', async () => {
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
        settings: { leaseMs: 6_000, heartbeatMs: 300 },
      },
      { events },
    )
    await started
    const text = `update public.jobs set claimed_by = 'thief', lock_token = lock_token + 1 where id = $1`
    await db.query({ text, values: [first] })
    expect(await fencedOff).toMatchObject({ id: first, outcome: expect.any(String) })
    expect(reasons).toMatchObject([{ code: 'LEASE_LOST', cause: 'taken' }])
    const over = settled(events, 1)
    hold.open()
    await over
    expect(await jobs(db)).toMatchObject([
      { status: 'CLAIMED', claimed_by: 'thief', lock_token: A_TOKEN, attempts: 0 },
      { status: 'DONE', lock_token: A_TOKEN },
    ])
  })
})

it('RULE-020-041: by default a worker runs ten rows at once, and no more', async () => {
  const events = new Events()
  const finish = door()
  await insertJobs(db, 30)
  let running = 0
  let most = 0
  let claimed = 0
  const allClaimed = new Promise<void>((resolve) => {
    events.on('claimed', ({ count }) => {
      claimed += count
      if (claimed === 30) resolve()
    })
  })
  const over = settled(events, 30)
  await run(
    {
      handle: async () => {
        running += 1
        most = Math.max(most, running)
        await finish.opened
        running -= 1
      },
    },
    { events },
  )
  await allClaimed
  // A claim starts as many as there are slots for, in the same turn of the event loop.
  await expect.poll(() => running).toBeGreaterThanOrEqual(10)
  finish.open()
  await over
  expect(most).toBe(10)
})
