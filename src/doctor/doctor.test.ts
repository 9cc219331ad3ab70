import { readFile } from 'node:fs/promises'
import { Client } from 'pg'
import { afterEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { backendOf, blocked, openSession, useDatabase } from '../../test/support/database.ts'
import { argumentsOf, useExaminedServer } from '../../test/support/examined-server.ts'
import { makeEvents } from '../../test/support/outbox-rows.ts'
import { startServer } from '../../test/support/server.ts'
import { recording } from '../../test/support/running-relay.ts'
import { addEndpoint, makeEndpoint, SECRET_KEY } from '../../test/support/webhook-endpoints.ts'
import { makeDeliveries } from '../../test/support/webhook-rows.ts'
import { leaseTable } from '../lease/index.ts'
import { enqueue } from '../outbox/index.ts'
import { relay } from '../outbox/relay.ts'
import { type Database, migrate, openDatabase } from '../postgres/index.ts'
import { startRuntime } from '../worker/index.ts'
import { CHECKS, type Diagnosis, examine, type ExamineOptions, type Finding } from './doctor.ts'

const server = useExaminedServer()
const shared = useDatabase()

afterEach(async () => {
  await server.asAdmin(
    'truncate leasehold.outbox, leasehold.webhook_outbox, leasehold.webhook_endpoints, leasehold.workers, leasehold.settings restart identity',
    'alter role owner reset all',
  )
})

/** The only finding. */
function only({ findings }: Diagnosis): Finding {
  expect(findings).toHaveLength(1)
  const [found] = findings
  if (found === undefined) throw new Error('nothing was found')
  return found
}

function remarksOf({ checks }: Diagnosis): readonly string[] {
  return checks.flatMap(({ id, remarks = [] }) => remarks.map((remark) => `${id}: ${remark}`))
}

function ofCheck({ findings }: Diagnosis, id: string): readonly Finding[] {
  return findings.filter(({ check }) => check === id)
}

it('a database that is in order has no findings', async () => {
  const { findings, checks } = await server.examine({ databaseUrl: server.url(), secretKey: SECRET_KEY })
  expect(findings).toEqual([])
  expect(checks.map(({ id }) => id)).toEqual(CHECKS.map(({ id }) => id))
  expect(checks.every(({ ok }) => ok)).toBe(true)
})

it('a database in which a worker process works has no findings', async () => {
  const publisher = recording()
  const runtime = await startRuntime({
    databaseUrl: server.url(),
    workers: [relay({ publisher })] as never,
    log: false,
    settings: { pollMs: 50 },
  })
  onTestFinished(async () => void (await runtime.stop()))
  await server.db().transaction(async (tx) => {
    for (let n = 1; n <= 20; n += 1) await enqueue(tx, { type: 'order.paid', payload: { n } })
  })
  await vi.waitFor(() => expect(publisher.published).toHaveLength(20), { timeout: 60_000 })
  await vi.waitFor(async () => expect((await server.examine()).findings).toEqual([]), { timeout: 60_000 })
})

it('nothing is written: every check is made where PostgreSQL refuses all writes', async () => {
  await server.asAdmin('alter role owner set default_transaction_read_only = on')
  const { findings, checks } = await server.examine({
    databaseUrl: server.url(),
    secretKey: SECRET_KEY,
    workers: [relay({ publisher: recording() })] as never,
  })
  expect(findings.map(({ check }) => check)).toEqual(['server-transactions'])
  expect(checks.filter(({ skipped }) => skipped !== undefined).map(({ id }) => id)).toEqual([
    'workers-lease-time',
  ])
})

it('docs/operations/doctor.md describes every check, in their order', async () => {
  const page = await readFile(new URL('../../docs/operations/doctor.md', import.meta.url), 'utf8')
  const described = [...page.matchAll(/^\| `([a-z-]+)` \| (.+?) \|/gm)].map(([, id, title]) => ({
    id,
    title,
  }))
  expect(described).toEqual(CHECKS.map(({ id, title }) => ({ id, title })))
})

describe('the server', () => {
  it.each([
    ['server-durability', 'synchronous_commit is off', 'synchronous_commit = off'],
    ['server-transactions', 'serializable', `default_transaction_isolation = 'serializable'`],
    ['server-transactions', 'default_transaction_read_only is on', 'default_transaction_read_only = on'],
    ['server-timeouts', 'statement_timeout is 1000 ms', 'statement_timeout = 1000'],
    ['server-statistics', 'track_activities is off', 'track_activities = off'],
  ])('%s finds: %s', async (check, says, setting) => {
    await server.asAdmin(`alter role owner set ${setting}`)
    const found = only(await server.examine())
    expect(found).toMatchObject({ check, text: expect.stringContaining(says) })
  })

  it.each([
    'synchronous_commit = off',
    `default_transaction_isolation = 'serializable'`,
    'statement_timeout = 1000',
  ])('the printed repair of a setting of the role mends it: %s', async (setting) => {
    await server.asAdmin(`alter role owner set ${setting}`)
    // Whoever runs it.
    await server.asAdmin(...(only(await server.examine()).repair ?? []))
    expect((await server.examine()).findings).toEqual([])
  })

  it('that transactions may be idle for ever, as is the default of PostgreSQL, is a remark', async () => {
    await server.asAdmin('alter role owner set idle_in_transaction_session_timeout = 0')
    const diagnosis = await server.examine()
    expect(diagnosis.findings).toEqual([])
    expect(remarksOf(diagnosis)).toEqual([
      expect.stringContaining('server-timeouts: idle_in_transaction_session_timeout is 0'),
    ])
  })

  it('fsync that is off and a superuser are found', async () => {
    const db = openDatabase({ url: shared.url })
    onTestFinished(async () => db.close())
    const diagnosis = await examine(db)
    const { rows } = await db.query<{ name: string }>({
      text: `select name from pg_settings where name in ('fsync', 'full_page_writes', 'synchronous_commit') and setting = 'off' order by 1`,
    })
    expect(ofCheck(diagnosis, 'server-superuser')).toHaveLength(1)
    expect(
      ofCheck(diagnosis, 'server-durability')
        .map(({ text }) => text.split(' ')[0] ?? '')
        .toSorted(),
    ).toEqual(rows.map(({ name }) => name))
    const embedded = await examine(db, { embedded: true })
    expect(ofCheck(embedded, 'server-superuser')).toEqual([])
  })

  it('a clock that differs is found, and a slow answer is not mistaken for it', async () => {
    const late = only(await server.examine({ now: () => Date.now() - 90_000 }))
    expect(late).toMatchObject({ check: 'server-clock', text: expect.stringContaining('ahead of') })
    // Each answer seems to take five minutes, so that nothing is known of a difference of two.
    let calls = 0
    const slow = await server.examine({
      now: () => Date.now() + ((calls += 1) % 2 === 0 ? 270_000 : -30_000),
    })
    expect(ofCheck(slow, 'server-clock')).toEqual([])
  })

  it('more processes than the server may have connections for are a remark, unless there is a pooler', async () => {
    await addWorkers(20, { reaps: '{leasehold.outbox}' })
    const diagnosis = await server.examine()
    expect(ofCheck(diagnosis, 'server-connections')).toEqual([])
    expect(remarksOf(diagnosis)).toEqual([
      expect.stringMatching(/20 worker processes may open 240 connections, .+ and the server has 97 /),
    ])
    const { href } = new URL(server.url())
    expect(remarksOf(await server.examine({ databaseUrl: href, listenUrl: href }))).toEqual([])
  })

  it('a server that has hardly a connection left is found, though the sessions are those of another role', async () => {
    await Promise.all(Array.from({ length: 88 }, async () => openSession(server.adminUrl())))
    expect(ofCheck(await server.examine(), 'server-connections')).toMatchObject([
      {
        severity: 'warning',
        text: expect.stringMatching(/^(?:89|9\d) of 97 connections of the server are open/),
      },
    ])
  })
})

describe('locks of ordering keys', () => {
  it('a session that keeps producers of an ordering key waiting is found, and the printed repair ends it', async () => {
    const [holder, waiter] = [await openSession(server.adminUrl()), await openSession(server.adminUrl())]
    holder.on('error', () => undefined)
    const event = { type: 'order.paid', payload: {}, orderingKey: 'k' }
    await Promise.all([holder.query('begin'), waiter.query('begin')])
    await enqueue(holder, event, { serialize: true })
    const waiting = enqueue(waiter, event, { serialize: true })
    await blocked(server.db(), await backendOf(waiter))
    const pid = await backendOf(holder)
    expect(
      ofCheck(await server.examine({ thresholds: { keyLockMs: 3_600_000 } }), 'server-key-locks'),
    ).toEqual([])
    const [found] = ofCheck(await server.examine({ thresholds: { keyLockMs: 0 } }), 'server-key-locks')
    expect(found).toMatchObject({
      severity: 'warning',
      text: expect.stringMatching(
        new RegExp(
          `^The session with pid ${pid} \\(role postgres.+\\) holds the lock of an ordering key, for which 1 transaction`,
        ),
      ),
    })
    await server.asAdmin(...(found?.repair ?? []))
    await waiting
    await waiter.query('commit')
  })
})

describe('vacuum', () => {
  const AT_ONCE: ExamineOptions = { thresholds: { oldTransactionMs: 0, deadRows: 100, vacuumedMs: 0 } }

  it('a session with an old snapshot is found with its pid, and the printed repair ends it', async () => {
    const session = new Client({ connectionString: server.url(), application_name: 'a report' })
    session.on('error', () => undefined)
    await session.connect()
    const { rows } = await session.query<{ pid: number }>('select pg_backend_pid() as pid')
    await session.query('begin isolation level repeatable read')
    await session.query('select count(*) from leasehold.outbox')
    const found = only(await server.examine(AT_ONCE))
    expect(found).toMatchObject({ check: 'vacuum-snapshots' })
    expect(found.text).toContain(`pid ${rows[0]?.pid} (a report, role owner, idle in transaction)`)
    await server.repair(found)
    await vi.waitFor(async () => expect((await server.examine(AT_ONCE)).findings).toEqual([]))
    await session.end().catch(() => undefined)
  })

  it('a VACUUM that takes long is not taken for a snapshot that holds it back', async () => {
    await server.asAdmin(
      'grant pg_read_all_stats to owner',
      'create table public.large (n int) with (autovacuum_enabled = off)',
      'insert into public.large select generate_series(1, 200000)',
      'delete from public.large',
    )
    const watching = await openSession(server.adminUrl())
    const vacuuming = await openSession(server.adminUrl())
    // It stops for a tenth of a second at each page.
    await vacuuming.query('set vacuum_cost_delay = 100; set vacuum_cost_limit = 1')
    const ended = vacuuming.query('vacuum public.large').catch(() => undefined)
    const find = async (): Promise<number | undefined> => {
      const { rows } = await watching.query<{ pid: number }>(
        `select pid from pg_stat_activity where backend_xmin is not null and query = 'vacuum public.large'`,
      )
      return rows[0]?.pid
    }
    await vi.waitFor(async () => expect(await find()).toBeDefined())
    const found = ofCheck(await server.examine(AT_ONCE), 'vacuum-snapshots')
    const pid = await find()
    await watching.query(`select pg_cancel_backend(${pid})`)
    await ended
    expect(pid).toBeDefined()
    expect(found).toEqual([])
    await server.asAdmin('drop table public.large', 'revoke pg_read_all_stats from owner')
  })

  it('a standby whose queries hold back vacuum is found', async () => {
    const primary = await startServer()
    onTestFinished(async () => primary.remove())
    await primary.stop('fast')
    const standby = await startServer({
      copyOf: primary,
      standbyOf: primary,
      settings: { hot_standby_feedback: 'on', wal_receiver_status_interval: '1' },
    })
    onTestFinished(async () => standby.remove())
    await primary.start()
    const db = openDatabase({ url: primary.url })
    onTestFinished(async () => db.close())
    const thresholds = { standbyTransactions: 0 }
    await vi.waitFor(
      async () =>
        expect(ofCheck(await examine(db, { thresholds }), 'vacuum-snapshots')).toMatchObject([
          { text: expect.stringMatching(/^The standby standby \(127\.0\.0\.1\) says that it needs rows/) },
        ]),
      { timeout: 60_000 },
    )
    expect(ofCheck(await examine(db), 'vacuum-snapshots')).toEqual([])
  })

  it('a prepared transaction is found', async () => {
    await server.asAdmin(
      'begin',
      `insert into leasehold.inbox (consumer, event_id) values ('c', gen_random_uuid())`,
      `prepare transaction 'order 7'`,
    )
    const found = ofCheck(await server.examine(AT_ONCE), 'vacuum-prepared-transactions')
    expect(found[0]?.text).toContain(`The transaction 'order 7' of postgres has been prepared since`)
    await server.asAdmin(`rollback prepared 'order 7'`)
    expect((await server.examine(AT_ONCE)).findings).toEqual([])
  })

  it('a replication slot that nobody uses is found when it keeps much, and nothing is printed that drops it', async () => {
    await server.asAdmin(`select pg_create_physical_replication_slot('standby_9', true)`)
    expect((await server.examine()).findings).toEqual([])
    const found = only(await server.examine({ thresholds: { slotBytes: 0 } }))
    expect(found).toMatchObject({ check: 'vacuum-replication-slots', severity: 'warning' })
    expect(found.repair).toBeUndefined()
    await server.asAdmin(`select pg_drop_replication_slot('standby_9')`)
  })

  it('an old transaction id is found', async () => {
    const found = only(await server.examine({ thresholds: { transactionAge: 1 } }))
    expect(found).toMatchObject({ check: 'vacuum-wraparound', repair: ['vacuum (freeze)'] })
  })

  it('dead rows that nobody has vacuumed are found, and the printed repair removes them', async () => {
    await makeEvents(server.db(), 300)
    const session = await openSession(server.url())
    await session.query(
      `update leasehold.outbox set attempts = attempts + 1; select pg_stat_force_next_flush()`,
    )
    const found = await vi.waitFor(async () => {
      const [one] = ofCheck(await server.examine(AT_ONCE), 'vacuum-dead-rows')
      expect(one?.text).toContain('The table leasehold.outbox has 300 dead rows')
      return one
    })
    if (found !== undefined) await server.repair(found)
    await vi.waitFor(async () =>
      expect(ofCheck(await server.examine(AT_ONCE), 'vacuum-dead-rows')).toEqual([]),
    )
  })
})

interface MadeWorkers {
  readonly id?: string
  readonly version?: string
  readonly roles?: string
  readonly reaps?: string
  readonly declared?: object
  /** SQL. */
  readonly seen?: string
  readonly died?: string
}

async function addWorkers(count: number, made: MadeWorkers = {}): Promise<void> {
  const { version = await ownVersion(), roles = '{}', reaps = '{}', declared = {}, id = 'worker' } = made
  await server.db().query({
    text: `insert into leasehold.workers (id, host, pid, version, roles, reaps, declared, last_seen_at, died_at, session_pid)
select $1 || '-' || n, 'host', n, $2, $3::text[], $4::text[], $5::jsonb, ${made.seen ?? 'now()'}, ${made.died ?? 'null'}, 1
from generate_series(1, $6::int) as n`,
    values: [id, version, roles, reaps, JSON.stringify(declared), count],
  })
}

async function ownVersion(): Promise<string> {
  const text = await readFile(new URL('../../package.json', import.meta.url), 'utf8')
  return (JSON.parse(text) as { version: string }).version
}

describe('workers', () => {
  it('RULE-020-020: a table that is worked on, or has rows in flight, and that nobody reaps is found', async () => {
    await addWorkers(1, { roles: '{outbox}' })
    expect(only(await server.examine())).toMatchObject({
      check: 'workers-reaper',
      text: expect.stringContaining('No reaper is alive for leasehold.outbox:'),
    })
    await server.asAdmin('truncate leasehold.workers')
    await makeEvents(server.db(), 1, { status: 'CLAIMED' })
    expect(only(await server.examine()).text).toContain('leasehold.outbox, which has rows in flight')
    await addWorkers(1, { reaps: '{leasehold.outbox}' })
    expect((await server.examine()).findings).toEqual([])
  })

  it('a table of a worker that has a name of its own and that nobody reaps is found', async () => {
    await server.db().query({
      text: 'create table public.payments (id bigint primary key, status text, lease_owner text, lease_until timestamptz, lease_token bigint not null default 0)',
    })
    onTestFinished(async () => server.asAdmin('drop table public.payments'))
    const table = leaseTable({
      table: 'public.payments',
      claimable: "status = 'new'",
      order: ['id'],
      outcomes: { done: { set: { status: "'paid'" } }, retry: {}, dead: { set: { status: "'dead'" } } },
    })
    const workers = [{ name: 'refunds', role: 'reconcile', table, handle: async () => Promise.resolve() }]
    await addWorkers(1, { roles: '{reconcile}' })
    expect(ofCheck(await server.examine({ workers }), 'workers-reaper')).toEqual([])
    await addWorkers(1, { id: 'other', roles: '{refunds}' })
    expect(ofCheck(await server.examine({ workers }), 'workers-reaper')).toMatchObject([
      { text: expect.stringContaining('No reaper is alive for public.payments:') },
    ])
  })

  it('expired leases that nobody takes back are found', async () => {
    await addWorkers(1, { reaps: '{leasehold.outbox}' })
    await makeEvents(server.db(), 3, { status: 'CLAIMED' })
    await server.asAdmin(`update leasehold.outbox set locked_until = now() - interval '2 minutes'`)
    expect(only(await server.examine())).toMatchObject({
      check: 'workers-expired-leases',
      text: expect.stringContaining(
        '3 leases of leasehold.outbox expired more than 60 s ago, and nobody takes them back',
      ),
    })
  })

  it('processes that are missing, that died, and of another release are found', async () => {
    await addWorkers(1, { id: 'lost', seen: `now() - interval '5 minutes'` })
    await addWorkers(1, { id: 'dead', died: 'now()' })
    await addWorkers(1, { id: 'old', version: '0.0.1' })
    const diagnosis = await server.examine()
    expect(remarksOf(diagnosis)).toEqual([
      expect.stringContaining('workers-missing: The worker process dead-1 (pid 1 on host) died at'),
    ])
    expect(diagnosis.findings.map(({ check, text }) => [check, text.slice(0, 45)])).toEqual([
      ['workers-missing', 'The worker process lost-1 (pid 1 on host) was'],
      ['workers-versions', `Worker processes run 0.0.1, and this is ${await ownVersion()}`.slice(0, 45)],
    ])
  })

  it('a worker that an operator has paused is found, with the command that resumes it', async () => {
    await addWorkers(1, { reaps: '{leasehold.outbox}', declared: { "it's mine": {} } })
    const pause = async (reason: string): Promise<void> =>
      server.asAdmin(
        `update leasehold.workers set paused = '[{"worker": "it''s mine", "table": "public.t", "reason": "${reason}", "since": "2026-01-01T00:00:00Z"}]'`,
        `insert into leasehold.settings (name, value, changed_by) values ('it''s mine', '{"paused": true}', 'x') on conflict do nothing`,
      )
    await pause('unhealthy')
    expect(only(await server.examine()).repair).toBeUndefined()
    await pause('operator')
    const found = only(await server.examine())
    expect(found.text).toContain("The worker it's mine of the process worker-1 has not claimed rows")
    await server.repair(found)
    const { rows } = await server
      .db()
      .query<{ value: object }>({ text: 'select value from leasehold.settings' })
    expect(rows.map(({ value }) => value)).not.toContainEqual({ paused: true })
  })

  it('leases that are too short for what handlers take are found', async () => {
    await addWorkers(1, {
      roles: '{outbox,webhooks}',
      reaps: '{leasehold.outbox,leasehold.webhook_outbox}',
      declared: { outbox: { leaseMs: 1_000 }, webhooks: { leaseMs: 10_000 } },
    })
    await makeEvents(server.db(), 1, { status: 'CLAIMED' })
    await server.asAdmin(`update leasehold.outbox set claimed_at = now() - interval '1 minute'`)
    const endpoint = await makeEndpoint(server.db())
    await makeDeliveries(server.db(), endpoint, 1, { status: 'delivered' })
    await server.asAdmin(
      'update leasehold.webhook_outbox set last_duration_ms = 25000',
      'update leasehold.webhook_endpoints set timeout_ms = 40000',
    )
    const found = ofCheck(await server.examine(), 'workers-lease-time')
    expect(found.map(({ text }) => text)).toEqual([
      expect.stringContaining('1 event has been in flight for more than two leases of 1000 ms'),
      expect.stringContaining('an attempt took 25000 ms'),
      expect.stringContaining(`${endpoint} (40000 ms)`),
    ])
  })

  it('the conditions of a declared table are read with the search_path of the role', async () => {
    await server.db().query({
      text: `create function public.is_new(status text) returns boolean language sql immutable return status = 'new';
create table public.emails (id bigint primary key, status text not null default 'new', lease_owner text, lease_until timestamptz, lease_token bigint);
insert into public.emails (id, lease_owner, lease_until, lease_token) values (1, 'gone', now() - interval '1 hour', 1)`,
    })
    onTestFinished(async () => server.asAdmin('drop table public.emails', 'drop function public.is_new'))
    const table = leaseTable({
      table: 'public.emails',
      claimable: 'is_new(status)',
      outcomes: { done: { set: { status: "'sent'" } } },
    })
    const { findings } = await server.examine({
      workers: [{ name: 'emails', table, handle: async () => Promise.resolve() }],
    })
    expect(JSON.stringify(findings)).not.toMatch(/function is_new|does not exist|could not be made/)
    expect(findings.map(({ check }) => check)).toContain('workers-expired-leases')
  })

  it('a declared lease table that does not fit is found, and the printed repair mends it', async () => {
    await server.db().query({
      text: `create table public.emails (id bigint primary key, status text not null default 'new', created_at timestamptz default now(),
  lease_owner text, lease_until timestamptz, attempts int not null default 0, last_error text);
create index on public.emails (created_at, id) where status = 'new'`,
    })
    onTestFinished(async () => server.asAdmin('drop table public.emails'))
    const table = leaseTable({
      table: 'public.emails',
      claimable: "status = 'new'",
      order: ['created_at', 'id'],
      attempts: { max: 3, expiries: false },
      outcomes: { done: { set: { status: "'sent'" } }, retry: {}, dead: { set: { status: "'dead'" } } },
    })
    const workers = [{ name: 'emails', table, handle: async () => Promise.resolve() }]
    // A column is missing, and then an index for the reaper.
    for (const severity of ['error', 'warning']) {
      const found = only(await server.examine({ workers }))
      expect(found).toMatchObject({ check: 'workers-lease-tables', severity })
      expect(found.repair?.length).toBeGreaterThan(0)
      await server.repair(found)
    }
    expect((await server.examine({ workers })).findings).toEqual([])
  })
})

describe('rows', () => {
  it('dead rows, suspects, and keys that are held up are found', async () => {
    const db = server.db()
    await makeEvents(db, 1, {
      status: 'DEAD',
      parked: true,
      key: `'customer 1'`,
      attempts: 3,
      error: 'refused',
    })
    await makeEvents(db, 2, { key: `'customer 1'` })
    await makeEvents(db, 1, { expiries: 2 })
    await makeDeliveries(db, await makeEndpoint(db), 2, { status: 'failed' })
    const few = await server.examine()
    expect(ofCheck(few, 'rows-dead')).toEqual([])
    expect(remarksOf(few)).toEqual([
      expect.stringContaining('rows-dead: 1 event of the outbox is dead. See why with'),
      expect.stringContaining('rows-dead: 2 deliveries of webhooks have failed for good. See why with'),
    ])
    const { findings } = await server.examine({ thresholds: { deadLetters: 1 } })
    expect(findings.map(({ check, text }) => `${check}: ${text}`)).toEqual([
      'rows-dead: 1 event of the outbox is dead.',
      'rows-dead: 2 deliveries of webhooks have failed for good.',
      expect.stringContaining('rows-suspects: 1 event waits whose lease has expired twice or more'),
      'rows-held-up: The ordering key "customer 1" is parked by the event 1, which failed 3 times (refused); 2 events wait for it.',
    ])
    expect(findings.at(-1)?.repair).toEqual([
      `leasehold outbox unblock --replay --reason '…' -- 'customer 1'`,
      `leasehold outbox unblock --reason '…' -- 'customer 1'`,
    ])
  })

  it.each(['--replay', `it's  $HOME`, '$(exit 7) `exit 7`; exit 7'])(
    'each printed command concerns the key %j whatever is in it, and the schema that was examined',
    async (key) => {
      const schema = 'billing'
      const db = server.db()
      await migrate(db, { schema })
      onTestFinished(async () => server.asAdmin(`drop schema ${schema} cascade`))
      const hold = async (): Promise<Finding> => {
        await server.asAdmin(`delete from ${schema}.outbox`)
        await db.query({
          text: `insert into ${schema}.outbox (event_type, payload, ordering_key, status, parked, attempts, dead_at) values ('t', '{}', $1, 'DEAD', true, 3, now())`,
          values: [key],
        })
        const [found] = ofCheck(await server.examine({ schema }), 'rows-held-up')
        if (found === undefined) throw new Error('no key is held up')
        return found
      }
      const statuses: string[] = []
      for (const nth of [0, 1]) {
        const { repair = [], ...found } = await hold()
        await server.repair({ ...found, repair: repair.slice(nth, nth + 1) })
        const { rows } = await db.query<{ state: string }>({
          text: `select status || case when parked then ' parked' else '' end as state from ${schema}.outbox`,
        })
        statuses.push(...rows.map(({ state }) => state))
      }
      expect(statuses).toEqual(['PENDING', 'DEAD'])
      await makeOthers(db, schema)
      const { findings } = await server.examine({ schema })
      const commands = findings.flatMap(({ repair = [] }) =>
        repair.filter((step) => step.startsWith('leasehold ')),
      )
      expect(commands.map((command) => command.split(' ').slice(1, 4).join(' '))).toEqual([
        'roles --schema billing',
        'work --only reaper',
        'webhooks endpoints delete',
      ])
      for (const command of commands) {
        const args = await argumentsOf(command)
        expect(args[args.indexOf('--schema') + 1]).toBe(schema)
      }
    },
  )

  async function makeOthers(db: Database, schema: string): Promise<void> {
    await db.query({
      text: `drop policy leasehold_tenant on ${schema}.audit;
insert into ${schema}.outbox (event_type, payload, status, claimed_by, locked_until, claimed_at, lock_token) values ('t', '{}', 'CLAIMED', 'w', now() + interval '1 hour', now(), 1);
insert into ${schema}.webhook_endpoints (url, secret, enabled, disabled_reason, disabled_at)
values ('https://receiver.example', 'enc1.x', false, 'answered with HTTP 410 Gone', now())`,
    })
  }

  it('secrets that the given key cannot decrypt, and damaged ones, are found', async () => {
    const { id } = await addEndpoint(server.db(), 'https://receiver.example/hook', { timeout_ms: 1_000 })
    expect((await server.examine({ secretKey: SECRET_KEY })).findings).toEqual([])
    const other = only(await server.examine({ secretKey: Buffer.alloc(32, 9).toString('base64') }))
    expect(other).toMatchObject({ check: 'webhooks-secrets', severity: 'error' })
    expect(other.text).toContain(`LEASEHOLD_SECRET_KEY is not the key`)
    expect(other.text).toContain(id)
    const both = `${Buffer.alloc(32, 9).toString('base64')},${SECRET_KEY}`
    expect((await server.examine({ secretKey: both })).findings).toEqual([])
    await server.asAdmin(
      `update leasehold.webhook_endpoints set previous_secret = 'enc1.damaged', previous_secret_until = now() + interval '1 day'`,
    )
    expect(only(await server.examine({ secretKey: SECRET_KEY }))).toMatchObject({
      severity: 'warning',
      text: expect.stringMatching(
        new RegExp(`^The previous secrets .+ ${id}\\. Deliveries are signed with the current one alone`),
      ),
    })
    await server.asAdmin(`update leasehold.webhook_endpoints set secret = 'enc1.damaged'`)
    expect(only(await server.examine({ secretKey: SECRET_KEY })).text).toContain('are damaged')
    const { checks } = await server.examine()
    expect(checks.find((check) => check.id === 'webhooks-secrets')?.skipped).toBe('no secret key was given')
  })

  it('endpoints that have failed for long, or want no more, are found without their tokens', async () => {
    const failing = await makeEndpoint(server.db(), { url: 'https://receiver.example/hook?token=geheim' })
    await server.asAdmin(
      `update leasehold.webhook_endpoints set failing_since = now() - interval '2 hours', open_until = now() + interval '1 hour', failures = 7`,
    )
    await makeEndpoint(server.db(), { disabledReason: 'answered with HTTP 410 Gone' })
    await makeEndpoint(server.db(), { disabledReason: 'an operator did it' })
    const { findings } = await server.examine()
    expect(findings.map(({ check }) => check)).toEqual(['webhooks-endpoints', 'webhooks-endpoints'])
    expect(findings[0]?.text).toContain(`${failing} (https://receiver.example/hook) has been failing since`)
    expect(JSON.stringify(findings)).not.toContain('geheim')
  })

  it('rows that retention should have deleted are found, by the retention that is declared', async () => {
    const days = (n: number): number => n * 86_400_000
    await makeEvents(server.db(), 1, { status: 'PUBLISHED', agoMs: days(9) })
    expect(only(await server.examine())).toMatchObject({ check: 'rows-retention' })
    // A process is alive that may have been started with another retention.
    await addWorkers(1, { reaps: '{leasehold.outbox}' })
    expect((await server.examine()).findings).toEqual([])
    const workers = (publishedMs: number | null): ExamineOptions => ({
      workers: [relay({ publisher: recording(), retention: { publishedMs } })] as never,
    })
    expect((await server.examine(workers(days(30)))).findings).toEqual([])
    expect((await server.examine(workers(null))).findings).toEqual([])
    expect(only(await server.examine(workers(days(1)))).text).toContain('are retained for 1 day.')
  })

  it('a number of buckets whose raise is unfinished is found, and the printed repair ends it', async () => {
    const db = server.db()
    await migrate(db, { schema: 'raised', buckets: 4 })
    onTestFinished(async () => server.asAdmin('drop schema raised cascade'))
    await db.query({
      text: `select raised.enqueue('t', '{}', 'key ' || n) from generate_series(1, 20) as n`,
    })
    await migrate(db, { schema: 'raised', buckets: 8 })
    const found = only(await server.examine({ schema: 'raised' }))
    expect(found).toMatchObject({ check: 'schema-buckets', severity: 'warning' })
    expect(found.text).toContain('raised from 4 to 8')
    await server.asAdmin('delete from raised.outbox')
    await server.repair(found)
    expect((await server.examine({ schema: 'raised' })).findings).toEqual([])
  })
})

describe('what goes wrong', () => {
  it('a reader sees everything but secrets and the sessions of others, and is told so', async () => {
    // The owner of this schema is no superuser, and could not grant pg_read_all_stats.
    await server.asAdmin(`create role a_reader login password 'only-for-this-test' in role leasehold_reader`)
    onTestFinished(async () => server.asAdmin('drop role a_reader'))
    const url = new URL(server.adminUrl())
    url.username = 'a_reader'
    url.password = 'only-for-this-test'
    const db = openDatabase({ url: url.href, maxConnections: 2 })
    onTestFinished(async () => db.close())
    const session = await openSession(server.adminUrl())
    await session.query('begin isolation level repeatable read; select 1')
    const { findings, checks } = await examine(db, { secretKey: SECRET_KEY })
    const notMade = findings.filter(({ text }) => text.startsWith('The check could not be made'))
    expect(notMade.map(({ check }) => check)).toEqual(['webhooks-secrets'])
    expect(notMade[0]?.text).toContain('permission denied for table webhook_endpoints')
    expect(checks.find(({ id }) => id === 'vacuum-snapshots')?.notSeen).toContain('pg_read_all_stats')
    expect(checks.filter(({ id }) => id.startsWith('schema-')).every(({ ok }) => ok)).toBe(true)
  })

  it('a check that fails is a finding, and the others are made', async () => {
    await server.asAdmin('alter table leasehold.webhook_endpoints rename column failing_since to since')
    const { findings, checks } = await server.examine()
    const [found] = ofCheck({ findings, checks }, 'webhooks-endpoints')
    expect(found?.text).toContain('The check could not be made')
    expect(found?.text).toContain('failing_since')
    expect(ofCheck({ findings, checks }, 'schema-tables')).toHaveLength(1)
    expect(checks).toHaveLength(CHECKS.length)
    await server.asAdmin('alter table leasehold.webhook_endpoints rename column since to failing_since')
  })

  it('a check that is ignored is not made, and one that does not exist is refused', async () => {
    await server.asAdmin('alter role owner set synchronous_commit = off')
    const { findings, checks } = await server.examine({ ignore: ['server-durability'] })
    expect(findings).toEqual([])
    expect(checks.find(({ id }) => id === 'server-durability')?.skipped).toBe('it is ignored')
    await expect(server.examine({ ignore: ['server-speed'] })).rejects.toMatchObject({
      code: 'SETTING_INVALID',
      message: expect.stringMatching(/"server-speed".+Use some of: schema-migrations, /),
    })
  })

  it('when the time is over, each check that was not made says so', async () => {
    const { findings } = await server.examine({ timeoutMs: 0 })
    expect(findings).toHaveLength(CHECKS.length)
    expect(findings[0]?.text).toContain('The other checks took all of the time.')
  })

  it('a table that somebody has locked does not keep the examination waiting', async () => {
    const session = await openSession(server.adminUrl())
    await session.query('begin; lock table leasehold.webhook_endpoints in access exclusive mode')
    const { findings, checks } = await server.examine({ timeoutMs: 60_000 })
    await session.query('rollback')
    expect(checks).toHaveLength(CHECKS.length)
    expect(ofCheck({ findings, checks }, 'webhooks-endpoints')[0]?.text).toContain('could not be made')
    expect(ofCheck({ findings, checks }, 'rows-dead')).toEqual([])
  })
})
