/** Relay processes that die because of an event, or of every event, and are restarted each time. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useProcesses } from '../../test/support/processes.ts'
import {
  allFinished,
  arrivals,
  createSink,
  FINISHING,
  type RelayConfig,
  startRelay,
} from '../../test/support/worker-process.ts'
import { statuses } from '../../test/support/running-relay.ts'
import { openDatabase } from '../postgres/database.ts'

const { url } = useDatabase()
const processes = useProcesses()
const db = openDatabase({ url })

beforeAll(async () => createSink(db))
beforeEach(async () => db.query({ text: 'truncate leasehold.outbox, public.sink restart identity' }))
afterAll(async () => db.close())

/** All with the default limit of 25 attempts, of which each has made this many. */
async function writeEvents(count: number, attempts = 0): Promise<void> {
  await db.query({
    text: `insert into leasehold.outbox (event_type, payload, attempts)
      select 'test.happened', jsonb_build_object('n', n), $2 from generate_series(1, $1::int) as n`,
    values: [count, attempts],
  })
}

/** Restarts the relay whenever it dies, until one of them has finished all that there is. Returns how many died. */
async function restartUntilAllIsFinished(config: Omit<RelayConfig, 'databaseUrl'>): Promise<number> {
  for (let deaths = 0; ; deaths += 1) {
    const relay = startRelay(processes, { databaseUrl: url, tell: FINISHING, ...config })
    const died = relay.exited.then(() => 'died' as const)
    const finished = allFinished(db, relay).then(
      () => 'finished' as const,
      // The process ended before it said so.
      () => died,
    )
    if ((await Promise.race([died, finished])) === 'finished') {
      await relay.kill('SIGTERM')
      return deaths
    }
  }
}

describe('D10: poison isolation', () => {
  it('LIFE-08: an event that kills every process that publishes it ends DEAD, and 5,000 other events are published with at most three attempts lost', async () => {
    // This event and its neighbours have the same limit, the default, and five attempts left.
    await writeEvents(5_000, 20)
    const poison = 50
    const deaths = await restartUntilAllIsFinished({ poison, retry: { firstMs: 50, longestMs: 50 } })
    expect(deaths).toBe(5)
    expect(await statuses(db)).toEqual({ PUBLISHED: 4_999, DEAD: 1 })
    const { rows } = await db.query<{ n: number; status: string; attempts: number; expiries: number }>({
      text: `select (payload ->> 'n')::int as n, status, attempts, expiries from leasehold.outbox
        where attempts > 23 or status = 'DEAD'`,
    })
    expect(rows).toEqual([{ n: poison, status: 'DEAD', attempts: 25, expiries: 5 }])
    expect(new Set((await arrivals(db)).map(({ n }) => n)).size).toBe(4_999)
  }, 300_000)

  it('after one ordinary kill, events in flight are published by another relay at once and count one attempt', async () => {
    await writeEvents(2_000)
    const victim = startRelay(processes, { databaseUrl: url, dieAt: 'acknowledged' })
    expect(await victim.exited).toMatchObject({ signal: 'SIGKILL' })
    // An event that had to wait before its next attempt would wait for longer than the test.
    const retry = { firstMs: 3_600_000, longestMs: 3_600_000 }
    expect(await restartUntilAllIsFinished({ retry })).toBe(0)
    const { rows } = await db.query<{ attempts: number }>({
      text: 'select distinct attempts from leasehold.outbox order by 1',
    })
    expect(rows.map(({ attempts }) => attempts)).toEqual([0, 1])
    expect(await statuses(db)).toEqual({ PUBLISHED: 2_000 })
  })

  it('LIFE-18: a release that crashes on every event, more often than an event has attempts left, makes none of them dead, and the next release publishes all', async () => {
    await writeEvents(300, 20)
    // After 20 attempts the backoff would be an hour.
    const retry = { firstMs: 100, longestMs: 100 }
    for (let crash = 0; crash < 10; crash += 1) {
      const relay = startRelay(processes, { databaseUrl: url, dieAt: 'publishing', retry })
      expect(await relay.exited).toMatchObject({ signal: 'SIGKILL' })
    }
    expect(await statuses(db)).not.toHaveProperty('DEAD')
    expect(await restartUntilAllIsFinished({ retry })).toBe(0)
    expect(await statuses(db)).toEqual({ PUBLISHED: 300 })
  }, 300_000)
})
