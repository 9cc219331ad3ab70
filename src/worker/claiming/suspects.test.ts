import { EventEmitter, once } from 'node:events'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { collect, door, settled } from '../../../test/support/running-worker.ts'
import { useRuntimes } from '../../../test/support/runtimes.ts'
import { type Job as JobRow, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { leaseTable } from '../../lease/index.ts'
import { openDatabase } from '../../postgres/database.ts'
import type { HandlerContext } from '../context.ts'
import { Events } from '../events.ts'
import { SaturatedError } from '../completion/outcome.ts'
import { SuspectSlot } from './suspect-slot.ts'

interface Job extends JobRow {
  readonly expiries: number
}

useQuietProcess()
const { url } = useDatabase()
const start = useRuntimes(url)
const db = openDatabase({ url })
const TABLES = ['jobs', 'letters'] as const
/** So rare that nothing in these tests is found by a poll. */
const POLL_MS = 600_000

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
  await db.query({ text: 'create table public.letters (like public.jobs including all)' })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.letters restart identity' })
})
afterAll(async () => db.close())

/** Suspects are rows whose lease expired twice. */
async function insert(table: string, innocents: number, suspects: number): Promise<void> {
  await db.query({
    text: `insert into public.${table} (expiries)
      select case when n <= $1 then 0 else 2 end from generate_series(1, $1::int + $2::int) as n`,
    values: [innocents, suspects],
  })
}

/** One worker for each table, in one process. */
async function run(
  handle: (context: HandlerContext<Job>, table: string) => Promise<void>,
  events: Events,
  settings = {},
): Promise<void> {
  await start(
    TABLES.map((name) => ({
      name,
      table: leaseTable({ ...WORK_TABLE, table: `public.${name}`, retry: [600_000] }),
      handle: async (context: HandlerContext<Job>) => handle(context, name),
      settings: { concurrency: 5, pollMs: POLL_MS, ...settings },
    })),
    { events },
  )
}

const isSuspect = ({ row }: HandlerContext<Job>): boolean => row.expiries >= 2

describe('D10: suspects', () => {
  it('start one at a time in a process, whichever tables they are in, and do not delay other rows; those with more expiries run alone', async () => {
    for (const table of TABLES) await insert(table, 50, 3)
    for (const table of TABLES)
      await db.query({ text: `update public.${table} set expiries = 3 where expiries = 2` })
    const events = new Events()
    const hold = door()
    let [running, most, ended] = [0, 0, 0]
    const allEnded = door()
    const innocents = settled(events, 50)
    const both = Promise.all(
      TABLES.map(async (name) =>
        collect(events, 'settled', (all) => {
          const own = all.filter(({ table }) => table === `public.${name}`)
          return own.reduce((sum, { ids }) => sum + ids.length, 0) >= 50
        }),
      ),
    )
    await run(async (context) => {
      if (!isSuspect(context)) return
      running += 1
      most = Math.max(most, running)
      await hold.opened
      running -= 1
      ended += 1
      if (ended === 6) allEnded.open()
    }, events)
    // All innocents are done while the first suspect is still in processing.
    await innocents
    await both
    expect(running).toBe(1)
    hold.open()
    // Each that ends makes room for the next, in the other table too: nobody waits for a poll.
    await allEnded.opened
    expect(most).toBe(1)
  })

  it('run together once one has ended well: twice as many after each, and 16 at most, at once and not at the next poll', async () => {
    // One, then two, whose ends make room for eight, whose ends make room for sixteen.
    const steps = [1, 2, 8, 16]
    const count = steps.reduce((sum, step) => sum + step, 0)
    await insert('jobs', 0, count + 1)
    const events = new Events()
    const running = new Set<() => void>()
    const changed = new EventEmitter()
    const over = settled(events, count)
    await run(
      async () => {
        await new Promise<void>((resolve) => {
          running.add(resolve)
          changed.emit('started')
        })
      },
      events,
      { concurrency: 40 },
    )
    for (const step of steps) {
      while (running.size < step) await once(changed, 'started')
      expect(running.size).toBe(step)
      for (const end of running) end()
      running.clear()
    }
    await over
    // The last one.
    while (running.size < 1) await once(changed, 'started')
    for (const end of running) end()
  })

  it('make room for the next suspect when they are released', async () => {
    for (const table of TABLES) await insert(table, 0, 2)
    const events = new Events()
    const over = settled(events, ['1', '2'])
    const seen = new Set<string>()
    const released = collect(events, 'released', (all) => all.length === 4)
    const resumed = collect(events, 'resumed', (all) => all.length >= 2)
    await run(async ({ id }, table) => {
      if (seen.has(`${table} ${id}`)) return
      seen.add(`${table} ${id}`)
      throw new SaturatedError(20)
    }, events)
    expect((await released).map(({ ids }) => ids.length)).toEqual([1, 1, 1, 1])
    await resumed
    await over
  })

  it('make room for the next suspect when they are lost, even if their handlers do not return', async () => {
    await insert('jobs', 0, 2)
    const events = new Events()
    const exit = door()
    const started: string[] = []
    const second = events.next('started', ({ id }) => started.push(id) === 2)
    const first = events.next('started')
    await run(async () => exit.opened, events, { leaseMs: 1_500 })
    const { id } = await first
    expect(started).toEqual([id])
    await db.query({
      text: `update public.jobs set claimed_by = 'thief', lock_token = lock_token + 1 where id = $1`,
      values: [id],
    })
    expect((await second).id).not.toBe(id)
    exit.open()
  })

  it('are no longer suspects once their handlers have failed: the process survived', async () => {
    await insert('jobs', 0, 3)
    const events = new Events()
    const over = settled(events, 3)
    await run(async () => Promise.reject(new Error('not yet')), events)
    await over
    const { rows } = await db.query({ text: 'select distinct attempts, expiries from public.jobs' })
    expect(rows).toEqual([{ attempts: 1, expiries: 0 }])
  })
})

describe('D10: the room for suspects', () => {
  it('is one at first, doubles with each suspect that ends well, and is 16 at most', () => {
    const slot = new SuspectSlot()
    for (const suspects of [1, 2, 4, 8, 16, 16]) {
      expect(slot.take()).toEqual({ suspects, alone: true })
      slot.claimed(1)
      slot.ended(true)
    }
    slot.take()
    slot.claimed(10)
    expect(slot.take()).toEqual({ suspects: 6, alone: false })
  })

  it('does not grow with a suspect whose lease was lost', () => {
    const slot = new SuspectSlot()
    slot.take()
    slot.claimed(1)
    slot.ended(false)
    expect(slot.take()).toEqual({ suspects: 1, alone: true })
  })

  it('is given to one claim at a time, and to none while a suspect runs that has to run alone', () => {
    const slot = new SuspectSlot()
    expect(slot.take()).toBeDefined()
    expect(slot.take()).toBeUndefined()
    slot.claimed(1, true)
    expect(slot.take()).toBeUndefined()
    slot.ended(true)
    expect(slot.take()).toEqual({ suspects: 2, alone: true })
  })

  it('is told of once to each worker that waits for it, when a suspect has ended', () => {
    const slot = new SuspectSlot()
    const told: string[] = []
    const [first, second] = [(): void => void told.push('first'), (): void => void told.push('second')]
    slot.take()
    slot.claimed(1)
    for (const listener of [first, first, second]) slot.whenFree(listener)
    expect(told).toEqual([])
    slot.ended(true)
    expect(told).toEqual(['first', 'second'])
    slot.whenFree(first)
    expect(told).toEqual(['first', 'second', 'first'])
  })
})
