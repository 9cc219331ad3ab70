/** Order per key under three relays that are killed one after the other, late commits, rollbacks and replays. */
import { setTimeout as pause } from 'node:timers/promises'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { useDatabase } from '../../test/support/database.ts'
import { useProcesses } from '../../test/support/processes.ts'
import {
  allFinished,
  arrivals,
  createSink,
  FINISHING,
  startRelay,
  type WorkerProcess,
} from '../../test/support/worker-process.ts'
import { statuses } from '../../test/support/running-relay.ts'
import { openDatabase } from '../postgres/database.ts'

const { url } = useDatabase()
const processes = useProcesses()
const db = openDatabase({ url, maxConnections: 12 })
const [PRODUCERS, KEYS_EACH, TRANSACTIONS, REPLAYS, KILLS] = [6, 7, 150, 60, 5]

beforeAll(async () => createSink(db))
afterAll(async () => db.close())

/** Writes events of its own keys. Transactions of other producers begin later and commit earlier; some are rolled back. */
async function produce(producer: number): Promise<number> {
  const written = new Map<string, number>()
  let committed = 0
  for (let i = 0; i < TRANSACTIONS; i += 1) {
    // Skewed: the first key of a producer gets a third of its events.
    const key = `p${producer}-k${Math.max(0, Math.floor(Math.random() * KEYS_EACH * 1.5) - Math.floor(KEYS_EACH / 2))}`
    const first = (written.get(key) ?? 0) + 1
    const count = 1 + Math.floor(Math.random() * 4)
    const rollBack = Math.random() < 0.15
    try {
      await db.transaction(async (tx) => {
        await tx.query({
          text: `insert into leasehold.outbox (event_type, payload, ordering_key)
            select 'test.happened', jsonb_build_object('n', n), $1 from generate_series($2::int, $3::int) as n order by n`,
          values: [key, first, first + count - 1],
        })
        await pause(Math.random() * 60)
        if (rollBack) throw new Error('rolled back')
      })
      written.set(key, first + count - 1)
      committed += count
    } catch (error) {
      if (!rollBack) throw error
    }
  }
  return committed
}

/** An operator replays events while others of their keys are waiting or in flight. */
async function replay(): Promise<void> {
  for (let i = 0; i < REPLAYS; i += 1) {
    await db.query({
      text: `update leasehold.outbox set status = 'PENDING', attempts = 0, published_at = null, published_by = null,
          claimed_at = null, available_at = now()
        where bucket = 0 and id = (
          select id from leasehold.outbox where status = 'PUBLISHED' order by random() limit 1 for update skip locked)
          and status = 'PUBLISHED'`,
    })
    await pause(40)
  }
}

it('LIFE-11 LIFE-13 LIFE-16: the first arrivals of every key are in order while relays are killed, transactions commit late and events are replayed', async () => {
  const start = (): WorkerProcess =>
    startRelay(processes, { databaseUrl: url, tell: ['trouble', 'dataError', ...FINISHING] })
  const running = [start(), start(), start()]
  const stop = new AbortController()

  async function killRelays(): Promise<void> {
    for (let kills = 0; kills < KILLS && !stop.signal.aborted; kills += 1) {
      // The rhythm of the kills is the scenario; nothing is asserted about it.
      await pause(1_200)
      const victim = running.shift()
      await victim?.heard('up')
      await victim?.kill('SIGKILL')
      running.push(start())
    }
  }

  const producers = Promise.all(Array.from({ length: PRODUCERS }, async (_, i) => produce(i)))
  const kills = killRelays()
  await Promise.all([producers, replay()])
  stop.abort()
  await kills
  const committed = (await producers).reduce((sum, count) => sum + count, 0)

  await allFinished(db, ...running)
  expect(await statuses(db)).toEqual({ PUBLISHED: committed })
  for (const relay of running) {
    expect(relay.all('trouble')).toEqual([])
    expect(relay.all('dataError')).toEqual([])
    await relay.kill('SIGTERM')
  }

  const firstArrivals = new Map<string, number[]>()
  for (const { key, n } of await arrivals(db)) {
    const numbers = firstArrivals.get(key ?? '') ?? []
    if (!numbers.includes(n)) numbers.push(n)
    firstArrivals.set(key ?? '', numbers)
  }
  expect([...firstArrivals.values()].reduce((sum, numbers) => sum + numbers.length, 0)).toBe(committed)
  const disordered = [...firstArrivals].filter(([, numbers]) => numbers.some((n, i) => n !== i + 1))
  expect(disordered).toEqual([])
}, 300_000)
