/** Each role does its work through the library, the command line and a real worker process, and is refused everything else. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Client } from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { enqueue, once } from '../src/outbox/index.ts'
import { openDatabase, type Database } from '../src/postgres/index.ts'
import { ROLE_KINDS } from '../src/postgres/permissions.ts'
import { createSync } from '../src/sync/index.ts'
import { dispatcher, endpoints, send } from '../src/webhooks/index.ts'
import { changeSettings, startRuntime } from '../src/worker/index.ts'
import { callLeasehold, type Called } from './support/command-line.ts'
import { openSession, useDatabase } from './support/database.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { useLoginRoles } from './support/login-roles.ts'
import { useProcesses } from './support/processes.ts'
import { useReceivers } from './support/receiver.ts'
import { addEndpoint, SECRET_KEY } from './support/webhook-endpoints.ts'

const { spawnNode } = useProcesses()
const receiver = useReceivers()
const database = useDatabase()
const logins = useLoginRoles(database)
const db = openDatabase({ url: database.url })
const opened: Database[] = []
const POLL = { timeout: 120_000, interval: 50 }
const PATIENCE = 300_000
let directory = ''

beforeAll(async () => {
  directory = await temporaryDirectory()
})
afterAll(async () => {
  await Promise.all([db, ...opened].map(async (one) => one.close()))
  await removeDirectory(directory)
})

type Who = keyof typeof logins

function as(who: Who): Database {
  const one = openDatabase({ url: logins[who].url })
  opened.push(one)
  return one
}

async function cli(who: Who, ...args: readonly string[]): Promise<Called> {
  return callLeasehold(args, { databaseUrl: logins[who].url, workingDirectory: directory })
}

async function count(from: string): Promise<number> {
  const { rows } = await db.query<{ count: number }>({ text: `select count(*)::int as count from ${from}` })
  return rows[0]?.count ?? 0
}

const REFUSED = '42501'

/** Hashes of keys, sessions and links, and stored answers. */
const OF_THE_API = ['api_keys', 'api_sessions', 'api_portal_links', 'api_requests'].map(
  (table) => `select from leasehold.${table}`,
)

/** The SQLSTATE with which PostgreSQL itself refuses the statement, without our explanation. */
async function refusalOf(who: Who, text: string): Promise<unknown> {
  const session = await openSession(logins[who].url)
  return session.query(text).then(
    () => 'not refused',
    (error: unknown) => (error as { readonly code: unknown }).code,
  )
}

const sync = createSync()
const defined = sync.define<number>('numbers', { plan: () => [1], syncChunk: async () => ({ rows: 1 }) })

describe('leasehold_producer', () => {
  it('a producer enqueues events, sends webhooks, enqueues jobs and processes events once, through the library and SQL', async () => {
    const producer = as('producer')
    await addEndpoint(db, 'https://receiver.example/hook')
    const eventId = '0190b3a0-0000-7000-8000-00000000000b'
    const event = { type: 'order.paid', payload: { n: 1 }, orderingKey: 'k', eventId }
    expect(await enqueue(producer, event)).toMatchObject({ duplicate: false })
    expect(await enqueue(producer, event)).toMatchObject({ duplicate: true })
    await producer.transaction(async (tx) => enqueue(tx, [{ type: 'a', payload: 1 }], { serialize: true }))
    expect(await send(producer, { type: 'order.paid', payload: 1, eventId })).toMatchObject({ deliveries: 1 })
    expect(await send(producer, { type: 'order.paid', payload: 1, eventId })).toMatchObject({ deliveries: 0 })
    expect(await defined.enqueue(producer, { matrixId: 'm' })).toMatchObject({ created: true })
    expect(await defined.enqueue(producer, { matrixId: 'm' })).toMatchObject({ created: false })
    for (const ran of [true, false]) {
      const result = await producer.transaction(async (tx) => once(tx, 'billing', eventId, () => 1))
      expect(result.ran).toBe(ran)
    }
    for (const text of [
      `select leasehold.enqueue('a', '1', event_id => '${eventId}')`,
      `select leasehold.send_webhook('order.paid', '1')`,
    ])
      await producer.query({ text })
    expect((await cli('producer', 'outbox', 'enqueue', 'a', '1')).code).toBe(0)
  })

  it.each([
    ...['id', 'status', 'attempts', 'expiries', 'lock_token', 'created_at', 'claimed_by', 'parked'].map(
      (column) => `insert into leasehold.outbox (event_type, payload, ${column}) values ('a', '1', default)`,
    ),
    ...['id', 'delivery_status', 'attempts', 'lease_token', 'history', 'created_at'].map(
      (column) =>
        `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, ${column}) values (gen_random_uuid(), 'a', '1', default)`,
    ),
    ...['id', 'attempts', 'lock_token', 'completed_at', 'created_at'].map(
      (column) =>
        `insert into leasehold.sync_jobs (definition, matrix_id, ${column}) values ('d', 'm2', default)`,
    ),
    'select payload from leasehold.outbox',
    'select headers from leasehold.outbox',
    'select body from leasehold.webhook_outbox',
    'select params from leasehold.sync_jobs',
    'select url from leasehold.webhook_endpoints',
    'select secret from leasehold.webhook_endpoints',
    `insert into leasehold.outbox (event_type, payload) values ('a', '1') returning payload`,
    `update leasehold.outbox set payload = '2'`,
    'select id from leasehold.outbox for update',
    'delete from leasehold.outbox',
    'truncate leasehold.outbox',
    `update leasehold.sync_jobs set priority = 9`,
    'select from leasehold.audit',
    'select from leasehold.workers',
    'select from leasehold.settings',
    'select from leasehold.sync_checkpoints',
    ...OF_THE_API,
    'create table leasehold.mine (id int)',
  ])('a producer is refused: %s', async (text) => {
    expect(await refusalOf('producer', text)).toBe(REFUSED)
  })
})

/** A relay, a dispatcher, a runner and the reaper, as `leasehold work` runs them. */
async function workerDirectory(): Promise<string> {
  const home = await temporaryDirectory()
  onTestFinished(async () => removeDirectory(home))
  const dist = new URL('../dist/', import.meta.url).href
  await writeFile(
    join(home, 'leasehold.config.mjs'),
    `import { relay } from '${dist}outbox/index.js'
    import { handlers } from '${dist}outbox/publishers/handlers.js'
    import { createSync } from '${dist}sync/index.js'
    const sync = createSync()
    sync.define('numbers', {
      plan: () => [1, 2, 3],
      syncChunk: async (_, { call }) => { await call(); return { rows: 1 } },
      source: { name: 'office', perSecond: 1000, burst: 10 },
    })
    const publisher = handlers({ bad: () => { throw new Error('no') } }, { otherwise: 'done' })
    export default { workers: [relay({ publisher, retention: { publishedMs: 0 } }), ...sync.runner({ checkEveryMs: 20 })] }`,
  )
  return home
}

describe('leasehold_worker', () => {
  it.each(['worker', 'dispatcher'] as const)(
    'a %s can erase the previous secret of an endpoint, and neither replace it nor let it live longer',
    async (who) => {
      const { id } = await addEndpoint(db, 'https://receiver.example/hook')
      const end = `previous_secret_until = now() + interval '1 day'`
      const change = async (set: string): Promise<unknown> =>
        refusalOf(who, `update leasehold.webhook_endpoints set ${set} where id = '${id}'`)
      expect(await change(`previous_secret = 'captured', ${end}`)).toBe(REFUSED)
      await db.query({
        text: `update leasehold.webhook_endpoints set previous_secret = secret, ${end} where id = $1`,
        values: [id],
      })
      expect(await change(`previous_secret = 'broken'`)).toBe(REFUSED)
      expect(await change(`previous_secret_until = 'infinity'`)).toBe(REFUSED)
      expect(await change('previous_secret = null, previous_secret_until = null')).toBe('not refused')
      await db.query({ text: 'delete from leasehold.webhook_endpoints where id = $1', values: [id] })
    },
  )

  it(
    'a worker process publishes, syncs, reaps and applies retention, and a dispatcher delivers, each without any other privilege',
    async () => {
      await db.query({
        text: 'truncate leasehold.outbox, leasehold.webhook_outbox, leasehold.webhook_endpoints',
      })
      const shop = await receiver()
      const { id } = await addEndpoint(db, shop.url)
      await db.query({
        text: `update leasehold.webhook_endpoints set previous_secret = secret, previous_secret_until = now() - interval '1 day' where id = $1`,
        values: [id],
      })
      // A lease that expired under a process that is not there any more, once with its last attempt.
      await db.query({
        text: `insert into leasehold.outbox (event_type, payload, status, attempts, max_attempts, claimed_at, claimed_by, locked_until, lock_token)
select 'late', '1', 'CLAIMED', n, 2, now(), 'vanished', now() - interval '1 minute', 1 from generate_series(0, 1) as n`,
      })
      // Retention runs at the start, and again a minute later.
      await db.query({
        text: `insert into leasehold.outbox (event_type, payload, status, published_at) values ('old', '1', 'PUBLISHED', now() - interval '1 minute')`,
      })
      const home = await workerDirectory()
      // Without a key for secrets it runs no dispatcher.
      const worker = spawnNode('dist/cli/main.js', ['work'], {
        cwd: home,
        env: { DATABASE_URL: logins.worker.url, LEASEHOLD_PORT: '', LEASEHOLD_LOG_LEVEL: 'info' },
      })
      onTestFinished(async () => void (await worker.kill('SIGKILL')))
      const delivering = spawnNode('dist/cli/main.js', ['work', '--only', 'webhooks', '--no-http'], {
        cwd: home,
        env: {
          DATABASE_URL: logins.dispatcher.url,
          LEASEHOLD_SECRET_KEY: SECRET_KEY,
          LEASEHOLD_WEBHOOK_ALLOW: '127.0.0.0/8',
          LEASEHOLD_LOG_LEVEL: 'info',
        },
      })
      onTestFinished(async () => void (await delivering.kill('SIGKILL')))
      const line = await worker.line((text) => text.startsWith('  HTTP'))
      const producer = as('producer')
      await enqueue(producer, [
        { type: 'good', payload: 1 },
        { type: 'good', payload: 2, orderingKey: 'k' },
      ])
      await enqueue(producer, { type: 'bad', payload: 3, maxAttempts: 1 })
      await send(producer, { type: 'order.paid', payload: 1 })
      await defined.enqueue(producer, { matrixId: 'other' })
      await shop.reached(1)
      await vi.waitFor(
        async () => expect(await count(`leasehold.outbox where event_type = 'old'`)).toBe(0),
        POLL,
      )
      // Of the expired ones one is dead, like the bad one. Retention may have removed the others already.
      const open = `leasehold.outbox where status not in ('PUBLISHED', 'DEAD')`
      await vi.waitFor(async () => expect(await count(open)).toBe(0), POLL)
      expect(await count(`leasehold.outbox where status = 'DEAD'`)).toBe(2)
      await vi.waitFor(
        async () =>
          expect(await count(`leasehold.webhook_outbox where delivery_status = 'delivered'`)).toBe(1),
        POLL,
      )
      await vi.waitFor(
        async () => expect(await count(`leasehold.sync_jobs where completed_at is not null`)).toBe(2),
        POLL,
      )
      await vi.waitFor(
        async () =>
          expect(await count('leasehold.webhook_endpoints where previous_secret is not null')).toBe(0),
        POLL,
      )
      const ready = await fetch(`${line.trim().split(/\s+/).at(-1)}/readyz?verbose`)
      expect([ready.status, await ready.text()]).toEqual([200, expect.stringContaining('ok')])
      for (const process of [worker, delivering]) {
        expect(await process.kill('SIGTERM')).toEqual({ code: 0, signal: null })
        expect(process.output().stderr).not.toMatch(/denied|trouble|PERMISSION/)
      }
    },
    PATIENCE,
  )

  it.each([
    `insert into leasehold.outbox (event_type, payload) values ('a', '1')`,
    `update leasehold.outbox set payload = '2'`,
    `update leasehold.outbox set created_at = now()`,
    `update leasehold.webhook_outbox set body = '2'`,
    `update leasehold.webhook_endpoints set url = 'https://evil.example'`,
    `update leasehold.webhook_endpoints set secret = 'mine'`,
    `insert into leasehold.webhook_endpoints (url, secret) values ('https://evil.example', 's')`,
    ...['url', 'headers', 'secret', 'previous_secret'].map(
      (column) => `select ${column} from leasehold.webhook_endpoints`,
    ),
    'update leasehold.webhook_endpoints set enabled = false',
    'update leasehold.webhook_endpoints set previous_secret = secret',
    ...OF_THE_API,
    'delete from leasehold.webhook_endpoints',
    `insert into leasehold.sync_jobs (definition, matrix_id) values ('d', 'm3')`,
    `update leasehold.sync_jobs set params = '{}'`,
    `insert into leasehold.settings (name, value, changed_by) values ('outbox', '{}', 'me')`,
    `insert into leasehold.audit (principal, action) values ('somebody', 'outbox.replay')`,
    'select principal from leasehold.audit',
    `update leasehold.audit set principal = 'somebody'`,
    'truncate leasehold.audit',
    'truncate leasehold.outbox',
    'create table leasehold.mine (id int)',
  ])('a worker is refused: %s', async (text) => {
    expect(await refusalOf('worker', text)).toBe(REFUSED)
  })
})

describe('leasehold_dispatcher', () => {
  it.each([
    `update leasehold.webhook_endpoints set url = 'https://evil.example'`,
    `update leasehold.webhook_endpoints set secret = 'mine'`,
    `update leasehold.webhook_endpoints set headers = '{}'`,
    'delete from leasehold.webhook_endpoints',
    `update leasehold.webhook_outbox set body = '2'`,
    `insert into leasehold.outbox (event_type, payload) values ('a', '1')`,
    'select principal from leasehold.audit',
    ...OF_THE_API,
    'create table leasehold.mine (id int)',
  ])('a dispatcher is refused: %s', async (text) => {
    expect(await refusalOf('dispatcher', text)).toBe(REFUSED)
  })

  it('a dispatcher whose role may not read secrets names the GRANT and does not start, before there is an endpoint', async () => {
    await db.query({ text: 'delete from leasehold.webhook_endpoints' })
    const started = startRuntime({
      databaseUrl: logins.worker.url,
      log: false,
      workers: [dispatcher({ secretKey: SECRET_KEY })],
    })
    await expect(started).rejects.toThrow(`Run: GRANT leasehold_dispatcher TO ${logins.worker.name};`)
  })
})

it('a worker deletes entries of the audit that are older than 30 days, and none that is younger', async () => {
  const add = `insert into leasehold.audit (principal, action, at) values ('olga', $1, now() - $2::interval)`
  await db.query({ text: add, values: ['old', '31 days'] })
  await db.query({ text: add, values: ['young', '29 days'] })
  const RESTRICT_VIOLATION = '23001'
  expect(await refusalOf('worker', 'delete from leasehold.audit')).toBe(RESTRICT_VIOLATION)
  const young = `delete from leasehold.audit where at > now() - interval '30 days'`
  expect(await refusalOf('worker', young)).toBe(RESTRICT_VIOLATION)
  expect(await count(`leasehold.audit where action in ('old', 'young')`)).toBe(2)
  const old = `delete from leasehold.audit where at < now() - interval '30 days'`
  expect(await refusalOf('worker', old)).toBe('not refused')
  expect(await count(`leasehold.audit where action = 'old'`)).toBe(0)
  expect(await count(`leasehold.audit where action = 'young'`)).toBe(1)
})

describe('leasehold_reader', () => {
  it.each([
    [['status']],
    [['outbox', 'list']],
    [['webhooks', 'list']],
    [['webhooks', 'endpoints', 'list']],
    [['sync', 'list']],
    [['sync', 'status']],
  ])('a reader runs leasehold %s', async (args) => {
    const { code, stderr } = await cli('reader', ...args)
    expect([code, stderr]).toEqual([0, ''])
  })

  it('a reader sees one endpoint without its secret', async () => {
    const { id } = await addEndpoint(db, 'https://shown.example/hook')
    const { code, stdout, stderr } = await cli('reader', 'webhooks', 'endpoints', 'show', id)
    expect([code, stderr]).toEqual([0, ''])
    expect(stdout).toContain('https://shown.example/hook')
  })

  it.each([
    'select secret from leasehold.webhook_endpoints',
    'select previous_secret from leasehold.webhook_endpoints',
    'select * from leasehold.webhook_endpoints',
    ...OF_THE_API,
    `update leasehold.outbox set parked = false`,
    'select id from leasehold.outbox for update',
    'delete from leasehold.audit',
    `insert into leasehold.settings (name, value, changed_by) values ('outbox', '{}', 'me')`,
    `select leasehold.enqueue('a', '1')`,
    'create table leasehold.mine (id int)',
  ])('a reader is refused: %s', async (text) => {
    expect(await refusalOf('reader', text)).toBe(REFUSED)
  })
})

describe('leasehold_operator', () => {
  it('an operator replays, cancels, unblocks and changes settings and endpoints, and all of it is in the audit', async () => {
    await db.query({
      text: 'truncate leasehold.outbox, leasehold.webhook_outbox, leasehold.sync_jobs cascade',
    })
    const operator = as('operator')
    const managed = endpoints(operator, { secretKey: SECRET_KEY })
    const by = { principal: 'olga', reason: 'a test' }
    const { endpoint } = await managed.create(
      { url: 'https://receiver.example/two', headers: { 'x-a': 'b' } },
      by,
    )
    await managed.rotateSecret(endpoint.id, by)
    await managed.update(endpoint.id, { description: 'changed' }, by)
    await managed.disable(endpoint.id, by)
    await managed.enable(endpoint.id, by)
    await managed.reencryptSecrets(by)
    await db.query({
      text: `insert into leasehold.outbox (event_type, payload, status, dead_at, ordering_key, parked)
values ('a', '1', 'DEAD', now(), null, false), ('a', '1', 'DEAD', now(), 'parked', true)`,
    })
    await db.query({
      text: `insert into leasehold.outbox (event_type, payload, ordering_key, attempts) values ('a', '1', 'failing', 1)`,
    })
    await db.query({
      text: `insert into leasehold.webhook_outbox (endpoint_id, event_type, body, delivery_status, failed_at)
values ('${endpoint.id}', 'a', '1', 'failed', now()), ('${endpoint.id}', 'a', '1', 'pending', null)`,
    })
    await db.query({
      text: `insert into leasehold.sync_jobs (definition, matrix_id, failed_at) values ('numbers', 'failed', now()), ('numbers', 'open', null)`,
    })
    for (const args of [
      ['outbox', 'unblock', 'parked'],
      ['outbox', 'unblock', 'failing'],
      ['outbox', 'replay', '--type', 'a', '--status', 'DEAD'],
      ['webhooks', 'cancel', '--endpoint', endpoint.id],
      ['webhooks', 'replay', '--endpoint', endpoint.id],
      ['sync', 'cancel', '--matrix', 'open'],
      ['sync', 'replay', '--matrix', 'failed'],
    ]) {
      const sure = args.includes('unblock') ? [] : ['--yes']
      const called = await cli('operator', ...args, '--reason', 'a test', ...sure)
      expect([called.code, called.stderr], args.join(' ')).toEqual([0, ''])
    }
    expect(await count(`leasehold.webhook_outbox where delivery_status = 'pending'`)).toBe(2)
    await changeSettings(operator, 'leasehold', 'outbox', { paused: true }, 'olga')
    await changeSettings(operator, 'leasehold', 'outbox', { paused: null }, 'olga')
    await managed.delete(endpoint.id, by)
    const { rows } = await db.query<{ action: string }>({
      text: 'select distinct action from leasehold.audit order by 1',
    })
    expect(rows.map(({ action }) => action)).toEqual(
      expect.arrayContaining([
        'outbox.replay',
        'outbox.unblock',
        'settings.change',
        'sync.cancel',
        'webhooks.endpoint.delete',
      ]),
    )
  })

  it.each([
    `update leasehold.outbox set payload = '2'`,
    `update leasehold.outbox set event_id = gen_random_uuid()`,
    `insert into leasehold.outbox (event_type, payload) values ('a', '1')`,
    'delete from leasehold.outbox',
    `update leasehold.webhook_outbox set body = '2'`,
    `update leasehold.webhook_outbox set lease_token = lease_token + 1`,
    `update leasehold.sync_jobs set params = '{}'`,
    `update leasehold.audit set principal = 'somebody else'`,
    'delete from leasehold.audit',
    `insert into leasehold.audit (principal, action, at) values ('me', 'x', now() - interval '1 year')`,
    `update leasehold.workers set died_at = now()`,
    ...OF_THE_API,
    'create table leasehold.mine (id int)',
    'alter table leasehold.outbox add column mine int',
    'drop table leasehold.outbox',
    'truncate leasehold.audit',
  ])('an operator is refused: %s', async (text) => {
    expect(await refusalOf('operator', text)).toBe(REFUSED)
  })
})

describe('a missing privilege', () => {
  const stranger = logins.stranger.name

  it('enqueue names the role, the object and the GRANT, with pg, with postgres.js and with a Database', async () => {
    const expected = {
      code: 'PERMISSION_DENIED',
      message: `The database role ${stranger} lacks a privilege: permission denied for schema leasehold. Run: GRANT leasehold_producer TO ${stranger}; (if your roles have another prefix: <prefix>_producer). \`leasehold roles\` creates that role and its privileges.`,
      cause: { code: '42501' },
    }
    const event = { type: 'a', payload: 1 }
    const client = await openSession(logins.stranger.url)
    await expect(enqueue(client, event)).rejects.toMatchObject(expected)
    await expect(enqueue(as('stranger'), event)).rejects.toMatchObject(expected)
    const transaction = as('stranger').transaction(async (tx) => enqueue(tx, event))
    await expect(transaction).rejects.toMatchObject(expected)
    const sql = postgres(logins.stranger.url, { max: 1 })
    onTestFinished(async () => sql.end())
    await expect(enqueue(sql, event)).rejects.toMatchObject(expected)
    await expect(send(as('stranger'), event)).rejects.toMatchObject(expected)
    await expect(defined.enqueue(as('stranger'), { matrixId: 'm' })).rejects.toMatchObject(expected)
  })

  it('a refused change names the role of an operator, a refused list that of a reader, and a refused migration the owner', async () => {
    await db.query({
      text: `insert into leasehold.outbox (event_type, payload, status, dead_at) values ('a', '1', 'DEAD', now())`,
    })
    const replayed = await cli('reader', 'outbox', 'replay', '--type', 'a', '--reason', 'r', '--yes')
    expect(replayed.code).toBe(1)
    expect(replayed.stderr).toContain(
      `The database role ${logins.reader.name} lacks a privilege: permission denied for table outbox. Run: GRANT leasehold_operator TO ${logins.reader.name};`,
    )
    for (const command of [
      ['outbox', 'replay', '--type', 'a', '--yes'],
      ['outbox', 'retry', '1'],
      ['webhooks', 'cancel', '1'],
      ['sync', 'cancel', '1'],
    ]) {
      const { stderr } = await cli('stranger', ...command, '--reason', 'r')
      expect(stderr, command.join(' ')).toContain(`GRANT leasehold_operator TO ${stranger};`)
    }
    const withKey = await temporaryDirectory()
    onTestFinished(async () => removeDirectory(withKey))
    await writeFile(join(withKey, 'leasehold.config.mjs'), `export default { secretKey: '${SECRET_KEY}' }`)
    const id = '0190b3a0-0000-7000-8000-00000000000c'
    for (const [command = '', ...args] of [
      ['create', 'https://receiver.example/hook'],
      ['update', id, '--url', 'https://receiver.example/other'],
      ['rotate', id],
      ['encrypt'],
      ['enable', id],
      ['disable', id],
      ['delete', id, '--yes'],
    ]) {
      const { stderr } = await callLeasehold(['webhooks', 'endpoints', command, ...args], {
        databaseUrl: logins.stranger.url,
        workingDirectory: withKey,
      })
      expect(stderr, command).toContain(`GRANT leasehold_operator TO ${stranger};`)
    }
    const shown = await cli('stranger', 'webhooks', 'endpoints', 'show', id)
    expect(shown.stderr).toContain(`GRANT leasehold_reader TO ${stranger};`)
    const migrated = await cli('stranger', 'migrate')
    expect(migrated.stderr).toContain('Run it as the owner of the schema.')
    expect(migrated.stderr).not.toContain('GRANT')
    const listed = await cli('stranger', 'outbox', 'list')
    expect(listed.stderr).toContain(`GRANT leasehold_reader TO ${stranger};`)
    expect(listed.stderr).not.toContain('    at ')
  })

  it('a worker process that lacks the role, or a privilege on a table of the user, names the GRANT and does not start', async () => {
    const home = await workerDirectory()
    const env = { DATABASE_URL: logins.stranger.url, LEASEHOLD_PORT: '' }
    const process = spawnNode('dist/cli/main.js', ['work'], { cwd: home, env })
    expect((await process.exited).code).toBe(1)
    expect(process.output().stderr).toContain(`GRANT leasehold_worker TO ${stranger};`)

    await db.query({
      text: `create schema app; create table app.tasks (id int primary key, done_at timestamptz, lease_owner text, lease_until timestamptz, lease_token bigint not null default 0);
create index on app.tasks (id) where done_at is null; create index on app.tasks (id) where lease_owner is not null`,
    })
    const { leaseTable } = await import('../src/lease/index.ts')
    const table = leaseTable({
      table: 'app.tasks',
      claimable: 'done_at is null',
      outcomes: { done: { done_at: 'now()' }, retry: {}, dead: { done_at: 'now()' } },
    })
    const start = async (): Promise<unknown> =>
      startRuntime({
        databaseUrl: logins.worker.url,
        log: false,
        workers: [{ name: 'tasks', table, handle: async () => {} }],
      })
    const worker = logins.worker.name
    await expect(start()).rejects.toThrow(`Run: GRANT USAGE ON SCHEMA app TO ${worker}; as its owner.`)
    await db.query({ text: `grant usage on schema app to "${worker}"` })
    await expect(start()).rejects.toThrow(
      `Run: GRANT SELECT, UPDATE ON app.tasks TO ${worker}; as its owner.`,
    )
    await db.query({ text: 'drop schema app cascade' })
  })

  it('a database that a role may not connect to names the GRANT', async () => {
    const name = `"${database.name}"`
    await db.query({ text: `revoke connect on database ${name} from public` })
    onTestFinished(async () => void (await db.query({ text: `grant connect on database ${name} to public` })))
    await expect(as('stranger').query({ text: 'select 1' })).rejects.toMatchObject({
      code: 'PERMISSION_DENIED',
      message: expect.stringContaining(`GRANT CONNECT ON DATABASE ${database.name} TO ${stranger};`),
    })
  })
})

describe('leasehold roles', () => {
  const prefix = `shop_${database.name.slice(-8)}`

  it('roles of another prefix get the same privileges, and a repetition changes nothing', async () => {
    const first = await callLeasehold(['roles', '--role-prefix', prefix], {
      databaseUrl: database.url,
      workingDirectory: directory,
    })
    onTestFinished(async () => {
      for (const kind of ROLE_KINDS)
        await db.query({ text: `drop owned by ${prefix}_${kind}; drop role ${prefix}_${kind}` })
    })
    expect([first.code, first.stdout]).toEqual([
      0,
      `The roles ${ROLE_KINDS.map((kind) => `${prefix}_${kind}`).join(', ')} exist, with their privileges on the schema leasehold.\n`,
    ])
    const privileges = async (): Promise<unknown> =>
      (
        await db.query({
          text: `select count(*) filter (where grantee like 'leasehold\\_%') as usual, count(*) filter (where grantee like $1) as other
from information_schema.column_privileges where table_schema = 'leasehold'`,
          values: [`${prefix}\\_%`],
        })
      ).rows
    const [before] = (await privileges()) as { usual: string; other: string }[]
    expect(before?.other).toBe(before?.usual)
    await callLeasehold(['roles', '--role-prefix', prefix], {
      databaseUrl: database.url,
      workingDirectory: directory,
    })
    expect(await privileges()).toEqual([before])
  })

  it('a user who may not create roles changes nothing, and is told to let an administrator run the printed SQL', async () => {
    const { code, stderr } = await cli('operator', 'roles', '--role-prefix', prefix)
    expect(code).toBe(1)
    expect(stderr).toContain(`${prefix}_producer`)
    expect(stderr).toContain('leasehold roles --print')
    expect(await count(`pg_roles where rolname like '${prefix}\\_%'`)).toBe(0)
  })

  it('a role that the command would have to be granted to is not named as the remedy', async () => {
    for (const who of ['producer', 'worker'] as const) {
      const { code, stderr } = await cli(who, 'roles')
      expect([code, stderr]).toEqual([1, expect.stringContaining('Run it as the owner of the schema')])
      expect(stderr).not.toContain('GRANT')
    }
  })

  it('in a schema without tables, and in one that may not be used, the refusal says so', async () => {
    const missing = await callLeasehold(['roles', '--schema', 'nowhere'], {
      databaseUrl: database.url,
      workingDirectory: directory,
    })
    expect([missing.code, missing.stderr]).toEqual([
      1,
      'leasehold: SETTING_INVALID: The schema nowhere has no tables of Leasehold yet. Run `leasehold migrate`, or name another schema with --schema.\n',
    ])
    const { code, stderr } = await cli('stranger', 'roles')
    expect([code, stderr]).toEqual([
      1,
      expect.stringContaining('it cannot use the schema leasehold. Nothing was changed.'),
    ])
  })

  it('the printed SQL does what the command does', async () => {
    const { stdout } = await callLeasehold(['roles', '--print', '--role-prefix', prefix], {
      workingDirectory: directory,
    })
    const admin = new Client({ connectionString: database.url })
    await admin.connect()
    onTestFinished(async () => admin.end())
    await admin.query(stdout)
    const { rows } = await admin.query(
      `select has_column_privilege('${prefix}_producer', 'leasehold.outbox', 'payload', 'insert') as granted`,
    )
    expect(rows).toEqual([{ granted: true }])
    for (const kind of ROLE_KINDS)
      await admin.query(`drop owned by ${prefix}_${kind}; drop role ${prefix}_${kind}`)
  })

  it('whoever creates and grants the roles runs no function that the owner of the schema has added to it', async () => {
    const session = await openSession(database.url)
    for (const type of ['text', 'name'])
      await session.query(`create function leasehold.format(text, ${type}) returns text language plpgsql
as $$ begin raise 'it ran as %', current_user; end $$`)
    const { code, stderr } = await callLeasehold(['roles'], {
      databaseUrl: database.url,
      workingDirectory: directory,
    })
    expect([code, stderr]).toEqual([0, ''])
    await session.query('drop function leasehold.format(text, text), leasehold.format(text, name)')
  })

  it('a schema without tables is named, together with the command that creates them', async () => {
    const { code, stderr } = await callLeasehold(['roles', '--schema', 'nowhere'], {
      databaseUrl: database.url,
      workingDirectory: directory,
    })
    expect([code, stderr]).toEqual([
      1,
      expect.stringContaining('The schema nowhere has no tables of Leasehold yet.'),
    ])
  })

  it('a prefix that is not an identifier is refused', async () => {
    const { code, stderr } = await callLeasehold(['roles', '--print', '--role-prefix', 'Shop; drop'], {
      workingDirectory: directory,
    })
    expect(code).toBe(1)
    expect(stderr).toContain('The prefix of the roles is "Shop; drop".')
  })
})
