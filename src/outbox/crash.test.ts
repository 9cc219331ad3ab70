/** The four failure scenarios of the lifecycle, with relay processes that kill themselves at the point in question. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useProcesses } from '../../test/support/processes.ts'
import { arrivals, createSink, startRelay, type WorkerProcess } from '../../test/support/worker-process.ts'
import { records, statuses, write } from '../../test/support/running-relay.ts'
import { openDatabase } from '../postgres/database.ts'

const { url } = useDatabase()
const processes = useProcesses()
const db = openDatabase({ url })
const ROWS = 10

beforeAll(async () => createSink(db))
beforeEach(async () => {
  await db.query({ text: 'truncate leasehold.outbox, public.sink restart identity' })
})
afterAll(async () => db.close())

/** Lets this relay die at its point, and another one finish. Returns the id of the dead one. */
async function dieAndRecover(dieAt: 'claimed' | 'publishing' | 'part' | 'acknowledged'): Promise<string> {
  const dying = startRelay(processes, { databaseUrl: url, dieAt, tell: ['workerStarted'] })
  const { worker } = await dying.heard('workerStarted')
  expect(await dying.exited).toMatchObject({ signal: 'SIGKILL' })
  const other = startRelay(processes, { databaseUrl: url, tell: ['settled'] })
  await settledBy(other)
  await other.kill('SIGTERM')
  return String(worker)
}

async function settledBy(relay: WorkerProcess): Promise<void> {
  await relay.heard('settled', () => {
    const ids = relay.all('settled').flatMap((line) => line['ids'] as string[])
    return new Set(ids).size === ROWS
  })
}

async function expectAllPublished(): Promise<void> {
  expect(await statuses(db)).toEqual({ PUBLISHED: ROWS })
  const ids = (await records(db)).map(({ event_id: id }) => id)
  const arrived = new Set((await arrivals(db)).map(({ event_id: id }) => id))
  expect(arrived).toEqual(new Set(ids))
}

describe('LIFE-18: no event is lost', () => {
  beforeEach(async () => write(db, ...Array.from({ length: ROWS }, () => null)))

  it('LIFE-14: when a relay dies after claiming, another publishes the events once, one attempt later', async () => {
    await dieAndRecover('claimed')
    await expectAllPublished()
    expect(await arrivals(db)).toHaveLength(ROWS)
    for (const { attempts } of await records(db)) expect(attempts).toBe(1)
  })

  it('LIFE-14: when a relay dies before its publisher has sent anything, another publishes the events', async () => {
    await dieAndRecover('publishing')
    await expectAllPublished()
    expect(await arrivals(db)).toHaveLength(ROWS)
  })

  it('LIFE-15: when a relay dies after publishing and before settling, events arrive twice, with the same ids and a higher token', async () => {
    const dead = await dieAndRecover('acknowledged')
    await expectAllPublished()
    const twice = await arrivals(db)
    expect(twice).toHaveLength(2 * ROWS)
    const first = new Map(twice.slice(0, ROWS).map((arrival) => [arrival.event_id, arrival]))
    for (const { event_id: id, relay, token } of twice.slice(ROWS)) {
      expect(first.get(id)?.relay).toBe(dead)
      expect(relay).not.toBe(dead)
      expect(BigInt(token)).toBe(BigInt(first.get(id)?.token ?? 0) + 1n)
    }
  })

  it('LIFE-17: when a relay dies in the middle of a batch, only events that had arrived arrive twice', async () => {
    const dead = await dieAndRecover('part')
    await expectAllPublished()
    const all = await arrivals(db)
    expect(all).toHaveLength(ROWS + ROWS / 2)
    expect(all.filter(({ relay }) => relay === dead)).toHaveLength(ROWS / 2)
  })
})

it('LIFE-16: a relay that was stopped past its lease is fenced off when it resumes, and changes nothing that another has published', async () => {
  await write(db, ...Array.from({ length: ROWS }, () => null))
  // A busy machine must be able to stop it within three leases.
  const settings = { leaseMs: 3_000, heartbeatMs: 900, reaperIntervalMs: 200, shutdownTimeoutMs: 500 }
  // A lock on the sink keeps it from publishing before it is stopped.
  const zombie = await db.transaction(async (tx) => {
    await tx.query({ text: 'lock table public.sink in access exclusive mode' })
    const started = startRelay(processes, {
      databaseUrl: url,
      settings,
      tell: ['claimed', 'lost', 'fencedOff', 'settled'],
      runtime: { reaper: false },
    })
    await started.heard('claimed')
    process.kill(started.pid, 'SIGSTOP')
    return started
  })
  const other = startRelay(processes, { databaseUrl: url, settings, tell: ['settled'] })
  await settledBy(other)
  const before = await records(db)
  process.kill(zombie.pid, 'SIGCONT')
  // What comes first when it resumes: that the leases are over, or the answer of the sink.
  const given = (): number =>
    new Set([...zombie.all('lost'), ...zombie.all('fencedOff')].map((line) => line['id'])).size
  await expect.poll(given).toBe(ROWS)
  expect(await records(db)).toEqual(before)
  expect(zombie.all('settled')).toEqual([])
  await other.kill('SIGTERM')
  await zombie.kill('SIGTERM')
  await expectAllPublished()
})
