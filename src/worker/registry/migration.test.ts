import { EventEmitter, once } from 'node:events'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { openSession, useDatabase } from '../../../test/support/database.ts'
import { useQuietProcess } from '../../../test/support/quiet-process.ts'
import { openDatabase, type Database } from '../../postgres/database.ts'
import type { Queryable } from '../../postgres/queryable.ts'

useQuietProcess()
const database = useDatabase()
let db: Database
let heard: string[]
const emitter = new EventEmitter()
const POLL = { timeout: 60_000, interval: 5 }

beforeAll(() => {
  db = openDatabase({ url: database.url })
})

afterAll(async () => {
  await db.close()
})

beforeEach(async () => {
  heard = []
  const session = await openSession(database.url)
  session.on('notification', ({ channel, payload = '' }) => {
    if (channel === 'end') emitter.emit('end')
    else heard.push(`${channel}:${payload}`)
  })
  await session.query('listen leasehold_wake; listen leasehold_settings; listen "end"')
})

afterEach(async () => {
  await db.query({ text: 'truncate leasehold.settings' })
})

/** Notifications arrive in the order of their commits: after this one, all the earlier ones are here. */
async function allHeard(): Promise<string[]> {
  const end = once(emitter, 'end')
  await db.query({ text: 'notify "end"' })
  await end
  return heard
}

async function wake(on: Queryable, name: string): Promise<void> {
  await on.query({ text: 'select leasehold.wake($1)', values: [name] })
}

describe('wake', () => {
  it('notifies the workers of a name, once for each transaction', async () => {
    await db.transaction(async (tx) => {
      for (let n = 0; n < 100; n += 1) await wake(tx, 'outbox')
      await wake(tx, 'webhooks')
    })
    await wake(db, 'outbox')
    expect(await allHeard()).toEqual([
      'leasehold_wake:outbox',
      'leasehold_wake:webhooks',
      'leasehold_wake:outbox',
    ])
  })

  it('sends one notification for each name from concurrent transactions of the same 50 ms', async () => {
    // Repeated until both calls fall into one period.
    await vi.waitFor(async () => {
      heard = []
      await db.transaction(async (first) => {
        await wake(first, 'outbox')
        await wake(db, 'outbox')
        await wake(db, 'webhooks')
        expect(await allHeard()).toEqual(['leasehold_wake:webhooks'])
      })
      expect(await allHeard()).toEqual(['leasehold_wake:webhooks', 'leasehold_wake:outbox'])
    }, POLL)
  })

  it('a transaction that stays open does not keep later ones from sending', async () => {
    await db.transaction(async (long) => {
      await wake(long, 'outbox')
      await vi.waitFor(async () => {
        await wake(db, 'outbox')
        expect(await allHeard()).not.toEqual([])
      }, POLL)
    })
  })

  it('a lock that another role holds does not suppress later wake-ups', async () => {
    await db.transaction(async (tx) => {
      await wake(tx, 'outbox')
      const { rows } = await tx.query<{ key: string }>({
        text: `select ((classid::bigint << 32) | objid::bigint)::text as key from pg_locks
where locktype = 'advisory' and pid = pg_backend_pid()`,
      })
      expect(rows).toHaveLength(1)
      const other = await openSession(database.url)
      // It waits until this transaction has ended, and then holds the lock for as long as it likes.
      const held = other.query('select pg_advisory_lock($1::bigint)', [rows[0]?.key])
      onTestFinished(async () => void (await held))
    })
    heard = []
    await vi.waitFor(async () => {
      await wake(db, 'outbox')
      expect(await allHeard()).not.toEqual([])
    }, POLL)
  })

  it('sends nothing for a transaction that rolls back, which does not suppress others', async () => {
    const regret = new Error('regret')
    const outcome = db.transaction(async (tx) => {
      await wake(tx, 'outbox')
      throw regret
    })
    await expect(outcome).rejects.toBe(regret)
    expect(await allHeard()).toEqual([])
    await wake(db, 'outbox')
    expect(await allHeard()).toEqual(['leasehold_wake:outbox'])
  })

  it.each(['off', 'OFF', 'false'])(
    'with leasehold.notify = %s sends nothing and takes no lock',
    async (value) => {
      await db.transaction(async (tx) => {
        await tx.query({ text: `set local leasehold.notify = '${value}'` })
        await wake(tx, 'outbox')
        const { rowCount } = await tx.query({
          text: `select from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()`,
        })
        expect(rowCount).toBe(0)
      })
      expect(await allHeard()).toEqual([])
    },
  )

  it.each(['on', ''])('with leasehold.notify = %j sends a notification', async (value) => {
    await db.transaction(async (tx) => {
      await tx.query({ text: `set local leasehold.notify = '${value}'` })
      await wake(tx, 'outbox')
    })
    expect(await allHeard()).toEqual(['leasehold_wake:outbox'])
  })

  it('can be switched off for a whole database', async () => {
    await db.query({ text: `alter database "${database.name}" set leasehold.notify = 'off'` })
    const quiet = openDatabase({ url: database.url })
    await wake(quiet, 'outbox')
    await quiet.close()
    await db.query({ text: `alter database "${database.name}" reset leasehold.notify` })
    expect(await allHeard()).toEqual([])
  })
})

describe('settings', () => {
  const insert = `insert into leasehold.settings (name, value, changed_by) values ('outbox', '{}', 'somebody')`

  it.each([
    ['an insert', insert, ['outbox']],
    ['an update', `${insert}; update leasehold.settings set value = '{"batch": 2}'`, ['outbox']],
    ['a delete', `${insert}; delete from leasehold.settings`, ['outbox']],
    ['a new name', `${insert}; update leasehold.settings set name = 'sync'`, ['outbox', 'sync']],
  ])('%s in the settings table is announced, once for each name', async (_, statements, names) => {
    await db.query({ text: statements })
    expect(await allHeard()).toEqual(names.map((name) => `leasehold_settings:${name}`))
  })

  it.each(['delete from leasehold.settings', `update leasehold.settings set value = '{"batch": 2}'`])(
    'the statement on its own is announced as well: %s',
    async (text) => {
      await db.query({ text: insert })
      await db.query({ text })
      expect(await allHeard()).toEqual(['leasehold_settings:outbox', 'leasehold_settings:outbox'])
    },
  )

  it.each(['[]', '"fast"', '1', 'null'])('the settings table refuses the value %s', async (value) => {
    const outcome = db.query({
      text: `insert into leasehold.settings (name, value, changed_by) values ('outbox', $1, 'somebody')`,
      values: [value],
    })
    await expect(outcome).rejects.toMatchObject({ code: '23514' })
  })
})

it('every object of the migration has a comment, and functions fix their search_path', async () => {
  const { rows } = await db.query({
    text: `
      select c.relname || '.' || a.attname as silent from pg_class c join pg_attribute a on a.attrelid = c.oid
       where c.relnamespace = 'leasehold'::regnamespace and c.relkind = 'r' and a.attnum > 0
         and col_description(c.oid, a.attnum) is null
      union all
      select relname from pg_class c
       where relnamespace = 'leasehold'::regnamespace and relkind = 'r' and obj_description(c.oid, 'pg_class') is null
      union all
      select proname from pg_proc p
       where pronamespace = 'leasehold'::regnamespace
         and (obj_description(p.oid, 'pg_proc') is null or not proconfig @> array['search_path=leasehold, pg_temp'])`,
  })
  expect(rows).toEqual([])
})
