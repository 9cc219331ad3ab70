import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest'
import { useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { collect, door, settled, useWorkers } from '../../../test/support/running-worker.ts'
import { insertJobs, jobStates, WORK_DDL, WORK_TABLE } from '../../../test/support/work-table.ts'
import { openDatabase } from '../../postgres/database.ts'
import { leaseTable } from '../../lease/index.ts'
import { Events } from '../events.ts'
import { startRuntime } from '../process.ts'
import { changeSettings, type SettingsPatch } from './stored-settings.ts'

useQuietProcess()
const { url } = useDatabase()
const run = useWorkers(url)
const db = openDatabase({ url })

beforeAll(async () => {
  await db.query({ text: WORK_DDL })
})
beforeEach(async () => {
  await db.query({ text: 'truncate public.jobs, public.runs, leasehold.settings restart identity' })
})
afterAll(async () => db.close())

async function change(patch: SettingsPatch): Promise<unknown> {
  return changeSettings(db, 'leasehold', 'jobs', patch, 'ann')
}

async function writeByHand(value: object): Promise<void> {
  await db.query({
    text: `insert into leasehold.settings (name, value, changed_by) values ('jobs', $1, 'somebody')
           on conflict (name) do update set value = excluded.value`,
    values: [JSON.stringify(value)],
  })
}

/** Resolves when all claims that follow a start or a wake-up are over: the next one is a poll. */
async function idle(events: Events): Promise<void> {
  await collect(events, 'reaperRan', (all) => all.length === 3)
}

describe('RULE-020-002: settings that change while it runs', () => {
  it.each([
    ['which NOTIFY reports', true],
    ['which it reads from time to time without LISTEN', false],
  ])('a running worker applies what is stored in the settings table, %s', async (_, listen) => {
    const events = new Events()
    const listening = events.next('listening')
    const { runtime } = await run({ handle: async () => undefined }, { events, listen })
    if (listen) await listening
    const changed = events.next('settingsChanged')
    await change({ leaseMs: 60_000, concurrency: 17 })
    expect(await changed).toMatchObject({
      table: 'public.jobs',
      settings: { leaseMs: 60_000, heartbeatMs: 18_000, concurrency: 17, pollMs: 50 },
    })
    expect(runtime.worker('jobs').settings).toMatchObject({ leaseMs: 60_000, concurrency: 17 })
  })

  it('RULE-020-031: a shutdown timeout longer than the lease is refused while the worker runs: by changeSettings, by the process, and if it was stored by hand', async () => {
    const events = new Events()
    const listening = events.next('listening')
    const { runtime } = await run({ handle: async () => undefined }, { events })
    await listening
    const before = runtime.worker('jobs').settings
    const refusal = {
      code: 'SETTING_INVALID',
      message: expect.stringContaining('shutdownTimeoutMs is 30001, but must be at most leaseMs (30000)'),
    }
    await expect(change({ shutdownTimeoutMs: 30_001 })).rejects.toMatchObject(refusal)
    // The same rule from the other side: the lease becomes shorter than the timeout that the worker was started with.
    await expect(change({ leaseMs: 400 })).rejects.toMatchObject({
      message: expect.stringContaining('shutdownTimeoutMs is 500, but must be at most leaseMs (400)'),
    })
    expect(() => runtime.change('jobs', { shutdownTimeoutMs: 30_001 })).toThrow(
      expect.objectContaining(refusal),
    )
    const refused = events.next('settingsRefused')
    await writeByHand({ shutdownTimeoutMs: 30_001 })
    expect(await refused).toMatchObject({ table: 'public.jobs', error: refusal })
    expect(runtime.worker('jobs').settings).toEqual(before)
    const changed = events.next('settingsChanged')
    await change({ shutdownTimeoutMs: 30_000 })
    expect(await changed).toMatchObject({ settings: { shutdownTimeoutMs: 30_000, leaseMs: 30_000 } })
  })

  it('RULE-020-011: a combination that cannot work is refused whole: by changeSettings, and by the worker if it was stored by hand', async () => {
    const events = new Events()
    const listening = events.next('listening')
    const { runtime } = await run({ handle: async () => undefined }, { events })
    await listening
    const before = runtime.worker('jobs').settings
    await expect(change({ heartbeatMs: 20_000, concurrency: 99 })).rejects.toMatchObject({
      code: 'SETTING_INVALID',
      message: expect.stringContaining('heartbeatMs is 20000'),
    })
    expect(() => runtime.change('jobs', { shutdownTimeoutMs: 31_000, concurrency: 99 })).toThrow(
      expect.objectContaining({ code: 'SETTING_INVALID' }),
    )
    for (const wrong of [{ heartbeatMs: 20_000 }, { concurrency: 'many' }, { leasMs: 5_000 }]) {
      const refused = events.next('settingsRefused')
      await writeByHand(wrong)
      expect(await refused).toMatchObject({ table: 'public.jobs', error: { code: 'SETTING_INVALID' } })
    }
    expect(runtime.worker('jobs').settings).toEqual(before)
    const over = settled(events, 3)
    await insertJobs(db, 3)
    await over
    const changed = events.next('settingsChanged')
    await writeByHand({ concurrency: 5 })
    expect(await changed).toMatchObject({ settings: { concurrency: 5 } })
  })

  it('the lease in the database is 30 s by default, and the one that is set from the next claim or renewal on', async () => {
    const events = new Events()
    const hold = door()
    const { runtime } = await run({ handle: async () => hold.opened }, { events })
    const leases = async (): Promise<unknown[]> => {
      const { rows } = await db.query<{ at_most: number }>({
        text: `select case when locked_until <= now() + interval '30 s' then 30 when locked_until <= now() + interval '60 s' then 60
            else 120 end as at_most from public.jobs order by id`,
      })
      return rows.map((row) => row.at_most)
    }
    const first = events.next('started')
    await insertJobs(db, 1)
    await first
    expect(await leases()).toEqual([30])
    for (const leaseMs of [60_000, 120_000]) {
      const [renewed, started] = [events.next('renewed'), events.next('started')]
      runtime.change('jobs', { leaseMs })
      await renewed
      await insertJobs(db, 1)
      await started
      const expected = leaseMs / 1_000
      expect(await leases()).toEqual(Array.from({ length: expected / 60 + 1 }, () => expected))
    }
    hold.open()
  })

  it('RULE-020-022: a process that only reaps follows the interval that was declared for each table, and the one it is set to', async () => {
    const events = new Events()
    const listening = events.next('listening')
    const first = events.next('reaperRan')
    const runtime = await startRuntime({
      databaseUrl: url,
      heartbeat: 'inline',
      log: false,
      events,
      reapTables: [
        {
          name: 'jobs',
          table: leaseTable(WORK_TABLE),
          settings: { leaseMs: 3_600_000, reaperIntervalMs: 3_000_000 },
        },
      ],
    })
    try {
      await listening
      await first
      const [id] = await insertJobs(db, 1)
      await db.query({
        text: `update public.jobs set status = 'CLAIMED', available_at = null, claimed_by = 'a dead one', lock_token = 1,
          locked_until = now()`,
      })
      const reaped = events.next('reaped')
      const runs: unknown[] = []
      events.on('reaperRan', (event) => runs.push(event))
      // The interval that was declared is known without a worker in this process.
      await expect(change({ reaperIntervalMs: 3_600_000 })).rejects.toMatchObject({ code: 'SETTING_INVALID' })
      expect(runs).toEqual([])
      await change({ reaperIntervalMs: 50 })
      expect(await reaped).toMatchObject({ id, table: 'public.jobs' })
    } finally {
      await runtime.stop()
    }
  })

  it('stored settings that cannot work do not keep the others from applying, a pause above all', async () => {
    const events = new Events()
    const listening = events.next('listening')
    const { runtime } = await run(
      { handle: async () => undefined, settings: { leaseMs: 40_000 } },
      { events },
    )
    await listening
    const [refused, paused] = [events.next('settingsRefused'), events.next('paused')]
    await writeByHand({ paused: true, heartbeatMs: 20_000, concurrency: 7, batch: 0 })
    expect(await refused).toMatchObject({ error: { code: 'SETTING_INVALID' } })
    expect(await paused).toMatchObject({ reason: 'operator' })
    expect(runtime.worker('jobs').settings).toMatchObject({
      paused: true,
      concurrency: 7,
      batch: 500,
      leaseMs: 40_000,
      heartbeatMs: 12_000,
    })
    const resumed = events.next('resumed')
    await change({ paused: false })
    await resumed
  })

  it('additional slots are used at once; with fewer slots no handler is cut off, and nothing starts until a slot is free', async () => {
    const events = new Events()
    const doors = new Map<string, ReturnType<typeof door>>()
    const running = new Set<string>()
    const started = (count: number): Promise<unknown> =>
      events.next('started', () => doors.size + 1 === count)
    await insertJobs(db, 10)
    const two = started(2)
    const { runtime } = await run(
      {
        handle: async ({ id }) => {
          const own = door()
          doors.set(id, own)
          running.add(id)
          await own.opened
          running.delete(id)
        },
        settings: { concurrency: 2 },
      },
      { events },
    )
    await two
    const five = started(5)
    runtime.change('jobs', { concurrency: 5 })
    await five
    expect(running.size).toBe(5)
    runtime.change('jobs', { concurrency: 1 })
    const ids = [...running]
    const four = settled(events, ids.slice(0, 4))
    for (const id of ids.slice(0, 4)) doors.get(id)?.open()
    await four
    expect([...running]).toEqual([ids[4]])
    const six = started(6)
    doors.get(ids[4] ?? '')?.open()
    await six
    expect(running.size).toBe(1)
    const over = settled(events, 4)
    events.on('started', ({ id }) => queueMicrotask(() => doors.get(id)?.open()))
    for (const id of running) doors.get(id)?.open()
    await over
  })

  it.each(['inline', 'thread'] as const)(
    'a shorter lease is renewed as often as it needs to be, from its first row on (heartbeat: %s)',
    async (heartbeat) => {
      const events = new Events()
      const losses: string[] = []
      events.on('lost', ({ reason }) => losses.push(reason))
      const { runtime } = await run(
        {
          settings: { reaperIntervalMs: 200 },
          handle: async ({ signal }) => {
            const heard = new Promise((resolve) => signal.addEventListener('abort', resolve))
            await Promise.race([heard, collect(events, 'renewed', (all) => all.length === 3)])
          },
        },
        { events, heartbeat },
      )
      await idle(events)
      runtime.change('jobs', { leaseMs: 4_000, shutdownTimeoutMs: 500 })
      const over = Promise.race([settled(events, 1), events.next('fencedOff')])
      await insertJobs(db, 1)
      await over
      expect(losses).toEqual([])
      expect(await jobStates(db)).toEqual({ DONE: 1 })
    },
  )

  it('the setting `paused` pauses and resumes a worker', async () => {
    const events = new Events()
    const listening = events.next('listening')
    await run({ handle: async () => undefined }, { events })
    await listening
    const paused = events.next('paused')
    await change({ paused: true })
    expect(await paused).toMatchObject({ reason: 'operator' })
    await insertJobs(db, 2)
    const over = settled(events, 2)
    const order: string[] = []
    events.on('started', () => order.push('started'))
    events.on('resumed', () => order.push('resumed'))
    await change({ paused: false })
    await over
    expect(order).toEqual(['resumed', 'started', 'started'])
  })

  it('a worker that starts applies what is stored from its first claim on', async () => {
    await change({ paused: true, concurrency: 3 })
    const events = new Events()
    const paused = events.next('paused')
    const { runtime } = await run(
      { handle: async () => undefined, settings: { concurrency: 20 } },
      { events },
    )
    await paused
    expect(runtime.worker('jobs').settings).toMatchObject({ concurrency: 3, paused: true })
  })
})

describe('wake-ups', () => {
  it('with a poll every minute, leasehold.wake starts a new row at once', async () => {
    const events = new Events()
    const listening = events.next('listening')
    await run(
      {
        handle: async () => undefined,
        wake: true,
        settings: { pollMs: 60_000, reaperIntervalMs: 300 },
      },
      { events },
    )
    await listening
    for (let round = 0; round < 3; round += 1) {
      await idle(events)
      const over = settled(events, 2)
      await db.transaction(async (tx) => {
        await tx.query({ text: 'insert into public.jobs default values' })
        await tx.query({ text: `select leasehold.wake('jobs')` })
        await tx.query({ text: 'insert into public.jobs default values' })
        await tx.query({ text: `select leasehold.wake('jobs')` })
      })
      await over
    }
    expect(await jobStates(db)).toEqual({ DONE: 6 })
  })

  it('without LISTEN everything works by polling', async () => {
    const events = new Events()
    const { runtime } = await run(
      { handle: async () => undefined, wake: true, settings: { pollMs: 100, reaperIntervalMs: 300 } },
      { events, listen: false },
    )
    await idle(events)
    expect(runtime.listening).toBe(false)
    const over = settled(events, 3)
    await insertJobs(db, 3)
    await over
    expect(await jobStates(db)).toEqual({ DONE: 3 })
    const { rows } = await db.query({
      text: `select query from pg_stat_activity where datname = current_database() and query ilike 'listen%'`,
    })
    expect(rows).toEqual([])
  })

  it('a row that a reaper takes back is started at once, and not after a poll', async () => {
    const events = new Events()
    const over = settled(events, 1)
    const [id] = await insertJobs(db, 1)
    await db.query({
      text: `update public.jobs set status = 'CLAIMED', available_at = null, claimed_by = 'gone', lock_token = 1,
             locked_until = now() + interval '1 second'`,
    })
    const reaped = events.next('reaped')
    await run(
      { handle: async () => undefined, settings: { pollMs: 3_600_000, reaperIntervalMs: 200 } },
      { events },
    )
    expect(await reaped).toMatchObject({ id, owner: 'gone' })
    await over
    expect(await jobStates(db)).toEqual({ DONE: 1 })
  })
})

it('changes that are announced while the settings are read cause one more reading, and the last change is applied', async () => {
  const events = new Events()
  const listening = events.next('listening')
  const { runtime } = await run({ handle: async () => undefined }, { events })
  await listening
  const readers = `select count(*)::int as count from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock' and query like '%settings%'`
  const count = async (): Promise<number> =>
    (await db.query<{ count: number }>({ text: readers })).rows[0]?.count ?? 0
  await db.transaction(async (tx) => {
    await tx.query({ text: 'lock table leasehold.settings in access exclusive mode' })
    const announce = `select pg_notify('leasehold_settings', 'jobs')`
    await db.query({ text: announce })
    await vi.waitFor(async () => expect(await count()).toBeGreaterThan(0), { timeout: 60_000, interval: 10 })
    for (let i = 0; i < 50; i += 1) await db.query({ text: announce })
    expect(await count()).toBe(1)
  })
  const changed = events.next('settingsChanged')
  await change({ concurrency: 23 })
  await changed
  expect(runtime.worker('jobs').settings.concurrency).toBe(23)
})
