import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { settled, useWorkers } from '../../../test/support/running-worker.ts'
import {
  dueInSeconds,
  insertJobs,
  onlyJob,
  WORK_DDL,
  WORK_TABLE,
  type Job,
} from '../../../test/support/work-table.ts'
import { leaseTable, openLeaseStore } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'
import type { HandlerContext } from '../context.ts'
import { Events } from '../events.ts'
import { dead, retry } from './outcome.ts'
import { A_TOKEN } from '../../../test/support/tokens.ts'

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

describe('settleIn', () => {
  it.each([
    ['dead with a reason', () => dead('no such account'), 'no such account'],
    ['dead without a reason', () => dead(undefined), { message: 'the handler gave no reason' }],
    [
      'a retry without an error at the last attempt',
      () => retry(),
      { message: 'the handler gave no reason' },
    ],
  ])('a row that the handler settles as %s is reported as failed', async (_, outcome, error) => {
    const events = new Events()
    const failed = events.next('failed')
    const over = settled(events, 1)
    await insertJobs(db, 1)
    await db.query({ text: 'update public.jobs set max_attempts = 1' })
    const handle = async (context: HandlerContext<Job>): Promise<void> =>
      db.transaction(async (tx) => context.settleIn(tx, outcome()))
    await run({ handle }, { events })
    await over
    expect(await failed).toMatchObject({ id: '1', attempt: 1, outcome: 'dead', error })
    expect((await onlyJob(db))?.status).toBe('DEAD')
  })

  it('LIFE-12: settleIn commits with the transaction of the handler', async () => {
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
    expect(await onlyJob(db)).toMatchObject({ status: 'DONE', attempts: 0, claimed_by: null })
    expect(await effects()).toEqual([{ job: '1', token: A_TOKEN }])
  })

  it('settleIn rolls back with that transaction, and the error of the handler counts', async () => {
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
    expect(await onlyJob(db)).toMatchObject({
      status: 'PENDING',
      attempts: 1,
      last_error: 'Error: after all not',
    })
    expect(await effects()).toEqual([])
  })

  it('LIFE-12: a row that was committed is reported as settled, and not as fenced off, if the handler throws afterwards', async () => {
    const events = new Events()
    const fencedOff: unknown[] = []
    events.on('fencedOff', (event) => fencedOff.push(event))
    const failed = events.next('failed')
    const ended = events.next('settled')
    await insertJobs(db, 1)
    const handle = async (context: HandlerContext<Job>): Promise<void> => {
      await db.transaction(async (tx) => {
        await effect(tx, context)
        await context.settleIn(tx)
      })
      throw new Error('the mail about it was not sent')
    }
    await run({ handle }, { events })
    expect(await failed).toMatchObject({ id: '1', error: { message: 'the mail about it was not sent' } })
    expect(await ended).toMatchObject({ outcome: 'done', ids: ['1'] })
    expect(fencedOff).toEqual([])
    expect(await onlyJob(db)).toMatchObject({ status: 'DONE', attempts: 0 })
    expect(await effects()).toHaveLength(1)
  })

  it('settleIn settles as any outcome; a retry without a delay gets the one of the policy', async () => {
    const events = new Events()
    const over = settled(events, 1)
    await insertJobs(db, 1)
    const handle = async (context: HandlerContext<Job>): Promise<void> =>
      db.transaction(async (tx) => context.settleIn(tx, retry({ error: 'later' })))
    await run({ handle, retry: { firstMs: 3_600_000, longestMs: 3_600_000, jitter: 0 } }, { events })
    await over
    expect(await onlyJob(db)).toMatchObject({ status: 'PENDING', attempts: 1, last_error: 'later' })
    expect(await dueInSeconds(db)).toBeGreaterThan(0)
  })

  it('RULE-020-003: settleIn throws FENCED_OFF when the lease was taken, so that the effects of that run are rolled back', async () => {
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
    // The second run may be over before the first one finds out.
    const { token } = await fencedOff
    expect(errors).toMatchObject([{ code: 'FENCED_OFF', message: expect.stringContaining('token ') }])
    expect(await fencedOff).toMatchObject({ id: '1', worker: 'slow' })
    const second = String(token + 1n)
    expect(await onlyJob(db)).toMatchObject({ status: 'DONE', attempts: 1, lock_token: second })
    expect(await effects()).toEqual([{ job: '1', token: second }])
  })

  it('WH-FR-001-AC3: settleIn does not count as a loss for a handler that continues afterwards', async () => {
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
    expect(await onlyJob(db)).toMatchObject({ status: 'DONE', attempts: 0 })
  })
})
