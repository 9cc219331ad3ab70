import { setImmediate as turn, setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { startProxy } from '../../../test/support/proxy.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { collect, door, settled } from '../../../test/support/running-worker.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { startServer, type TestServer } from '../../../test/support/server.ts'
import { insertJobs, type Job, jobStates, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { leaseTable } from '../../lease/index.ts'
import { openDatabase, type Database } from '../../postgres/database.ts'
import { migrate } from '../../postgres/migrate.ts'
import type { HandlerContext } from '../context.ts'
import { Events } from '../events.ts'

useQuietProcess()
const start = useRuntimes('')
let server: TestServer
let db: Database

beforeAll(async () => {
  server = await startServer()
  // The session of the test can always write.
  db = openDatabase({
    url: `${server.url}?options=${encodeURIComponent('-c default_transaction_read_only=off')}`,
  })
  await migrate(db)
  await db.query({ text: WORK_DDL })
  await db.query({ text: 'alter table public.jobs alter max_attempts set default 100' })
})
beforeEach(async () => {
  await readOnly(false)
  await db.query({ text: 'truncate public.jobs, public.runs restart identity' })
})
afterAll(async () => {
  await db.close()
  await server.remove()
})

/** Counts how often the handler of each row was started. */
function runs(): {
  readonly byId: Map<string, number>
  total(): number
  twice(): string[]
  add(id: string): void
} {
  const byId = new Map<string, number>()
  return {
    byId,
    total: () => [...byId.values()].reduce((sum, count) => sum + count, 0),
    twice: () => [...byId].flatMap(([id, count]) => (count > 1 ? [id] : [])),
    add: (id) => byId.set(id, (byId.get(id) ?? 0) + 1),
  }
}

async function run(
  handle: (context: HandlerContext<Job>) => Promise<void>,
  events: Events,
  settings: Readonly<Record<string, number>>,
  databaseUrl = server.url,
): Promise<void> {
  await start([{ name: 'jobs', table: leaseTable(WORK_TABLE), handle, settings }], { databaseUrl, events })
}

async function readOnly(on: boolean): Promise<void> {
  await db.query({ text: `alter system set default_transaction_read_only = ${on ? 'on' : 'off'}` })
  await db.query({ text: 'select pg_reload_conf()' })
}

/** Resolves when this has happened so often: twice, and both loops of the worker have met it. */
/** The worker itself has noticed so often: the reaper and the heartbeat may notice before it. */
async function times(events: Events, type: 'databaseLost', count: number): Promise<void> {
  const isOwn = ({ what }: { readonly what: string }): boolean => what.startsWith('claiming or settling')
  await collect(events, type, (all) => all.filter(isOwn).length === count)
}

/**
 * A settlement whose answer was lost is reported as fenced off if its lease can no longer be trusted when it could be
 * sent once more; so the table is asked.
 */
async function allDone(events: Events, count: number): Promise<void> {
  for (;;) {
    const next = Promise.race([events.next('settled'), events.next('fencedOff')])
    const { DONE: done = 0 } = await jobStates(db)
    if (done === count) return
    await next
  }
}

describe('RULE-020-012: while settlements cannot be written', () => {
  it('while the server is read-only, no further handler is started, and finished rows are settled afterwards without being run twice', async () => {
    const count = 1_000
    const slots = 4
    await insertJobs(db, count)
    const events = new Events()
    const ran = runs()
    const losses: string[] = []
    events.on('fencedOff', ({ id }) => losses.push(id))
    const over = settled(events, count)
    const some = settled(events, 100)
    await run(
      async ({ id }) => {
        ran.add(id)
        await delay(2)
      },
      events,
      { concurrency: slots, prefetch: 500, leaseMs: 5_000, heartbeatMs: 500, reaperIntervalMs: 200 },
    )
    await some
    const both = times(events, 'databaseLost', 2)
    const failedBeat = events.next('renewalFailed')
    await readOnly(true)
    await both
    const atFirst = ran.total()
    await times(events, 'databaseLost', 2)
    // Handlers that were running have ended meanwhile, and rows that wait for a slot are there.
    expect(ran.total()).toBe(atFirst)
    expect((await jobStates(db))['CLAIMED']).toBeGreaterThan(slots)
    await failedBeat
    expect(ran.total()).toBe(atFirst)
    await readOnly(false)
    await over
    expect(await jobStates(db)).toEqual({ DONE: count })
    expect(ran.twice()).toEqual([])
    expect(losses).toEqual([])
  })

  it('a server that is read-only for longer than a heartbeat causes at most as many duplicates as there are slots', async () => {
    const count = 300
    const slots = 5
    await insertJobs(db, count)
    const events = new Events()
    const ran = runs()
    const over = settled(events, count)
    const hold = door()
    let holding = 0
    const allHolding = door()
    await run(
      async ({ id, signal }) => {
        ran.add(id)
        // In the midst of it all slots have a handler that is not finished when the lease is lost.
        if (ran.byId.size <= 100 || hold.isOpen()) return
        holding += 1
        if (holding === slots) allHolding.open()
        await Promise.race([hold.opened, new Promise((resolve) => signal.addEventListener('abort', resolve))])
      },
      events,
      { concurrency: slots, prefetch: 200, leaseMs: 4_000, heartbeatMs: 500, reaperIntervalMs: 500 },
    )
    await allHolding.opened
    const lost = collect(events, 'lost', (all) => all.length >= slots)
    await readOnly(true)
    await lost
    await times(events, 'databaseLost', 1)
    hold.open()
    await readOnly(false)
    await over
    expect(await jobStates(db)).toEqual({ DONE: count })
    expect(ran.twice().length).toBeLessThanOrEqual(slots)
    expect(ran.total() - count).toBeLessThanOrEqual(slots)
  })

  it('while the connection is lost, no further handler is started until the database answers', async () => {
    const count = 500
    await insertJobs(db, count)
    const proxy = await startProxy(server.url)
    const events = new Events()
    const ran = runs()
    const some = settled(events, 50)
    await run(
      async ({ id }) => {
        ran.add(id)
        await delay(2)
      },
      events,
      { concurrency: 4, prefetch: 400, leaseMs: 3_000, reaperIntervalMs: 200 },
      proxy.url,
    )
    await some
    const both = times(events, 'databaseLost', 2)
    await proxy.refuse()
    proxy.cut()
    await both
    const atFirst = ran.total()
    await times(events, 'databaseLost', 2)
    expect(ran.total()).toBe(atFirst)
    await proxy.accept()
    await allDone(events, count)
    await proxy.close()
  })

  it('while the table is locked, no further handler is started once a settlement has waited for a second', async () => {
    const ids = await insertJobs(db, 4)
    const [quick, endless, slow] = ids
    const events = new Events()
    const started: string[] = []
    events.on('started', ({ id }) => started.push(id))
    const [locked, unlock, end, slowEnded] = [door(), door(), door(), door()]
    const claimed = collect(events, 'claimed', (all) => all.reduce((sum, { count }) => sum + count, 0) === 4)
    const over = settled(events, ids)
    await run(
      async ({ id }) => {
        if (id === quick) await locked.opened
        if (id === endless) await end.opened
        if (id !== slow) return
        // It begins when the settlement of the quick one is about to be sent.
        await delay(1_500)
        slowEnded.open()
      },
      events,
      { concurrency: 2, prefetch: 2 },
    )
    await claimed
    const session = db.transaction(async (tx) => {
      await tx.query({ text: 'lock table public.jobs in access exclusive mode' })
      locked.open()
      await unlock.opened
    })
    await slowEnded.opened
    await turn()
    expect(started).toEqual([quick, endless, slow])
    unlock.open()
    await session
    end.open()
    await over
    expect(started).toEqual(ids)
  })
})
