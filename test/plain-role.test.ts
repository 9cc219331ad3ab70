/**
 * A database role that is no superuser, may create no roles, and owns its schema only. An administrator created the
 * database, and either lets the role create schemas in it or has created the schemas for it.
 */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, inject, it, onTestFinished, vi } from 'vitest'
import { applyRetention, enqueue } from '../src/outbox/index.ts'
import { type Database, migrate, openDatabase, quoteIdentifier } from '../src/postgres/index.ts'
import { ROLE_KINDS } from '../src/postgres/permissions.ts'
import { createSync } from '../src/sync/index.ts'
import { endpoints, send } from '../src/webhooks/index.ts'
import { listWorkers } from '../src/worker/index.ts'
import { withAdmin, withDatabase } from './support/admin.ts'
import { callLeasehold, type Called } from './support/command-line.ts'
import { useDatabase } from './support/database.ts'
import { removeDirectory, temporaryDirectory } from './support/directory.ts'
import { type TestProcess, useProcesses } from './support/processes.ts'
import { useReceivers } from './support/receiver.ts'
import { SECRET_KEY } from './support/webhook-endpoints.ts'

const processes = useProcesses()
const receiver = useReceivers()
const database = useDatabase()
const adminUrl = withDatabase(inject('clusterUrl'), database.name)
const login = `${database.name.slice(0, 50)}_plain`
const role = quoteIdentifier(login)
/** No role with this prefix exists. Those of other test files belong to the same server. */
const PREFIX = `${database.name.slice(0, 40)}_x`
const ROLES = ROLE_KINDS.map((kind) => `${PREFIX}_${kind}`)
const url = Object.assign(new URL(database.url), { username: login, password: 'only-for-this-test' }).href
const POLL = { timeout: 120_000, interval: 50 }
const PATIENCE = 300_000
let directory = ''

async function asAdmin(...statements: readonly string[]): Promise<void> {
  await withAdmin(adminUrl, async (client) => {
    for (const text of statements) await client.query(text)
  })
}

beforeAll(async () => {
  directory = await temporaryDirectory()
  const name = quoteIdentifier(database.name)
  await asAdmin(
    `create role ${role} login nosuperuser nocreatedb nocreaterole noinherit password 'only-for-this-test'`,
    `revoke all on database ${name} from public`,
    `grant connect on database ${name} to ${role}`,
    `alter database ${name} set leasehold.role_prefix = '${PREFIX}'`,
  )
})
afterAll(async () => {
  await dropRoles()
  await asAdmin(`drop owned by ${role} cascade`, `drop role ${role}`)
  await removeDirectory(directory)
})

/** Those that an administrator has created. */
async function dropRoles(): Promise<void> {
  for (const name of ROLES.map(quoteIdentifier)) {
    await asAdmin(
      `do $$ begin if to_regrole('${name}') is not null then drop owned by ${name}; end if; end $$`,
      `drop role if exists ${name}`,
    )
  }
}

async function cli(...args: readonly string[]): Promise<Called> {
  return callLeasehold(args, { databaseUrl: url, workingDirectory: directory })
}

function open(): Database {
  const db = openDatabase({ url, maxConnections: 3 })
  onTestFinished(async () => db.close())
  return db
}

async function count(db: Database, from: string): Promise<number> {
  const { rows } = await db.query<{ count: number }>({ text: `select count(*)::int as count from ${from}` })
  return rows[0]?.count ?? 0
}

const PAYMENTS = `create table app.payments (
  id bigint generated always as identity primary key,
  status text not null default 'pending',
  created_at timestamptz not null default now()
)`
const CLAIMABLE = "status = 'pending'"

/** All four applications. */
async function writeConfig(): Promise<void> {
  const dist = new URL('../dist/', import.meta.url).href
  await writeFile(
    join(directory, 'leasehold.config.mjs'),
    `import { leaseTable } from '${dist}index.js'
    import { relay } from '${dist}outbox/index.js'
    import { handlers } from '${dist}outbox/publishers/handlers.js'
    import { reconciler } from '${dist}reconcile/index.js'
    import { createSync } from '${dist}sync/index.js'
    const sync = createSync()
    sync.define('numbers', { plan: () => [1, 2, 3], syncChunk: async () => ({ rows: 1 }) })
    const table = leaseTable({
      table: 'app.payments', claimable: "${CLAIMABLE}", order: ['created_at', 'id'],
      attempts: { column: false, expiries: 'lease_expiries', error: false },
    })
    export default { workers: [
      relay({ publisher: handlers({}, { otherwise: 'done' }) }),
      ...sync.runner({ checkEveryMs: 20 }),
      reconciler({ table, transitions: { pending: ['paid'], paid: [] }, observe: async () => 'paid' }),
    ] }`,
  )
}

function work(): TestProcess {
  const env = {
    DATABASE_URL: url,
    LEASEHOLD_PORT: '',
    LEASEHOLD_SECRET_KEY: SECRET_KEY,
    LEASEHOLD_WEBHOOK_ALLOW: '127.0.0.0/8',
    LEASEHOLD_LOG_LEVEL: 'info',
  }
  const started = processes.spawnNode('dist/cli/main.js', ['work'], { cwd: directory, env })
  onTestFinished(async () => void (await started.kill('SIGKILL')))
  return started
}

async function shown(worker: TestProcess, name: string): Promise<string> {
  return (await worker.line((text) => text.startsWith(`  ${name}`))).trim().split(/\s+/).at(-1) ?? ''
}

it('without CREATE on the database, a migration names the two statements that an administrator can run', async () => {
  await asAdmin('drop schema if exists leasehold cascade')
  const { code, stderr } = await cli('migrate')
  expect(code).toBe(1)
  expect(stderr).toContain(
    `CREATE SCHEMA leasehold AUTHORIZATION ${role}; or GRANT CREATE ON DATABASE ${quoteIdentifier(database.name)} TO ${role};`,
  )
})

it.each([
  {
    allowed: 'create schemas in the database',
    prepare: [`grant create on database ${quoteIdentifier(database.name)} to ${role}`],
    own: ['create schema app'],
  },
  {
    allowed: 'use the schemas that an administrator created for it',
    prepare: [
      `revoke create on database ${quoteIdentifier(database.name)} from ${role}`,
      `create schema leasehold authorization ${role}`,
      `create schema app authorization ${role}`,
    ],
    own: [],
  },
])(
  'a role that may only $allowed migrates, produces, runs all four applications and operates them',
  async ({ prepare, own }) => {
    await dropRoles()
    await asAdmin('drop schema if exists leasehold, app cascade', ...prepare)
    const db = open()

    const migrated = await cli('migrate')
    expect([migrated.code, migrated.stderr]).toEqual([0, ''])
    expect(migrated.stdout).toMatch(/^Applied 1, 2, 3, 4, 5, 6, 7\./)
    expect(migrated.stdout).toContain(`The roles ${ROLES.join(', ')} do not exist`)
    expect((await cli('migrate')).stdout).toMatch(/^Nothing to apply\. [^\n]*\n$/)
    const refused = await cli('roles')
    expect([refused.code, refused.stderr]).toEqual([1, expect.stringContaining('leasehold roles --print')])

    for (const text of [...own, PAYMENTS]) await db.query({ text })
    const lease = await cli('lease', 'add', '--table', 'app.payments', '--claimable', CLAIMABLE)
    expect([lease.code, lease.stderr]).toEqual([0, ''])

    await writeConfig()
    const [worker, victim] = [work(), work()]
    const http = await shown(worker, 'HTTP')
    const victimId = await shown(victim, 'Worker id')

    const shop = await receiver()
    const by = { principal: 'olga', reason: 'a test' }
    await endpoints(db, { secretKey: SECRET_KEY, network: { allow: ['127.0.0.0/8'] } }).create(
      { url: shop.url },
      by,
    )
    await enqueue(db, [
      { type: 'a', payload: 1 },
      { type: 'a', payload: 2, orderingKey: 'k' },
    ])
    await db.transaction(async (tx) => enqueue(tx, { type: 'a', payload: 3 }, { serialize: true }))
    await send(db, { type: 'a', payload: 1 })
    await createSync().enqueue(db, 'numbers', { matrixId: 'm' })
    await db.query({ text: 'insert into app.payments default values' })

    const until = async (from: string, expected: number): Promise<void> =>
      vi.waitFor(async () => expect(await count(db, from)).toBe(expected), POLL)
    await until(`leasehold.outbox where status = 'PUBLISHED'`, 3)
    expect(await applyRetention(db, { publishedMs: 0 })).toMatchObject({ published: 3 })
    await until(`leasehold.webhook_outbox where delivery_status = 'delivered'`, 1)
    await until('leasehold.sync_jobs where completed_at is not null', 1)
    await until(`app.payments where status = 'paid'`, 1)

    // Its session is visible to a reaper of the same role, so it is declared dead long before its leases expire.
    await victim.kill('SIGKILL')
    await vi.waitFor(async () => {
      const found = (await listWorkers(db, 'leasehold')).find(({ id }) => id === victimId)
      expect(found?.state).toBe('dead')
    }, POLL)

    for (const args of [['status'], ['outbox', 'list'], ['webhooks', 'list'], ['sync', 'status']]) {
      const called = await cli(...args)
      expect([called.code, called.stderr], args.join(' ')).toEqual([0, ''])
      expect(called.stdout, args.join(' ')).not.toMatch(/denied|cannot be read/)
    }
    const ready = await fetch(`${http}/readyz?verbose`)
    expect([ready.status, await ready.text()]).toEqual([200, expect.stringContaining('ok')])
    expect(await worker.kill('SIGTERM')).toEqual({ code: 0, signal: null })
    expect(worker.output().stderr).not.toMatch(/denied|trouble|PERMISSION/)

    // What an administrator runs instead, after which the owner can repeat the grants.
    const { stdout: sql } = await cli('roles', '--print')
    await asAdmin(sql)
    expect(await cli('roles')).toMatchObject({ code: 0, stderr: '' })
  },
  PATIENCE,
)

it('a schema that the role may create objects in, but does not own, is refused with the remedy', async () => {
  await asAdmin(
    'drop schema if exists leasehold cascade',
    'create schema leasehold',
    `grant all on schema leasehold to ${role}`,
  )
  await expect(migrate(open())).rejects.toMatchObject({
    code: 'MIGRATION_FAILED',
    message: expect.stringContaining(`ALTER SCHEMA leasehold OWNER TO ${role}`),
  })
})
